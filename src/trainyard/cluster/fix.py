"""Plan the steps that make a cluster ready: safe steps as objects, all others as commands.

    Verdict + ClusterConfig ──plan──> Step, Step, …

A step is safe if it adds something that is missing and changes nothing else: a namespace, a LocalQueue or a
claim. Nothing is ever installed, rebooted, replaced, drained, cordoned or deleted: such fixes are printed
for people.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainyard.cluster.snapshot import MissingData, Snapshot
from trainyard.cluster.verdict import Verdict
from trainyard.cluster.volumes import claim_body
from trainyard.config.cluster import ClusterConfig
from trainyard.plan.finding import Severity

if TYPE_CHECKING:
    from trainyard.jobs.job_spec import JobSpec

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Step:
    """One fix."""

    check: str
    what: str
    objects: tuple[Json, ...] = ()
    """Objects that --apply applies; empty for steps that people do."""
    command: str = ""
    """Commands that people run; empty for steps that are applied."""

    @property
    def automatic(self) -> bool:
        return bool(self.objects)


def plan_fix(verdict: Verdict, settings: ClusterConfig) -> tuple[Step, ...]:
    """Return every fix of the verdict's findings; the safe ones first, in the order to apply them."""
    snapshot, job = verdict.facts.snapshot, verdict.facts.job
    automatic = [
        *_namespace(snapshot, job),
        *_queue(snapshot, job, settings),
        *_claim(snapshot, job, settings),
    ]
    fixed = {step.check for step in automatic}
    return (*automatic, *_manual_steps(verdict, fixed))


def _namespace(snapshot: Snapshot, job: "JobSpec") -> Iterator[Step]:
    if not isinstance(snapshot.namespace, MissingData) and not snapshot.namespace.exists:
        name = job.namespace
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        yield Step("namespace", f"create the namespace {name}", (body,))


def _queue(snapshot: Snapshot, job: "JobSpec", settings: ClusterConfig) -> Iterator[Step]:
    queues = snapshot.queues
    if not job.queue or isinstance(queues, MissingData) or not settings.cluster_queue:
        return
    if any(queue.name == job.queue for queue in queues):
        return
    assert not isinstance(snapshot.groups, MissingData)
    version = next(v for v in ("v1beta2", "v1beta1") if v in snapshot.groups["kueue.x-k8s.io"])
    body = {
        "apiVersion": f"kueue.x-k8s.io/{version}",
        "kind": "LocalQueue",
        "metadata": {"name": job.queue, "namespace": job.namespace},
        "spec": {"clusterQueue": settings.cluster_queue},
    }
    what = f"create the LocalQueue {job.queue} for the ClusterQueue {settings.cluster_queue}"
    yield Step("queue", what, (body,))


def _claim(snapshot: Snapshot, job: "JobSpec", settings: ClusterConfig) -> Iterator[Step]:
    volume = settings.volume
    if not job.claim or snapshot.volume is not None or not volume.storage_class:
        return
    body = claim_body(job.claim, job.namespace, storage_class=volume.storage_class, size=volume.size)
    what = f"create the claim {job.claim}: {volume.size} of {volume.storage_class}, ReadWriteMany"
    yield Step("storage", what, (body,))


def _manual_steps(verdict: Verdict, fixed: "set[str]") -> Iterator[Step]:
    for finding in verdict.findings:
        severe = finding.severity in (Severity.ERROR, Severity.WARNING)
        if severe and finding.subject not in fixed and finding.fix:
            command = verdict.facts.job.target.in_text(finding.fix)
            yield Step(finding.subject, finding.evidence, command=command)


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
