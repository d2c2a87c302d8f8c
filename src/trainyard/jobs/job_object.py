"""Labels, annotations and the ConfigMap of the program's files, for the objects of every kind of job."""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from trainyard.jobs.job_spec import JobSpec, Program, spec_from_json

Json = dict[str, Any]
LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
"""A DNS-1035 label, because operators name Services after it."""
MANAGED_BY = {"app.kubernetes.io/managed-by": "trainyard"}
JOB_LABEL = "trainyard.dev/job"
KIND_LABEL = "trainyard.dev/kind"
EFA_LABEL = "trainyard.dev/efa"
"""Only pods that EFA joins have it: the label by which they require each other's zone."""

PLAN = "trainyard.dev/plan"
"""JSON of the record of the `JobSpec`, without secrets and without the text of files."""
NETWORK = "trainyard.dev/network"
RETRIES = "trainyard.dev/retries"
"""How many times we submitted the job again."""
AUTO_RETRY = "trainyard.dev/auto-retry"
"""How many times the job may be submitted again after failures that a retry can recover from."""
CANCELLED = "trainyard.dev/cancelled"
"""The time at which somebody cancelled the job."""
FOLLOWED_BY = "trainyard.dev/followed-by"
"""The name of the job that replaced this one, once it exists."""
RETRY_CLAIM = "trainyard.dev/retry-claim"
"""JSON of a retry that was decided; any watcher may carry it out."""
RETRY_RECORD = "trainyard.dev/retry-record"
"""JSON of the attempts before this job, and of the retries that they used."""
FIRST_NAME = "trainyard.dev/first-name"
"""The name of the job that was submitted first."""
BEFORE = "trainyard.dev/resubmitted-from"
"""The name of the job that this one follows."""

NOT_REQUESTED = "not requested"
"""The proof of a job of somebody's manifest that was sent without --prove."""


def make_labels(job: str, kind: str) -> dict[str, str]:
    """Return the labels of every object and pod of the job."""
    return {**MANAGED_BY, "app.kubernetes.io/name": "trainyard-job", JOB_LABEL: job, KIND_LABEL: kind}


def job_object(plan: JobSpec, api_version: str, kind: str, spec: Json) -> Json:
    """Return the job's own object: its labels, its queue, and a record of its plan and origin."""
    body = part_object(plan, api_version, kind, name=plan.name, spec=spec)
    labels = body["metadata"]["labels"]
    labels |= record_labels(plan)
    if plan.queue:
        labels["kueue.x-k8s.io/queue-name"] = plan.queue
    body["metadata"]["annotations"] = {**plan.annotations, **record_annotations(plan)}
    return body


def record_labels(plan: JobSpec) -> dict[str, str]:
    """Return the label that names who sent the job; nothing if that is not known."""
    creator = "".join(plan.owner.split("/")[1:2])
    return {"trainyard.dev/creator": creator} if creator else {}


def record_annotations(plan: JobSpec) -> dict[str, str]:
    """Return the record of the job's plan, its retries and its origin."""
    return {
        PLAN: json.dumps(plan.record(), sort_keys=True, separators=(",", ":")),
        RETRIES: "0",
        AUTO_RETRY: str(plan.auto_retry),
        NETWORK: plan.network,
        **{f"trainyard.dev/{name}": value for name, value in plan.provenance.items() if value},
    }


def recorded_plan(annotations: Mapping[str, Any]) -> JobSpec | None:
    """Return the plan in the annotations of a job; None if it has none, or one that cannot be read."""
    with suppress(ValueError):
        return spec_from_json(json.loads(str(annotations.get(PLAN))))
    return None


def is_unproven(annotations: Mapping[str, Any]) -> bool:
    """Return whether nobody asked for a proof of the job: it is of a manifest, and its pods keep no run.

    It reads only these facts, so that it can read the plan of another release too.
    """
    with suppress(ValueError, TypeError, LookupError):
        plan = json.loads(annotations[PLAN])
        program = Program(plan["program"]["name"], tuple(plan["program"]["command"]))
        return bool(plan["manifest"]) and not program.keeps_run
    return False


def part_object(plan: JobSpec, api_version: str, kind: str, *, name: str, **content: Json) -> Json:
    """Return an object that the job needs, with the field that its kind has (`spec` or `data`)."""
    labels = {**plan.labels, **make_labels(plan.name, plan.kind)}
    metadata = {"name": name, "namespace": plan.namespace, "labels": labels}
    if plan.annotations:
        metadata["annotations"] = dict(plan.annotations)
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **content}


def make_files_config_map(plan: JobSpec) -> tuple[Json, ...]:
    """Return the ConfigMap with the program's files; nothing if it has no files."""
    if not plan.program.files:
        return ()
    return (part_object(plan, "v1", "ConfigMap", name=plan.files_name, data=dict(plan.program.files)),)
