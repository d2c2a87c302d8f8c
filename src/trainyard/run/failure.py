"""The class of a failure, and what is to be done about it: recorded with the outcome, read by every report.

    an error --failure_of--> Failure --to_json--> run.json, outcome.failure --read_failure--> next_command

A run that failed by its own configuration would fail again by the same command. Its record therefore names
the settings to change, and every command that is proposed for it has them. Pure: no file is read.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from trainyard.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    IncompatibleCheckpointError,
    RecordError,
    ServiceError,
    TrainyardError,
)
from trainyard.run.commands import changed_command, resume_command
from trainyard.run.directory import RunDirectory


class Kind(StrEnum):
    """Why a run failed."""

    NOT_FINITE = "nan"
    GPU_MEMORY = "oom-gpu"
    HOST_MEMORY = "oom-host"
    HANG = "hang"
    PROCESS_LOST = "process-lost"
    STORAGE = "storage"
    """A checkpoint or a record could not be written: a full disk, no permission."""
    DATA = "data-loader"
    CONFIGURATION = "configuration"
    SERVICE = "service"
    """An outside service, such as the source of a stream, refused."""
    BUG = "user-code"
    """An error nobody foresaw; the log has its traceback."""
    INTERRUPTED = "interrupted"
    UNKNOWN = "unknown"


_STEP = re.compile(r"Step (\d{1,18}): ")
"""How a message names the step that failed; `where_it_ended` says it in the headline."""
BY_CONFIGURATION = frozenset({Kind.NOT_FINITE, Kind.GPU_MEMORY, Kind.HOST_MEMORY})
"""What the same configuration would run into again."""
PROCESS_LOST = "The message of the process that ended stands in the log; once its cause is mended"
_MENDING = {
    Kind.STORAGE: "Once that is mended",
    Kind.DATA: "Once the data is mended",
    Kind.CONFIGURATION: "Once that is mended",
    Kind.SERVICE: "Once the service answers",
    Kind.BUG: "The log has the traceback; once its cause is mended",
}
"""What comes before the command that goes on, where the failure itself does not say."""


@dataclass(frozen=True)
class Failure:
    """A failure as `run.json` has it."""

    kind: str
    step: int | None = None
    """The step that failed, counted from 1; the last one that was done is `outcome.steps`."""
    mend: str = ""
    """What to do, as a sentence without its full stop."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Settings to change, by their dotted key; without them the same would happen again."""
    from_step: int | None = None
    """The checkpoint that a changed run can begin from; None is step 0."""

    def to_json(self) -> dict[str, Any]:
        facts = {
            "class": self.kind,
            "step": self.step,
            "mend": self.mend or None,
            "set": dict(self.changes) or None,
            "from_step": self.from_step,
        }
        return {key: value for key, value in facts.items() if value is not None}


def failure_of(error: BaseException) -> Failure:
    """What the error itself knows, else what its class says."""
    known = getattr(error, "failure", None)
    if isinstance(known, Failure):
        return known
    for classes, kind in _KINDS:
        if isinstance(error, classes):
            return Failure(kind, mend=_MENDING.get(kind, ""))
    return Failure(Kind.BUG, mend=_MENDING[Kind.BUG])


_KINDS: tuple[tuple[type[BaseException] | tuple[type[BaseException], ...], Kind], ...] = (
    ((CheckpointError, RecordError), Kind.STORAGE),
    (DataError, Kind.DATA),
    ((ConfigError, IncompatibleCheckpointError), Kind.CONFIGURATION),
    (ServiceError, Kind.SERVICE),
    (TrainyardError, Kind.UNKNOWN),
    (KeyboardInterrupt, Kind.INTERRUPTED),
)


def read_failure(outcome: Mapping[str, Any]) -> Failure | None:
    """The failure on record; None for another end, and for records that do not have it."""
    value = outcome.get("failure")
    if not isinstance(value, Mapping) or not isinstance(value.get("class"), str):
        return None
    changes, mend = value.get("set"), value.get("mend")
    return Failure(
        value["class"],
        _whole(value.get("step")),
        mend if isinstance(mend, str) else "",
        {str(key): new for key, new in changes.items()} if isinstance(changes, Mapping) else {},
        _whole(value.get("from_step")),
    )


def short_reason(outcome: Mapping[str, Any]) -> str:
    """Why a run ended, in one line, without the step that stands beside it anyway; empty if not known."""
    reason = outcome.get("reason")
    line = " ".join(reason.split()) if isinstance(reason, str) else ""
    return re.sub(r"^Stopped at step \d+ of \d+: ", "", _STEP.sub("", line))


def with_advice(reason: str, outcome: Mapping[str, Any]) -> str:
    """`reason` and, where the run failed, what to do: `out of main memory. Train on shorter sequences.`"""
    failure = read_failure(outcome)
    mend = failure.mend if failure is not None and failure.changes else ""
    return f"{reason.rstrip('.')}. {mend}." if reason and mend else reason


def where_it_ended(outcome: Mapping[str, Any], steps: int | None) -> str:
    """`in step 2 of 40` of a step that failed, else `at step 12 of 40`; empty when that is not known."""
    failure, done = read_failure(outcome), _whole(outcome.get("steps"))
    named = _STEP.match(str(outcome.get("reason", "")))
    step = failure.step if failure is not None and failure.step is not None else done
    if step == done and named:
        step = int(named[1])
    if step is None:
        return ""
    word = "at" if step == done else "in"
    return f"{word} step {step:,}" + (f" of {steps:,}" if steps else "")


def next_command(run: Mapping[str, Any], directory: Path) -> str:
    """What follows an end that is not a success: the same again, or with what has to change."""
    outcome = run.get("outcome")
    failure = read_failure(outcome) if isinstance(outcome, Mapping) else None
    return command_after(failure, directory, started_with=started_with(run))


def command_after(failure: Failure | None, directory: Path, *, started_with: Sequence[str]) -> str:
    """A changed run is one of its own, so that it can be proven: a run with two configurations cannot."""
    if failure is None or not failure.changes:
        return resume_command(directory, started_with=started_with)
    begin = None
    if failure.from_step is not None:
        begin = RunDirectory(directory).checkpoint(failure.from_step)
    return changed_command(directory, failure.changes, checkpoint=begin, started_with=started_with)


def started_with(run: Mapping[str, Any]) -> list[str]:
    """The words of `run.json` that say what started the run; none where a script did."""
    words = run.get("started_with")
    return [str(word) for word in words] if isinstance(words, list) else []


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
