"""Why a job has failed: its status, its pods, and what they printed, put together into one cause."""

import json
import re
from collections.abc import Sequence

from trainyard.jobs.state.first_failure import first_failure
from trainyard.jobs.state.job_state import JobFailure
from trainyard.jobs.state.observed import History, Observed
from trainyard.jobs.state.pod_facts import LAST_LINES
from trainyard.jobs.state.pod_failures import Suspect, suspects
from trainyard.jobs.state.reading import Reading
from trainyard.run.failure_classes import FailureClass
from trainyard.run.failure_logs.log_explanation import LogExplanation, explain, log_of

_OPEN = frozenset(
    (FailureClass.USER_CODE, FailureClass.UNKNOWN, FailureClass.HANG, FailureClass.CONFIGURATION)
)
"""Classes that an exit code suggests, and that the lines of the log may correct."""
_RAY_CODE = re.compile(r"exit code (\d{1,3})\b")
_SIGTERM = 143
_NO_ANSWER = frozenset((FailureClass.UNKNOWN, FailureClass.FINISHED, FailureClass.STOPPED))


def failure_of_job(observed: Observed, past: History, reading: Reading) -> JobFailure:
    """The cause of a failure that the status of the job, or a pod of it, tells of."""
    found = suspects(past.ended.values(), replaced=replaced_uids(past), events=observed.events)
    if reading.failure_class is not None:
        return JobFailure(reading.failure_class, (reading.reason,), lines=reading.lines[-LAST_LINES:])
    if observed.kind.name in ("rayjob", "raycluster"):
        return _of_ray(found, reading)
    if not found:
        return JobFailure(FailureClass.UNKNOWN, (reading.reason, "No pod of it is left that says why."))
    return _of_suspect(found[0], reading)


def failure_of_claim(text: str) -> JobFailure:
    """The failure of a job that a watcher stopped to send it again, as its claim of the retry says it."""
    try:
        given = json.loads(text)
        failure_class, why = FailureClass(given["failure_class"]), str(given["why"])
    except (ValueError, KeyError, TypeError):
        failure_class, why = FailureClass.UNKNOWN, "the claim of the retry cannot be read"
    return JobFailure(failure_class, (f"It was stopped to be sent again: {why}",))


def replaced_uids(past: History) -> frozenset[str]:
    """The pods that were made anew under the same name."""
    return frozenset(uid for place, pods in past.pods.items() if place for _, uid in pods[:-1])


def _of_suspect(suspect: Suspect, reading: Reading) -> JobFailure:
    named = first_failure(suspect.lines)
    failure_class, heals = suspect.failure_class, None
    evidence = [suspect.evidence]
    by_lines = explained(suspect.lines, suspect.exit_code)
    asked_to_end = suspect.exit_code == _SIGTERM and not suspect.pod.disruption
    if by_lines is not None and (failure_class in _OPEN or asked_to_end):
        failure_class, heals = by_lines.klass, by_lines.retryable
        evidence.append(by_lines.evidence[0])
    if named is not None:
        evidence.append(f"torchrun names rank {named.rank} as the first that failed.")
    return JobFailure(
        failure_class=failure_class,
        evidence=(*evidence, reading.reason),
        heals=heals,
        rank=named.rank if named is not None else suspect.pod.rank,
        exit_code=named.exit_code if named is not None and named.exit_code else suspect.exit_code,
        pod=suspect.pod.name,
        node=suspect.pod.node,
        lines=suspect.lines[-LAST_LINES:],
    )


def _of_ray(found: list[Suspect], reading: Reading) -> JobFailure:
    """The end of the command, unless a pod ended by a cause of its own; the submitter only repeats it."""
    for suspect in found:
        if suspect.failure_class not in _OPEN and not suspect.healed and not suspect.consequence:
            return _of_suspect(suspect, reading)
    code = next((int(m[1]) for line in reading.lines if (m := _RAY_CODE.search(line))), None)
    by_lines = explained(reading.lines, code)
    default = FailureClass.USER_CODE if code not in (None, 0) else FailureClass.UNKNOWN
    return JobFailure(
        by_lines.klass if by_lines is not None else default,
        (reading.reason,),
        exit_code=code,
        lines=reading.lines[-LAST_LINES:],
        heals=by_lines.retryable if by_lines is not None else None,
    )


def explained(lines: Sequence[str], exit_code: int | None) -> LogExplanation | None:
    """The failure that the last lines of a pod tell of; None where they do not say it for certain."""
    found = explain([log_of("last lines", "\n".join(lines))], exit_code) if lines else None
    return None if found is None or found.klass in _NO_ANSWER else found
