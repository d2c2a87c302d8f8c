"""Determine why a job failed: which pod failed first, and why, from statuses, exit codes, events and lines.

    PodFacts of all pods, dead ones included ──suspects──> in order ──> the first one is the cause
    status of the job ─────────────────────────────────────────────────────────┴──> JobFailure

When one pod of a job fails, the others end too: pods that were already being deleted when they ended, and
pods that ended later, are consequences. A failure that recovered (its pod was created again and ran)
counts only if nothing else is left. Kubernetes records full seconds, so within one second the better
evidence comes first, then the lower rank. The end of a sidecar is the cause only where nothing else failed.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trainyard.errors import DamagedFileError, ExitCode
from trainyard.jobs.final_exit_codes import not_proven_on_record
from trainyard.jobs.state.job_state import JobFailure
from trainyard.jobs.state.pod_facts import LAST_LINES, ContainerEnd, PodFacts
from trainyard.jobs.state.reading import Json
from trainyard.watch.failure_classes import FailureClass
from trainyard.watch.failure_logs.failure_explanation import FailureFacts, LogExplanation, explain_logs
from trainyard.watch.failure_logs.log_text import log_of
from trainyard.watch.retry_decision import claim_from

if TYPE_CHECKING:
    from trainyard.jobs.job_kind import Observed
    from trainyard.jobs.state.pod_facts import History
    from trainyard.jobs.state.reading import Reading

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
_OPEN = frozenset(
    (FailureClass.USER_CODE, FailureClass.UNKNOWN, FailureClass.HANG, FailureClass.CONFIGURATION)
)
"""Classes that an exit code suggests and that the log may correct."""
_FIXES = {
    FailureClass.IMAGE_PULL: "correct the name of the image, push it, or let the nodes pull it (pull secret, "
    "role of the nodes)",
    FailureClass.HOST_MEMORY: "raise the memory limit of its pods, or use less: fewer loader workers, "
    "smaller batches",
    FailureClass.UNSCHEDULABLE: "wait until other jobs end, request less for each pod, or add nodes",
    FailureClass.CANCELLED: "start it again when you want it",
    FailureClass.NODE_LOST: "nothing is wrong with the job: send it again, on other nodes; the owner of the "
    "node must replace it",
    FailureClass.RENDEZVOUS_TIMEOUT: "read the log of the first pod: it ended or started late; or a port is "
    "closed between the nodes (security group, NetworkPolicy)",
    FailureClass.HANG: "read where each rank stood in logs/hang-rank-*.txt of the run directory; if all "
    "are in Triton's compilation, set TRITON_CACHE_DIR to a disk of the node, not to a shared file system",
    FailureClass.NOT_PROVEN: "read report/index.html in the run directory, and `not proven` of that part in "
    "docs/runbooks/recovery.md; training again would end in the same way",
}
"""What to do where only the class is known."""
_OF_THE_NODE = re.compile(
    r"The node was low on|The node had condition|node ran out of memory|: OutOf[A-Za-z]"
)
"""Evidence that a node had too little, which another node may have."""
_RAY_CODE = re.compile(r"exit code (\d{1,3})\b")
_ROOT_CAUSE = re.compile(r"Root Cause \(first observed failure\)")
_RANK = re.compile(r"^\s*rank\s*:\s*(\d{1,9})\b")
_EXIT_CODE = re.compile(r"^\s*exitcode\s*:\s*(-?\d{1,5})\b")


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


def suspects_of(observed: "Observed", past: "History") -> list[Suspect]:
    """All failures of the job's pods, the cause first."""
    replaced = {uid for place, pods in past.pods.items() if place for _, uid in pods[:-1]}
    starved = {_node_of(e) for e in observed.events if e.get("reason") in ("SystemOOM", "OOMKilling")}
    found = [
        suspect
        for pod in past.ended.values()
        for suspect in _suspects(pod, recovered=pod.uid in replaced, starved=pod.node in starved)
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


def find_fix(failure_class: FailureClass, evidence: Sequence[str]) -> str:
    """Return what to do about a failure that a status or an event shows; empty if that is unknown."""
    found = explain_lines(evidence, None)
    advice = found.fix if found is not None and found.klass is failure_class else ""
    return advice or _FIXES.get(failure_class, "")


def failure_of_job(observed: "Observed", past: "History", reading: "Reading") -> JobFailure:
    """Return the cause of a failure that the job's status, or one of its pods, reports."""
    found = suspects_of(observed, past)
    if reading.failure_class is not None:
        return JobFailure(reading.failure_class, (reading.reason,), lines=reading.lines[-LAST_LINES:])
    if observed.kind.on_ray:
        return _ray_failure(found, reading)
    if not found:
        return JobFailure(
            FailureClass.UNKNOWN, (reading.reason, "No pod of it remains that shows the cause.")
        )
    return _suspect_failure(_decisive(found), reading)


def _decisive(found: list[Suspect]) -> Suspect:
    """Return the first failure; after a stop with a good checkpoint, another pod's own failure comes first.

    All processes vote before they stop, and save together. If another pod failed by itself, that save may be
    incomplete, and its failure is the cause.
    """
    if found[0].exit_code != ExitCode.STOPPED:
        return found[0]
    others = (s for s in found if not s.recovered and not s.consequence and s.exit_code != ExitCode.STOPPED)
    return next(others, found[0])


def failure_of_claim(text: str) -> JobFailure:
    """Return the failure of a job that a watcher stopped to submit it again, from the claim of the retry."""
    try:
        claim = claim_from(text)
    except DamagedFileError as error:
        return JobFailure(FailureClass.UNKNOWN, (f"It was stopped to be sent again: {error}",))
    return JobFailure(claim.failure_class, (f"It was stopped to be sent again: {claim.why}",))


def _suspect_failure(suspect: Suspect, reading: "Reading") -> JobFailure:
    named, found = first_failure(suspect.lines), suspect.explained
    asked_to_end = suspect.exit_code == _SIGTERM and not suspect.pod.disruption
    is_open = suspect.failure_class in _OPEN or asked_to_end
    evidence = [suspect.evidence, *(found.evidence[:1] if found and is_open else ())]
    if named is not None:
        evidence.append(f"torchrun names rank {named[0]} as the first that failed.")
    failure = JobFailure(
        failure_class=suspect.failure_class,
        evidence=(*evidence, reading.reason),
        rank=named[0] if named is not None else suspect.pod.rank,
        exit_code=(named and named[1]) or suspect.exit_code,
        pod=suspect.pod.name,
        node=suspect.pod.node,
        lines=suspect.lines[-LAST_LINES:],
        lost_another=suspect.lost_another,
    )
    failure = _with_explanation(failure, found, is_open=is_open)
    is_of_node = _OF_THE_NODE.search(suspect.evidence)
    return replace(failure, recovers=True, other_node=True) if is_of_node else failure


def _with_explanation(failure: JobFailure, found: LogExplanation | None, *, is_open: bool) -> JobFailure:
    """Return the failure with what its lines show; `is_open`: they may correct its class."""
    if found is None or not (is_open or found.klass == failure.failure_class):
        return failure
    klass, recovers = failure.failure_class, failure.recovers
    if is_open:
        klass = klass if found.klass is FailureClass.UNKNOWN else found.klass
        recovers = None if found.retry == "unknown" else found.retry != "no"
    return replace(
        failure,
        failure_class=klass,
        recovers=recovers,
        cause=found.cause,
        responsible=found.responsible,
        fix=found.fix or _FIXES.get(klass) or found.next_step,
        other_node=found.other_node,
    )


def _ray_failure(found: list[Suspect], reading: "Reading") -> JobFailure:
    """Return the failure of the command, which the submitter repeats, unless a pod has a cause of its own."""
    for suspect in found:
        is_own = not suspect.recovered and not suspect.consequence and not suspect.beside
        if suspect.failure_class not in _OPEN and is_own:
            return _suspect_failure(suspect, reading)
    code = next((int(m[1]) for line in reading.lines if (m := _RAY_CODE.search(line))), None)
    if unproven := not_proven_on_record(code, reading.lines):
        message = (unproven, reading.reason)
        return JobFailure(FailureClass.NOT_PROVEN, message, exit_code=code, lines=reading.lines[-LAST_LINES:])
    failure = JobFailure(
        FailureClass.UNKNOWN, (reading.reason,), exit_code=code, lines=reading.lines[-LAST_LINES:]
    )
    return _with_explanation(failure, explain_lines(reading.lines, code), is_open=True)


def first_failure(lines: Sequence[str]) -> tuple[int, int | None] | None:
    """Return rank and exit code of the process that torchrun's last report names below `Root Cause`.

    The code is as a shell reports it: 128 plus the signal's number if a signal ended it. None if there is no
    report.
    """
    starts = [n for n, line in enumerate(lines) if _ROOT_CAUSE.search(line)]
    if not starts:
        return None
    below = lines[starts[-1] :]
    rank = next((int(m[1]) for line in below if (m := _RANK.match(line))), None)
    code = next((int(m[1]) for line in below if (m := _EXIT_CODE.match(line))), None)
    if rank is None:
        return None
    return rank, 128 - code if code is not None and code < 0 else code
