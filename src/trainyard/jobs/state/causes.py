"""Determine why a job failed, from its status, its pods, and the lines that they printed."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from trainyard.errors import DamagedFileError, ExitCode
from trainyard.jobs.final_exit_codes import not_proven_on_record
from trainyard.jobs.state.job_state import JobFailure
from trainyard.jobs.state.pod_facts import LAST_LINES
from trainyard.jobs.state.pod_failures import Suspect, explain_lines, suspects
from trainyard.watch.failure_classes import FailureClass
from trainyard.watch.retry_decision import claim_from

if TYPE_CHECKING:
    from trainyard.jobs.job_kind import Observed
    from trainyard.jobs.state.pod_facts import History
    from trainyard.jobs.state.reading import Reading
    from trainyard.watch.failure_logs.failure_explanation import LogExplanation

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
_SIGTERM = 143
_ROOT_CAUSE = re.compile(r"Root Cause \(first observed failure\)")
_RANK = re.compile(r"^\s*rank\s*:\s*(\d{1,9})\b")
_EXIT_CODE = re.compile(r"^\s*exitcode\s*:\s*(-?\d{1,5})\b")
_SIGNALS = 128


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


def suspects_of(observed: "Observed", past: "History") -> list[Suspect]:
    """All failures of the job's pods, the cause first."""
    replaced = frozenset(uid for place, pods in past.pods.items() if place for _, uid in pods[:-1])
    return suspects(past.ended.values(), replaced=replaced, events=observed.events)


def _suspect_failure(suspect: Suspect, reading: "Reading") -> JobFailure:
    named = first_failure(suspect.lines)
    failure_class, retries = suspect.failure_class, None
    evidence = [suspect.evidence]
    by_lines = suspect.explained
    asked_to_end = suspect.exit_code == _SIGTERM and not suspect.pod.disruption
    if by_lines is not None and not (failure_class in _OPEN or asked_to_end):
        by_lines = by_lines if by_lines.klass == failure_class else None
    elif by_lines is not None:
        failure_class, retries = _class_and_retry(by_lines, failure_class)
        evidence.append(by_lines.evidence[0])
    if named is not None:
        evidence.append(f"torchrun names rank {named[0]} as the first that failed.")
    failure = JobFailure(
        failure_class=failure_class,
        evidence=(*evidence, reading.reason),
        recovers=retries,
        rank=named[0] if named is not None else suspect.pod.rank,
        exit_code=(named and named[1]) or suspect.exit_code,
        pod=suspect.pod.name,
        node=suspect.pod.node,
        lines=suspect.lines[-LAST_LINES:],
        lost_another=suspect.lost_another,
    )
    if _OF_THE_NODE.search(suspect.evidence):
        failure = replace(failure, recovers=True, other_node=True)
    return _with_advice(failure, by_lines)


def _class_and_retry(found: "LogExplanation", default: FailureClass) -> tuple[FailureClass, bool | None]:
    """Return the class that lines show, and whether a retry recovers; None if they do not say."""
    klass = default if found.klass is FailureClass.UNKNOWN else found.klass
    return klass, None if found.retry == "unknown" else found.retry != "no"


def _with_advice(failure: JobFailure, found: "LogExplanation | None") -> JobFailure:
    if found is None:
        return failure
    fix = found.fix or _FIXES.get(failure.failure_class) or found.next_step
    return replace(
        failure,
        cause=found.cause,
        responsible=found.responsible,
        fix=fix,
        other_node=failure.other_node or found.other_node,
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
    by_lines = explain_lines(reading.lines, code)
    failure_class, retries = FailureClass.UNKNOWN, None
    if by_lines is not None:
        failure_class, retries = _class_and_retry(by_lines, failure_class)
    evidence, lines = (reading.reason,), reading.lines[-LAST_LINES:]
    failure = JobFailure(failure_class, evidence, exit_code=code, lines=lines, recovers=retries)
    return _with_advice(failure, by_lines)


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
    return rank, _SIGNALS - code if code is not None and code < 0 else code
