"""Decide whether a failed job is sent again: a retry must be able to recover from it, within a budget.

    JobState + RetryRecord + newest checkpoint + jitter ──decide──> Retry | Stop

The record is an annotation of the cluster object, so that it outlives the process that watches the job. Some
ends are not failures: a good checkpoint with exit code 75, or a time limit. They cost nothing as long as
there is progress, which means a checkpoint of a later step than after the previous attempt. Nothing here
talks to a cluster or reads a clock.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from trainyard.errors import DamagedFileError, ExitCode
from trainyard.run.record_models import Count, Name, Number, Text, Truth, validate_record
from trainyard.watch.failure_classes import FailureClass

if TYPE_CHECKING:
    from trainyard.jobs.state.job_state import JobFailure, JobState

FIRST_PAUSE, LONGEST_PAUSE = 30.0, 600.0
"""The longest pause in seconds before the first retry, and before any; each failure without progress
doubles it, and jitter shortens it by up to half."""
_MOST_ATTEMPTS = 20
"""The number of failures that a record remembers."""
_LONGEST_SIGNATURE = 160
_BY_NODE = frozenset((FailureClass.NODE_LOST, FailureClass.HARDWARE))
"""Classes whose cause is a node."""
_FREE = frozenset((FailureClass.STOPPED, FailureClass.TIME_LIMIT))
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
"""Classes that the remaining pods of a job show when one of its nodes was lost."""


@dataclass(frozen=True)
class Attempt:
    """A failure of a job, after which it was or will be sent again."""

    job: Name
    failure_class: FailureClass
    signature: Name
    """Equal for two failures of the same kind at the same place."""
    step: Count | None
    """The step of the newest complete checkpoint at that time; None if unknown."""
    node: Text = ""
    """The node, if it is the cause."""


@dataclass(frozen=True)
class RetryRecord:
    """The budget of retries, how much of it is spent, and on which failures."""

    allowed: Count
    spent: Count = 0
    attempts: tuple[Attempt, ...] = ()
    """The last failures, the newest last."""

    def to_json(self) -> str:
        """Return the text of the annotation."""
        return _text({"spent": self.spent, "attempts": [asdict(attempt) for attempt in self.attempts]})


@dataclass(frozen=True, order=True)
class AvoidedNode:
    """A node that a retry avoids."""

    name: Name
    strictly: Truth
    """True: no pod may run there; False: other nodes are preferred."""


@dataclass(frozen=True)
class Retry:
    """The job is sent again."""

    seconds: float
    """Seconds to wait before the job is sent."""
    record: RetryRecord
    """The record of the new job."""
    avoided: tuple[AvoidedNode, ...]
    why: str


@dataclass(frozen=True)
class Stop:
    """The job is not sent again."""

    why: str


@dataclass(frozen=True)
class RetryClaim:
    """A retry that was decided on. Any watcher may carry it out; none decides on another one meanwhile."""

    next_name: Name
    not_before: Number
    """Unix seconds, by the clock of the cluster."""
    record: RetryRecord
    avoided: tuple[AvoidedNode, ...] = ()
    failure_class: FailureClass = FailureClass.UNKNOWN
    why: Text = ""

    def to_json(self) -> str:
        """Return the text of the annotation."""
        return _text(asdict(self))


def record_from(text: str, *, allowed: int, annotation: str) -> RetryRecord:
    """Return the record that `to_json` wrote. Raises DamagedFileError, which names the annotation."""
    try:
        return validate_record(RetryRecord, {**json.loads(text), "allowed": allowed})
    except (TypeError, ValueError) as error:
        raise DamagedFileError(f"the annotation {annotation} cannot be read: {error}") from None


def claim_from(text: str) -> RetryClaim:
    """Return the claim that `to_json` wrote. Raises DamagedFileError for anything else."""
    try:
        return validate_record(RetryClaim, json.loads(text))
    except ValueError as error:
        raise DamagedFileError(f"the claim of a retry cannot be read: {error}") from None


def decide_retry(state: "JobState", record: RetryRecord, *, step: int | None, jitter: float) -> Retry | Stop:
    """Decide whether a job that ended in this state is sent again.

    `step` is that of the newest complete checkpoint, None if unknown; `jitter` is from 0 to 1.
    """
    failure = state.failure
    if not state.has_failed or failure is None:
        return Stop(f"it has ended as {state.state}")
    node = failure.node if _is_by_node(failure) else ""
    this = Attempt(state.job, failure.failure_class, signature_of(state.job, failure), step, node)
    before = record.attempts[-1] if record.attempts else None
    progress = _is_progress(before, this)
    # A wrong no costs the run, a wrong yes one start: the second equal failure without progress stops.
    if not failure.retryable and not (failure.is_unknown and progress):
        new = " without a new checkpoint" if failure.is_unknown else ""
        return Stop(f"no retry recovers from {failure.failure_class.value}{new}")
    if before is not None and before.signature == this.signature and not progress:
        return Stop(f"it failed in the same way twice in a row without progress: {this.signature}")
    free = progress and (failure.failure_class in _FREE or failure.exit_code == ExitCode.STOPPED)
    if not free and record.spent >= record.allowed:
        return Stop(f"{record.spent} of {record.allowed} retries are spent")
    unknown = "and it starts again from its newest checkpoint, or from the beginning"
    start = unknown if step is None else f"from step {step:,}"
    can = "may" if failure.is_unknown else "can"
    attempts = (*record.attempts, this)
    spent = record.spent if free else record.spent + 1
    return Retry(
        seconds=pause_before(_without_progress(attempts), jitter),
        record=RetryRecord(record.allowed, spent, attempts[-_MOST_ATTEMPTS:]),
        avoided=_nodes_to_avoid(attempts),
        why=f"a retry {can} recover from {failure.failure_class.value}, {start}",
    )


def pause_before(failures: int, jitter: float) -> float:
    """Return the seconds to wait after `failures` (1 or more) in a row without progress."""
    longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(failures - 1, 20))
    return longest * (0.5 + 0.5 * min(max(jitter, 0.0), 1.0))


def may_be_a_lost_node(state: "JobState") -> bool:
    """Return whether the failure is of a kind that a lost node of another pod explains."""
    return state.failure is not None and state.failure.failure_class in _DOUBTFUL


def with_lost_nodes(state: "JobState", lost: Mapping[str, str]) -> "JobState":
    """Return the state of a failed job with the loss of its nodes as the cause (`lost`: node -> problem).

    The remaining pods only see that a connection broke, and their logs cannot explain why.
    """
    failure = state.failure
    if failure is None or not lost or not may_be_a_lost_node(state):
        return state
    node, why = min(lost.items())
    evidence = (f"the node {node} of one of its pods {why}", *failure.evidence)
    named = replace(
        failure, failure_class=FailureClass.NODE_LOST, evidence=evidence, node=node, recovers=None, pod=""
    )
    return replace(state, failure=named, reason=evidence[0])


def signature_of(job: str, failure: "JobFailure") -> str:
    """Return class, exit code, the node if it is the cause, and the message without names and numbers."""
    by_node = _is_by_node(failure)
    has_message = len(failure.evidence) > 2 and not by_node
    message = failure.evidence[1] if has_message else (failure.evidence or ("",))[0]
    for name in filter(None, (failure.pod, failure.node, job)):
        message = re.sub(rf"\b{re.escape(name)}\b", "*", message)
    message = re.sub(r"0x[0-9a-f]+|\d+", "#", message)
    code = "" if failure.exit_code is None else f" exit {failure.exit_code}"
    place = f" on {failure.node}" if by_node and failure.node else ""
    return f"{failure.failure_class.value}{code}{place}: {' '.join(message.split())}"[:_LONGEST_SIGNATURE]


def _is_by_node(failure: "JobFailure") -> bool:
    return failure.other_node or failure.failure_class in _BY_NODE


def _is_progress(before: Attempt | None, this: Attempt) -> bool:
    if this.step is None:
        return False
    return before is None or before.step is None or this.step > before.step


def _without_progress(attempts: tuple[Attempt, ...]) -> int:
    """Return the number of failures since the last progress."""
    count = 1
    for before, this in zip(reversed(attempts[:-1]), reversed(attempts), strict=False):
        if _is_progress(before, this):
            break
        count += 1
    return count


def _nodes_to_avoid(attempts: tuple[Attempt, ...]) -> tuple[AvoidedNode, ...]:
    failed = Counter(attempt.node for attempt in attempts if attempt.node)
    broken = {a.node for a in attempts if a.failure_class is FailureClass.HARDWARE}
    return tuple(AvoidedNode(node, node in broken or count > 1) for node, count in sorted(failed.items()))


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
