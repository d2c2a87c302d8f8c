"""Find the pod that failed first, and why, from statuses, exit codes and events.

    PodFacts of all pods, dead ones included ──suspects──> in order ──> the first one is the cause

When one pod of a job fails, the others end too: pods that were already being deleted when they ended, and
pods that ended later, are consequences. A failure that recovered (its pod was created again and ran)
counts only if nothing else is left. Kubernetes records full seconds, so within one second the better
evidence comes first, then the lower rank. The end of a sidecar is the cause only where nothing else failed.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trainyard.jobs.final_exit_codes import not_proven_on_record
from trainyard.jobs.state.pod_facts import ContainerEnd, PodFacts
from trainyard.jobs.state.reading import Json
from trainyard.watch.failure_classes import FailureClass
from trainyard.watch.failure_logs.failure_explanation import FailureFacts, LogExplanation, explain_logs
from trainyard.watch.failure_logs.log_text import log_of

_DISK = re.compile(
    r"ephemeral[- ]storage|EmptyDir|emptyDir|local ephemeral|imagefs|nodefs|no space left", re.I
)
_MEMORY = re.compile(r"low on resource: memory|memory pressure|memory\.available", re.I)
_BY_DISRUPTION = {
    "PreemptionByScheduler": (FailureClass.PREEMPTED, "it was preempted by a pod of higher priority"),
    "DeletionByTaintManager": (FailureClass.NODE_LOST, "its node was lost"),
    "DeletionByPodGC": (FailureClass.NODE_LOST, "its node is gone"),
    "EvictionByEvictionAPI": (FailureClass.PREEMPTED, "it was evicted, as when a node is drained"),
}
_BY_POD_REASON = {
    "DeadlineExceeded": FailureClass.TIME_LIMIT,
    "Preempting": FailureClass.PREEMPTED,
    "NodeLost": FailureClass.NODE_LOST,
    "NodeShutdown": FailureClass.NODE_LOST,
    "Terminated": FailureClass.NODE_LOST,
    "Shutdown": FailureClass.NODE_LOST,
    "UnexpectedAdmissionError": FailureClass.HARDWARE,
    "NodeAffinity": FailureClass.UNSCHEDULABLE,
}
_BY_CONTAINER_REASON = {
    "OOMKilled": FailureClass.HOST_MEMORY,
    "ContainerCannotRun": FailureClass.CONFIGURATION,
    "StartError": FailureClass.CONFIGURATION,
    "ContainerStatusUnknown": FailureClass.NODE_LOST,
}
_BY_CODE = {
    2: (FailureClass.CONFIGURATION, "wrong usage or configuration"),
    5: (FailureClass.HANG, "it timed out waiting"),
    75: (FailureClass.PREEMPTED, "it stopped early with a good checkpoint"),
    137: (FailureClass.UNKNOWN, "it was killed (SIGKILL), but not because of its memory limit"),
    143: (FailureClass.PREEMPTED, "it was asked to end (SIGTERM)"),
}
"""The class that an exit code of a pod suggests, if the log says nothing; `explain_logs` knows the others."""
_SIGTERM, _SIGKILL, _MOST_OWN = 143, 137, 125
INIT_CONTAINER = "init-pytorch"
"""The container in which the training operator lets a worker wait for the name of the master."""
_NO_FAILURE = (FailureClass.FINISHED, FailureClass.STOPPED)
NO_ANSWER = frozenset((FailureClass.UNKNOWN, *_NO_FAILURE))
_LOST = re.compile(r"^Rank \d+ lost another process of this run\b", re.MULTILINE)
_KILLED = re.compile(r"^Rank \d+ \(pid \d+\) was killed by ", re.MULTILINE)
"""Lines that our trainer and its launcher print."""
_AFTER_LOSS = (
    FailureClass.NCCL_ERROR,
    FailureClass.NCCL_TIMEOUT,
    FailureClass.USER_CODE,
    FailureClass.UNKNOWN,
)
"""Classes that the lines of a process suggest although it only lost another process."""
_CERTAIN = frozenset(
    (FailureClass.HOST_MEMORY, FailureClass.NODE_LOST, FailureClass.DISK_FULL, FailureClass.HARDWARE)
)


@dataclass(frozen=True)
class Suspect:
    """A failed container, or a pod that failed without one."""

    pod: PodFacts
    failure_class: FailureClass
    exit_code: int | None
    evidence: str
    lines: tuple[str, ...]
    finished: float | None
    recovered: bool
    consequence: bool
    """It was already being deleted when it ended, so somebody ended it and nothing in it failed."""
    lost_another: bool = False
    """It failed only because it lost another process, as its last lines say; that one has the cause."""
    explained: LogExplanation | None = None
    """The failure that its last lines show, if they are certain."""
    beside: bool = False
    """It is a sidecar, not the container that trains."""

    def order(self) -> tuple[bool, bool, bool, bool, float, bool, int, str]:
        """Return the sort key of failures; the first in this order is the cause."""
        rank = self.pod.rank if self.pod.rank is not None else 1 << 30
        moment = self.finished if self.finished is not None else float("inf")
        vague = self.failure_class not in _CERTAIN
        weak = self.recovered, self.consequence, self.beside, self.lost_another
        return *weak, moment, vague, rank, self.pod.name


def suspects(pods: Iterable[PodFacts], *, replaced: frozenset[str], events: Sequence[Json]) -> list[Suspect]:
    """All failures in these pods, the cause first; `replaced`: uids of pods that were created again."""
    killers = frozenset(
        _node_of(event) for event in events if event.get("reason") in ("SystemOOM", "OOMKilling")
    )
    found = [
        s for pod in pods for s in _suspects(pod, recovered=pod.uid in replaced, starved=pod.node in killers)
    ]
    return sorted(found, key=Suspect.order)


def _suspects(pod: PodFacts, *, recovered: bool, starved: bool) -> list[Suspect]:
    place = f"{pod.name} on {pod.node}" if pod.node else pod.name
    if (complete := _pod_cause(pod)) is not None:
        failure_class, why = complete
        end = next((e for e in pod.ends if e.failed), None)
        code = end.exit_code if end is not None else None
        message = _lines(end) if end is not None else ()
        moment = pod.disrupted_at or (end.finished if end is not None else None)
        return [
            Suspect(
                pod, failure_class, code, f"{place}: {why}", message, moment, recovered, consequence=False
            )
        ]
    failed = [end for end in pod.ends if end.failed]
    if not failed and pod.phase == "Failed":
        why = pod.message or pod.reason or "the pod failed, and no container of it says why"
        return [
            Suspect(pod, FailureClass.UNKNOWN, None, f"{place}: {why}", (), None, recovered, pod.deleting)
        ]
    return [_end_suspect(pod, end, place=place, recovered=recovered, starved=starved) for end in failed]


def _pod_cause(pod: PodFacts) -> tuple[FailureClass, str] | None:
    """The cause that the pod itself names: evicted, preempted, its node lost, refused by the kubelet."""
    failed = pod.phase == "Failed" or any(end.failed for end in pod.ends)
    if pod.phase == "Failed" and pod.reason == "Evicted":
        return _eviction_class(pod.message), f"evicted: {pod.message or 'no reason is given'}"
    if failed and pod.disruption in _BY_DISRUPTION:
        return _BY_DISRUPTION[pod.disruption]
    if pod.phase == "Failed" and pod.reason.startswith("OutOf"):
        return FailureClass.UNSCHEDULABLE, f"{pod.reason}: {pod.message}"
    if pod.phase == "Failed" and pod.reason in _BY_POD_REASON:
        return _BY_POD_REASON[pod.reason], f"{pod.reason}: {pod.message}".rstrip(": ")
    return None


def _eviction_class(message: str) -> FailureClass:
    if _DISK.search(message):
        return FailureClass.DISK_FULL
    return FailureClass.HOST_MEMORY if _MEMORY.search(message) else FailureClass.NODE_LOST


def _end_suspect(pod: PodFacts, end: ContainerEnd, *, place: str, recovered: bool, starved: bool) -> Suspect:
    failure_class, why = _class_of(end, starved=starved)
    explained = explain_lines(_lines(end), end.exit_code)
    lost_another = end.container == INIT_CONTAINER
    is_own = failure_class is FailureClass.UNKNOWN and 0 < (end.exit_code or 0) <= _MOST_OWN
    if lost_another:
        failure_class, why = FailureClass.RENDEZVOUS_TIMEOUT, "the first pod did not come up in time"
    elif is_own and (explained is None or explained.klass in _AFTER_LOSS):
        lost_another = bool(_LOST.search(end.message)) and not _KILLED.search(end.message)
        if lost_another:
            failure_class, why, explained = FailureClass.UNKNOWN, "it lost another process of the job", None
    code = "" if end.exit_code is None else f" with exit code {end.exit_code}"
    ended = pod.deleting and end.exit_code in (_SIGTERM, _SIGKILL, 75, 0, None)
    return Suspect(
        pod=pod,
        failure_class=failure_class,
        exit_code=end.exit_code,
        evidence=f"{place}: container {end.container} ended{code}: {why}",
        lines=_lines(end),
        finished=end.finished,
        recovered=recovered or end.recovered,
        consequence=ended,
        lost_another=lost_another,
        explained=explained,
        beside=end.beside,
    )


def explain_lines(lines: Sequence[str], exit_code: int | None) -> LogExplanation | None:
    """Return the failure that the last lines of a pod show; None where they state no error."""
    # Whether steps were made is known where the retry is decided: an unknown end is `unknown` here.
    facts = FailureFacts(exit_code, steps=1)
    found = explain_logs([log_of("last lines", "\n".join(lines))], facts=facts) if lines else None
    return None if found is None or found.klass in _NO_FAILURE or not found.root else found


def _class_of(end: ContainerEnd, *, starved: bool) -> tuple[FailureClass, str]:
    if end.reason in _BY_CONTAINER_REASON:
        words = {
            "OOMKilled": "it used more memory than its limit (OOMKilled)",
            "ContainerStatusUnknown": "its node has no record of how it ended",
        }
        last = end.message.splitlines()[-1:] or [end.reason]
        return _BY_CONTAINER_REASON[end.reason], words.get(end.reason, last[0])
    if unproven := not_proven_on_record(end.exit_code, _lines(end)):
        return FailureClass.NOT_PROVEN, unproven
    if end.exit_code == _SIGKILL and starved:
        return FailureClass.HOST_MEMORY, "it was killed when its node ran out of memory"
    if end.exit_code in _BY_CODE:
        return _BY_CODE[end.exit_code]
    if end.exit_code is not None and 0 < end.exit_code <= _MOST_OWN:
        return FailureClass.UNKNOWN, "the program ended with an error"
    if end.exit_code:
        found = explain_logs([], end.exit_code)
        return found.klass, found.cause
    return FailureClass.UNKNOWN, end.reason or "no reason is given"


def _lines(end: ContainerEnd) -> tuple[str, ...]:
    return tuple(end.message.splitlines())


def _node_of(event: Json) -> str:
    involved = event.get("involvedObject") or {}
    return str(involved.get("name")) if involved.get("kind") == "Node" else ""
