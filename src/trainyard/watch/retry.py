"""Decide whether a job that failed is sent again: only what can heal, within a budget, and with progress.

    JobState + RetryRecord + newest checkpoint + jitter ──decide──> Retry | Stop

The record stands in the cluster object, so that it survives whoever watches. Ends that are no failure of the
job (a good checkpoint and exit code 75, a time limit) cost nothing as long as there is progress: a checkpoint
of a later step than after the attempt before. Nothing here talks to a cluster or reads a clock.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from trainyard.errors import DamagedFileError
from trainyard.jobs.node_avoidance import AvoidedNode
from trainyard.jobs.state.job_kinds import AUTO_RETRY, RETRY_RECORD, annotations_of
from trainyard.jobs.state.job_state import JobFailure, JobState, State
from trainyard.run.failure_classes import FailureClass

Json = Mapping[str, Any]
FIRST_PAUSE, LONGEST_PAUSE = 30.0, 600.0
"""Seconds before the first retry, and before any; it doubles with each retry without progress."""
_MOST_ATTEMPTS = 20
"""That a record remembers."""
_LONGEST_SIGNATURE = 160
_BY_NODE = frozenset((FailureClass.NODE_LOST, FailureClass.HARDWARE))
"""Classes whose cause is a node."""
_FREE = frozenset((FailureClass.STOPPED, FailureClass.TIME_LIMIT))
_STOPPED = 75
_DOUBTFUL = frozenset(
    (
        FailureClass.USER_CODE,
        FailureClass.UNKNOWN,
        FailureClass.NCCL_ERROR,
        FailureClass.NCCL_TIMEOUT,
        FailureClass.HANG,
        FailureClass.RENDEZVOUS_TIMEOUT,
    )
)
"""Classes that the other pods of a job seem to have when a node of it was lost."""


@dataclass(frozen=True)
class Attempt:
    """A job that failed, and was or is to be sent again."""

    job: str
    failure_class: str
    signature: str
    """The same for two failures of the same kind at the same place."""
    step: int | None
    """Of the newest checkpoint that was complete then; None where that is not known."""
    node: str = ""
    """Where the cause is the node."""


@dataclass(frozen=True)
class RetryRecord:
    """How much of the budget is spent, and on what."""

    allowed: int
    spent: int = 0
    attempts: tuple[Attempt, ...] = ()
    """The last ones, the newest last."""

    def to_json(self) -> str:
        """The text of the annotation."""
        return _text({"spent": self.spent, "attempts": [asdict(attempt) for attempt in self.attempts]})


@dataclass(frozen=True)
class Retry:
    """The job is sent again."""

    seconds: float
    """From now, at the earliest."""
    record: RetryRecord
    """As the new job has it."""
    avoided: tuple[AvoidedNode, ...]
    why: str


@dataclass(frozen=True)
class Stop:
    """The job is not sent again."""

    why: str


@dataclass(frozen=True)
class RetryClaim:
    """A retry that somebody decided on: any watcher carries it out, and none decides on another one."""

    next_name: str
    not_before: float
    """Unix seconds, by the clock of the cluster."""
    record: RetryRecord
    avoided: tuple[AvoidedNode, ...] = ()
    failure_class: str = FailureClass.UNKNOWN.value
    why: str = ""

    def to_json(self) -> str:
        """The text of the annotation."""
        return _text(asdict(self))


def record_of(job: Json) -> RetryRecord:
    """The record in the annotations of a job. Raises DamagedFileError for one that cannot be read."""
    notes = annotations_of(job)
    allowed = str(notes.get(AUTO_RETRY) or "0")
    if not (allowed.isascii() and allowed.isdecimal()):
        raise DamagedFileError(f"the annotation {AUTO_RETRY} is no number: {allowed[:60]!r}")
    text = notes.get(RETRY_RECORD)
    if text is None:
        return RetryRecord(int(allowed))
    try:
        return _record({"allowed": int(allowed), **json.loads(text)})
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise DamagedFileError(f"the annotation {RETRY_RECORD} cannot be read: {error}") from None


def claim_from(text: str) -> RetryClaim:
    """The claim that `to_json` wrote. Raises DamagedFileError for anything else."""
    try:
        given = json.loads(text)
        avoided = tuple(AvoidedNode(str(n["name"]), n["strictly"] is True) for n in given["avoided"])
        return RetryClaim(
            next_name=_text_of(given["next_name"]),
            not_before=float(given["not_before"]),
            record=_record(given["record"]),
            avoided=avoided,
            failure_class=FailureClass(given["failure_class"]).value,
            why=str(given["why"]),
        )
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise DamagedFileError(f"the claim of a retry cannot be read: {error}") from None


def decide(state: JobState, record: RetryRecord, *, step: int | None, jitter: float) -> Retry | Stop:
    """Whether a job that has ended in this state is sent again.

    `step` is that of the newest complete checkpoint, None if unknown; `jitter` is from 0 to 1.
    """
    failure = state.failure
    if state.state is not State.FAILED or failure is None:
        return Stop(f"it has ended as {state.state}")
    if not failure.retryable:
        return Stop(f"no retry heals {failure.failure_class.value}")
    this = _attempt(state, failure, step)
    before = record.attempts[-1] if record.attempts else None
    progress = _is_progress(before, this)
    if before is not None and before.signature == this.signature and not progress:
        return Stop(f"it failed in the same way twice in a row without progress: {this.signature}")
    free = progress and (failure.failure_class in _FREE or failure.exit_code == _STOPPED)
    if not free and record.spent >= record.allowed:
        return Stop(f"{record.spent} of {record.allowed} retries are spent")
    attempts = (*record.attempts, this)
    spent = record.spent if free else record.spent + 1
    return Retry(
        seconds=pause_before(_without_progress(attempts), jitter),
        record=RetryRecord(record.allowed, spent, attempts[-_MOST_ATTEMPTS:]),
        avoided=_avoided(attempts),
        why=f"{failure.failure_class.value} can heal, " + _from(step),
    )


def pause_before(failures: int, jitter: float) -> float:
    """Seconds to wait after so many failures in a row without progress, at least one."""
    longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(failures - 1, 20))
    return longest * (0.5 + 0.5 * min(max(jitter, 0.0), 1.0))


def with_lost_nodes(state: JobState, lost: Mapping[str, str]) -> JobState:
    """The state of a job that failed while nodes of it were lost (node -> what is wrong with it).

    The pods that were left see only that a connection broke, which their own logs cannot explain.
    """
    failure = state.failure
    if failure is None or not lost or failure.failure_class not in _DOUBTFUL:
        return state
    node, why = min(lost.items())
    evidence = (f"the node {node} of a pod of it {why}", *failure.evidence)
    named = replace(
        failure, failure_class=FailureClass.NODE_LOST, evidence=evidence, node=node, heals=None, pod=""
    )
    return replace(state, failure=named, reason=evidence[0])


def given_up(state: JobState) -> JobState:
    """The state of a job that waits for a lost node, judged as failed: its other pods are to be stopped."""
    waiting = state.waiting
    if waiting is None:
        return state
    failure = JobFailure(waiting.failure_class, (waiting.evidence,), node=waiting.node)
    return replace(state, state=State.FAILED, failure=failure, reason=waiting.evidence)


def signature_of(job: str, failure: JobFailure) -> str:
    """The class, the exit code, the node where that is the cause, and the words without names and numbers."""
    by_node = failure.failure_class in _BY_NODE
    told = len(failure.evidence) > 2 and not by_node
    said = failure.evidence[1] if told else (failure.evidence or ("",))[0]
    for name in filter(None, (failure.pod, failure.node, job)):
        said = re.sub(rf"\b{re.escape(name)}\b", "*", said)
    said = re.sub(r"0x[0-9a-f]+|\d+", "#", said)
    code = "" if failure.exit_code is None else f" exit {failure.exit_code}"
    place = f" on {failure.node}" if by_node and failure.node else ""
    return f"{failure.failure_class.value}{code}{place}: {' '.join(said.split())}"[:_LONGEST_SIGNATURE]


def _attempt(state: JobState, failure: JobFailure, step: int | None) -> Attempt:
    node = failure.node if failure.failure_class in _BY_NODE else ""
    return Attempt(state.job, failure.failure_class.value, signature_of(state.job, failure), step, node)


def _is_progress(before: Attempt | None, this: Attempt) -> bool:
    if this.step is None:
        return False
    return before is None or before.step is None or this.step > before.step


def _without_progress(attempts: tuple[Attempt, ...]) -> int:
    """The failures at the end that no progress lies between."""
    count = 1
    for before, this in zip(reversed(attempts[:-1]), reversed(attempts), strict=False):
        if _is_progress(before, this):
            break
        count += 1
    return count


def _avoided(attempts: tuple[Attempt, ...]) -> tuple[AvoidedNode, ...]:
    failed = Counter(attempt.node for attempt in attempts if attempt.node)
    broken = {a.node for a in attempts if a.failure_class == FailureClass.HARDWARE.value}
    return tuple(AvoidedNode(node, node in broken or count > 1) for node, count in sorted(failed.items()))


def _from(step: int | None) -> str:
    return "and it begins anew or from its newest checkpoint" if step is None else f"from step {step:,}"


def _record(given: Any) -> RetryRecord:
    attempts = tuple(
        Attempt(
            job=_text_of(each["job"]),
            failure_class=_text_of(each["failure_class"]),
            signature=_text_of(each["signature"]),
            step=None if each["step"] is None else _count(each["step"]),
            node=str(each.get("node") or ""),
        )
        for each in given["attempts"]
    )
    return RetryRecord(_count(given["allowed"]), _count(given["spent"]), attempts)


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{str(value)[:60]!r} is not a count")
    return value


def _text_of(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{str(value)[:60]!r} is not a text")
    return value


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
