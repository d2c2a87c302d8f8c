"""Submit a job again under the next name, without the fields that the server and controllers wrote into it.

job and its parts ──resubmitted──> the same objects under another name, to be created

A retry keeps pods off nodes that failed. A node is identified by its own name (`metadata.name`), because its
host name label may differ. A lost node is only avoided if another one is free: it may come back healthy, and
it has a taint of its own. A node whose hardware failed, or that was lost twice, is excluded.

Checkpoints are not copied: the new job mounts the same claim and resumes where the old one stopped. Names are
changed only where they refer to copied objects; arguments and variables stay as they are.
"""

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Any

from trainyard.errors import ConfigError
from trainyard.jobs.job_kind import JobKind, Manifests
from trainyard.jobs.job_object import (
    BEFORE,
    CANCELLED,
    FIRST_NAME,
    FOLLOWED_BY,
    JOB_LABEL,
    PLAN,
    RETRIES,
    RETRY_CLAIM,
    RETRY_RECORD,
)
from trainyard.jobs.pod_template import set_zone
from trainyard.jobs.state.job_state import JobState
from trainyard.jobs.state.reading import Json, annotations_of, field_of, name_of
from trainyard.plan.environment.settings_reading import pod_specs
from trainyard.run.identity import JOB_FILE
from trainyard.watch.retry_decision import AvoidedNode

_FOREIGN = re.compile(
    r"(^|\.)(kueue\.x-k8s\.io/(podset|workload|managed)|kubectl\.kubernetes\.io/|sagemaker\.amazonaws\.com/fault)"
)
"""Keys of labels and annotations that controllers write into a job."""
_OF_ONE_JOB = frozenset((CANCELLED, FOLLOWED_BY, RETRY_CLAIM, RETRY_RECORD))
"""Annotations that apply to one job and not to its successor."""
_NODE_NAME, _WEIGHT = "metadata.name", 100
_REFERENCES = frozenset(("runtimeRef", "configMap", "configMapRef", "configMapKeyRef", "clusterSelector"))


def next_name(kind: JobKind, job: Json, taken: Iterable[str]) -> str:
    """Return the first name of the job with the next free number: `llama`, `llama-2`, `llama-3`."""
    first = first_name(job)
    endings = (f"-{number}" for number in itertools.count(2))
    names = (first[: kind.longest_name - len(ending)].rstrip("-") + ending for ending in endings)
    known = set(taken)
    return next(name for name in names if name not in known)


def first_name(job: Json) -> str:
    """Return the name of the job that was submitted first. All that follow write to its run directory."""
    return str(annotations_of(job).get(FIRST_NAME) or name_of(job))


def require_ended(state: JobState) -> None:
    """Raise ConfigError unless the job has ended: two jobs would destroy the same checkpoints."""
    if not state.ended:
        raise ConfigError(
            f"{state.job} is {state.state}; cancel or delete it before the job is submitted again: both "
            "write the same checkpoints"
        )
    if state.holds_resources:
        raise ConfigError(
            f"{state.job} has ended, but pods of it are still there; delete it, or wait until they are gone"
        )


def make_resubmission(
    kind: JobKind, job: Json, parts: Sequence[Json], *, name: str, retries: int = 0, zone: str | None = None
) -> Manifests:
    """The job and its parts under the new name; `retries` is the number of times it was submitted again.

    `zone` replaces the zone of a job that is kept in one; None leaves it. Raises ConfigError for a job that
    works under its own name only.
    """
    if why := kind.why_not_renamed(job):
        raise ConfigError(f"{name_of(job)} cannot be sent again under another name: {why}")
    old = name_of(job)
    names = {old: name, **{name_of(part): _new_name(name_of(part), old, name) for part in parts}}
    body = _clean(job, names)
    notes = body["metadata"].setdefault("annotations", {})
    notes |= {RETRIES: str(retries), BEFORE: old, FIRST_NAME: first_name(job)}
    if PLAN in notes:
        changes = {"name": name} if zone is None else {"name": name, "zone": zone}
        notes[PLAN] = _change_plan(str(notes[PLAN]), changes)
    _resume(kind, body)
    new = Manifests(body, tuple(_clean(part, names) for part in parts))
    if zone is not None:
        for spec in pod_specs([*new.all]):
            set_zone(spec.get("affinity") or {}, zone)
    return new


def _clean(raw: Json, names: Mapping[str, str]) -> dict[str, Any]:
    meta = raw.get("metadata") or {}
    kept = {key: meta[key] for key in ("name", "namespace") if meta.get(key)}
    for key in ("labels", "annotations"):
        notes = (meta.get(key) or {}).items()
        if own := {k: v for k, v in notes if not _FOREIGN.search(k) and k not in _OF_ONE_JOB}:
            kept[key] = own
    rest = {key: value for key, value in raw.items() if key not in ("metadata", "status")}
    if "data" in rest:
        rest["data"] = {key: value for key, value in rest["data"].items() if key != JOB_FILE}
    body: dict[str, Any] = _with_names({**rest, "metadata": kept}, names, refers=False)
    body["metadata"]["name"] = names[str(meta["name"])]
    return body


def _with_names(value: Any, names: Mapping[str, str], *, refers: bool) -> Any:
    """Return a copy in which our labels and the references to copied objects have the new names."""
    if isinstance(value, list):
        return [_with_names(entry, names, refers=refers) for entry in value]
    if not isinstance(value, dict):
        return value
    found: dict[str, Any] = {}
    for key, inner in value.items():
        renamed = isinstance(inner, str) and inner in names
        if renamed and (key == JOB_LABEL or (refers and key in ("name", "ray.io/cluster"))):
            found[key] = names[inner]
        else:
            found[key] = _with_names(inner, names, refers=key in _REFERENCES)
    return found


def _new_name(part: str, old: str, new: str) -> str:
    return new + part[len(old) :] if part == old or part.startswith(f"{old}-") else f"{new}-{part}"


def _change_plan(plan: str, changes: Mapping[str, str]) -> str:
    with suppress(ValueError, TypeError):
        return json.dumps({**json.loads(plan), **changes}, sort_keys=True, separators=(",", ":"))
    return plan


def _resume(kind: JobKind, body: dict[str, Any]) -> None:
    """Remove a suspension, whoever made it, and the fields of the earlier run."""
    for *place, name in filter(None, (kind.suspend, *kind.of_one_run)):
        if isinstance(inner := field_of(body, *place), dict):
            inner.pop(name, None)


def avoid_nodes(body: Json, nodes: Iterable[AvoidedNode]) -> dict[str, Any]:
    """Return a copy of the object whose pods avoid these nodes; equal to the object if they already do."""
    found = deepcopy(dict(body))
    for spec in pod_specs(found):
        for node in nodes:
            _avoid_node(spec, node)
    return found


def _avoid_node(spec: dict[str, Any], node: AvoidedNode) -> None:
    requirement = {"key": _NODE_NAME, "operator": "NotIn", "values": [node.name]}
    affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    if not node.strictly:
        preferred = affinity.setdefault("preferredDuringSchedulingIgnoredDuringExecution", [])
        term = {"weight": _WEIGHT, "preference": {"matchFields": [requirement]}}
        if term not in preferred:
            preferred.append(term)
        return
    required = affinity.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {})
    terms = required.setdefault("nodeSelectorTerms", [])
    if not terms:
        terms.append({})
    for term in terms:  # a pod may run where any of the terms holds
        fields = term.setdefault("matchFields", [])
        if requirement not in fields:
            fields.append(requirement)
