"""Plan the steps that make a cluster ready: safe steps as objects, all others as commands.

    Verdict + Supplies ──plan──> Step, Step, …

A step is safe if it adds something that is missing and changes nothing else: a namespace, a LocalQueue, a
claim, or the objects of a configured manifest if a check found none of them. Nothing is ever rebooted,
replaced, drained, cordoned or deleted: such remedies are printed for people.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainyard.cluster.check_definition import Severity
from trainyard.cluster.checks import device_plugin, efa
from trainyard.cluster.demand import Demand
from trainyard.cluster.needed_apis import serves
from trainyard.cluster.snapshot import MissingData, Snapshot
from trainyard.cluster.verdict import Verdict
from trainyard.cluster.volumes import claim_body
from trainyard.config.cluster import ClusterConfig
from trainyard.errors import ConfigError

Json = Mapping[str, Any]
_FIRST = ("Namespace", "CustomResourceDefinition")
"""Kinds that other objects need, in the order in which they are applied."""
_LAST = ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration")
_MOVING = ("latest", "main", "master", "nightly", "edge", "dev")


@dataclass(frozen=True)
class Supplies:
    """Manifests and values that a fix may apply to a cluster."""

    manifests: Mapping[str, tuple[Json, ...]] = field(default_factory=dict)
    """Name of the manifest, as in the section cluster.manifests -> its objects."""
    cluster_queue: str = ""
    storage_class: str = ""
    size: str = ""


def supplies_of(settings: ClusterConfig, read: Callable[[str], Iterable[Any]]) -> Supplies:
    """The configured supplies; `read` returns the documents of a manifest. Raises ConfigError."""
    named = {name: path for name, path in settings.manifests if path is not None}
    return Supplies(
        {name: require_pinned(path, read(path)) for name, path in named.items()},
        cluster_queue=settings.cluster_queue or "",
        storage_class=settings.volume.storage_class or "",
        size=settings.volume.size,
    )


@dataclass(frozen=True)
class Step:
    """One remedy."""

    check: str
    what: str
    objects: tuple[Json, ...] = ()
    """Objects that --apply applies; empty for steps that people do."""
    command: str = ""
    """Commands that people run; empty for steps that are applied."""

    @property
    def automatic(self) -> bool:
        return bool(self.objects)


def plan_fix(verdict: Verdict, supplies: Supplies) -> tuple[Step, ...]:
    """Return every remedy of the verdict's findings; the safe ones first, in the order to apply them."""
    snapshot, demand = verdict.facts.snapshot, verdict.facts.demand
    automatic = [
        *_namespace(snapshot, demand),
        *_installs(verdict, supplies),
        *_queue(snapshot, demand, supplies),
        *_claim(snapshot, demand, supplies),
    ]
    fixed = {step.check for step in automatic}
    return (*automatic, *_manual_steps(verdict, fixed))


def _namespace(snapshot: Snapshot, demand: Demand) -> Iterator[Step]:
    if not isinstance(snapshot.namespace, MissingData) and not snapshot.namespace.exists:
        name = demand.namespace
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        yield Step("namespace", f"create the namespace {name}", (body,))


def _installs(verdict: Verdict, supplies: Supplies) -> Iterator[Step]:
    for check, name in dict.fromkeys(_missing(verdict)):
        objects = supplies.manifests.get(name)
        if objects:
            yield Step(check, f"install {name} from cluster.manifests.{name}", in_order(objects))


def _missing(verdict: Verdict) -> Iterator[tuple[str, str]]:
    """Yield the check and the manifest of each component that is not installed at all."""
    facts = verdict.facts
    snapshot = facts.snapshot
    remedies = {finding.outcome.remedy for finding in verdict.findings}
    if device_plugin.INSTALL in remedies:
        yield "device-plugin", "device_plugin"
    if efa.INSTALL in remedies:
        yield "efa", "efa_plugin"
    if not isinstance(snapshot.groups, MissingData):
        absent = [a for a in reversed(facts.kind.apis) if not serves(a, snapshot.resources)]
        for api in absent:
            if api.group not in snapshot.groups and api.manifest:
                yield "job-api", api.manifest
    if facts.demand.queue and isinstance(snapshot.queues, MissingData) and snapshot.queues.absent:
        yield "queue", "kueue"


def _queue(snapshot: Snapshot, demand: Demand, supplies: Supplies) -> Iterator[Step]:
    queues = snapshot.queues
    if not demand.queue or isinstance(queues, MissingData) or not supplies.cluster_queue:
        return
    if any(queue.name == demand.queue for queue in queues):
        return
    assert not isinstance(snapshot.groups, MissingData)
    version = next(v for v in ("v1beta2", "v1beta1") if v in snapshot.groups["kueue.x-k8s.io"])
    body = {
        "apiVersion": f"kueue.x-k8s.io/{version}",
        "kind": "LocalQueue",
        "metadata": {"name": demand.queue, "namespace": demand.namespace},
        "spec": {"clusterQueue": supplies.cluster_queue},
    }
    what = f"create the LocalQueue {demand.queue} for the ClusterQueue {supplies.cluster_queue}"
    yield Step("queue", what, (body,))


def _claim(snapshot: Snapshot, demand: Demand, supplies: Supplies) -> Iterator[Step]:
    if not demand.claim or snapshot.volume is not None or not supplies.storage_class:
        return
    body = claim_body(
        demand.claim, demand.namespace, storage_class=supplies.storage_class, size=supplies.size
    )
    what = f"create the claim {demand.claim}: {supplies.size} of {supplies.storage_class}, ReadWriteMany"
    yield Step("storage", what, (body,))


def _manual_steps(verdict: Verdict, fixed: "set[str]") -> Iterator[Step]:
    for finding in verdict.findings:
        severe = finding.severity in (Severity.ERROR, Severity.WARNING)
        if severe and finding.check.name not in fixed and finding.outcome.remedy:
            command = verdict.facts.demand.target.in_text(finding.outcome.remedy)
            yield Step(finding.check.name, finding.outcome.evidence, command=command)


def in_order(objects: Iterable[Json]) -> tuple[Json, ...]:
    """Sort namespaces and definitions before their users, and webhooks after the services behind them."""

    def rank(body: Json) -> int:
        kind = body.get("kind")
        if kind in _FIRST:
            return _FIRST.index(str(kind))
        return len(_FIRST) + (kind in _LAST)

    return tuple(sorted(objects, key=rank))


def require_pinned(name: str, objects: Iterable[Json]) -> tuple[Json, ...]:
    """Return the `objects` of a manifest if they can be applied as they are. Raises ConfigError.

    Each object needs a kind and a name, and each image a digest or a version as its tag.
    """
    checked = []
    for body in objects:
        if not isinstance(body, dict) or not body.get("kind") or not body.get("apiVersion"):
            raise ConfigError(
                f"{name}: contains a document that is not a Kubernetes object (apiVersion, kind)"
            )
        if not (body.get("metadata") or {}).get("name"):
            raise ConfigError(f"{name}: a {body['kind']} without a name")
        for image in _images(body):
            if not is_pinned(image):
                raise ConfigError(f"{name}: {image}: not pinned; name a version or a digest in the manifest")
        checked.append(body)
    if not checked:
        raise ConfigError(f"{name}: holds no objects")
    return tuple(checked)


def is_pinned(image: str) -> bool:
    """Return whether an image has a digest, or a tag in the form of a version."""
    if re.search(r"@sha256:[0-9a-f]{64}$", image):
        return True
    tag = image.rpartition("/")[2].partition(":")[2]
    return bool(re.search(r"\d", tag)) and tag not in _MOVING


def _images(value: Any) -> Iterator[str]:
    """The images of the containers below `value`."""
    if isinstance(value, dict):
        for key in ("containers", "initContainers"):
            found = value.get(key)
            if isinstance(found, list):
                yield from (str(c["image"]) for c in found if isinstance(c, dict) and c.get("image"))
        for inner in value.values():
            yield from _images(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _images(inner)


def steps_record(steps: Iterable[Step], *, applied: bool) -> list[dict[str, Any]]:
    """The steps as plain data."""
    return [
        {
            "check": step.check,
            "what": step.what,
            "automatic": step.automatic,
            "objects": [f"{body['kind']}/{body['metadata']['name']}" for body in step.objects],
            "command": step.command,
            "result": "applied" if applied and step.automatic else "",
        }
        for step in steps
    ]
