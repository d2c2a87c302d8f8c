"""Predict when Kueue admits a job, from its queue's quota, the part in use, and the jobs before.

Kueue gives all pods of one shape the same flavor, so the GPUs of a job must come from one. A queue of a
cohort may borrow from its other queues, so its quota is not judged.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from trainyard.cluster.fitness import Fitness
from trainyard.cluster.snapshot import ClusterQueue, Flavor, FlavorQuota, MissingData, Queue, Snapshot
from trainyard.plan.instances import EFA, GPU, plain_type

if TYPE_CHECKING:
    from trainyard.jobs.job_spec import JobSpec


class AdmissionTime(StrEnum):
    """The prediction for a job."""

    NOW = "now"
    LATER = "later"
    NEVER = "never"
    UNKNOWN = "unknown"
    NOT_CHECKED = "not checked"
    NO_QUEUE = "no queue"


@dataclass(frozen=True)
class Outlook:
    """The prediction for a queue."""

    when: AdmissionTime
    evidence: str
    fix: str = ""


def gpus_of_job(job: "JobSpec", fits: tuple[Fitness, ...]) -> int | None:
    """GPUs of the complete job; None when the GPUs per node are not known."""
    each = job.gpus_per_node
    if each is None:
        found = [fitness.expected_gpus or fitness.gpus for fitness in fits]
        each = max((count for count in found if count), default=None)
    return None if each is None else each * job.nodes


def outlook(snapshot: Snapshot, job: "JobSpec", fits: tuple[Fitness, ...]) -> Outlook:
    """Predict when the demanded queue admits the job."""
    if not job.queue:
        return Outlook(AdmissionTime.NO_QUEUE, "no queue is named")
    if isinstance(snapshot.queues, MissingData):
        install = "install Kueue, or leave --queue out" if snapshot.queues.absent else ""
        when = AdmissionTime.NEVER if snapshot.queues.absent else AdmissionTime.UNKNOWN
        return Outlook(when, snapshot.queues.reason, install)
    queue = next((q for q in snapshot.queues if q.name == job.queue), None)
    if queue is None:
        known = ", ".join(q.name for q in snapshot.queues) or "none"
        return _never(
            f"namespace {job.namespace} has no LocalQueue {job.queue}; it has: {known}",
            f"name one of them with --queue, or: trainyard cluster fix --queue {job.queue}",
        )
    if isinstance(snapshot.cluster_queues, MissingData):
        if not queue.active or queue.stopped:
            return _never(f"LocalQueue {queue.name} is not active: {queue.reason}")
        reason = snapshot.cluster_queues.reason
        text = f"LocalQueue {queue.name} is active; its quota is not known: {reason}"
        return Outlook(AdmissionTime.UNKNOWN, text)
    return _queue_outlook(queue, snapshot.cluster_queues, snapshot, gpus=gpus_of_job(job, fits), job=job)


def uncovered_efa(snapshot: Snapshot, job: "JobSpec", fits: tuple[Fitness, ...]) -> str:
    """Return the plan's ClusterQueue if it has no quota for the EFA that the pods request; else empty."""
    if isinstance(snapshot.queues, MissingData) or isinstance(snapshot.cluster_queues, MissingData):
        return ""
    leads = [q.cluster_queue for q in snapshot.queues if q.name == job.queue]
    parent = next((q for q in snapshot.cluster_queues if q.name in leads), None)
    requests = job.nodes > 1 and any(fitness.fit and fitness.node.allocatable.get(EFA) for fitness in fits)
    if parent is None or not requests or any(quota.resource == EFA for quota in parent.quotas):
        return ""
    return parent.name


def _never(
    evidence: str, fix: str = "ask the owner of the queue, or name another one with --queue"
) -> Outlook:
    return Outlook(AdmissionTime.NEVER, evidence, fix)


def _queue_outlook(
    queue: Queue, queues: tuple[ClusterQueue, ...], snapshot: Snapshot, *, gpus: int | None, job: "JobSpec"
) -> Outlook:
    parent = next((q for q in queues if q.name == queue.cluster_queue), None)
    if parent is None:
        return _never(
            f"LocalQueue {queue.name} leads to the ClusterQueue {queue.cluster_queue}, which does not exist",
            "create it, or name another queue with --queue",
        )
    local, above = f"LocalQueue {queue.name}", f"ClusterQueue {parent.name}"
    if queue.stopped or parent.stopped:
        return _never(f"{local if queue.stopped else above} is stopped (stopPolicy)")
    if not parent.active:
        return _never(f"{above} is not active: {parent.reason}")
    if not queue.active:
        return _never(f"{local} is not active: {queue.reason}")
    requested = ("cpu", "memory", GPU) if gpus else ("cpu", "memory")
    lacking = [name for name in requested if not any(quota.resource == name for quota in parent.quotas)]
    if lacking:
        names = " and ".join(lacking)
        text = f"{above} has no quota for {names}, which every pod requests: the job waits forever"
        return _never(text, f"add {names} to the covered resources of {parent.name}")
    if not gpus:
        return Outlook(AdmissionTime.NOW, f"{local} is active; no GPUs are requested")
    return _quota_outlook(parent, snapshot, gpus=gpus, job=job)


def _quota_outlook(parent: ClusterQueue, snapshot: Snapshot, *, gpus: int, job: "JobSpec") -> Outlook:
    flavors = () if isinstance(snapshot.flavors, MissingData) else snapshot.flavors
    covered = [quota for quota in parent.quotas if quota.resource == GPU]
    usable = [quota for quota in covered if _fits_type(quota, flavors, job)]
    if not usable:
        names, wanted = ", ".join(quota.flavor for quota in covered), plain_type(job.instance_type)
        text = f"no flavor of ClusterQueue {parent.name} is for {wanted} (it has {names})"
        return _never(text, "name another queue or another instance type")
    if parent.cohort:
        text = f"ClusterQueue {parent.name} is in the cohort {parent.cohort}, and may borrow from its queues"
        return Outlook(AdmissionTime.NOT_CHECKED, text)
    largest = max(usable, key=lambda quota: quota.nominal)
    if largest.nominal // 1000 < gpus:
        return _never(
            f"{gpus} GPUs are wanted; ClusterQueue {parent.name} can have {largest.nominal // 1000} in "
            f"flavor {largest.flavor} at most",
            "ask for fewer nodes, or have the quota raised",
        )
    best = max(usable, key=lambda quota: quota.nominal - quota.used)
    free, whole = max(0, best.nominal - best.used) // 1000, best.nominal // 1000
    state = f"{free} of {whole} GPUs free in flavor {best.flavor} of {parent.name}"
    if free < gpus:
        return Outlook(AdmissionTime.LATER, f"{state}, {gpus} wanted: the job waits for {gpus - free} more")
    if parent.pending:
        waiting = f"{parent.pending} job{'s' if parent.pending > 1 else ''} waiting in it"
        return Outlook(AdmissionTime.LATER, f"{state}, {gpus} wanted, with {waiting}")
    return Outlook(AdmissionTime.NOW, f"{state}, {gpus} wanted")


def _fits_type(quota: FlavorQuota, flavors: tuple[Flavor, ...], job: "JobSpec") -> bool:
    labels = next((f.node_labels for f in flavors if f.name == quota.flavor), {})
    named = plain_type(labels.get("node.kubernetes.io/instance-type", ""))
    return not (named and job.instance_type) or named == plain_type(job.instance_type)
