"""Classify a failure and suggest what to do; it is recorded with the outcome, and every report reads it.

    an error --failure_of--> Failure --to_json--> run.json, outcome.failure --read_failure--> next_command

A run that failed because of its configuration would fail again with the same command. Its record therefore
names the settings to change, and every suggested command contains them. Pure: no file is read.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from trainyard.config.registries import is_program_run
from trainyard.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    IncompatibleCheckpointError,
    RecordError,
    ServiceError,
    TrainyardError,
)
from trainyard.run.directory import RunDirectory
from trainyard.run.suggested_commands import changed_command, resume_command, trainyard_command


class FailureKind(StrEnum):
    """Kind of failure that a run records about itself, by its exception.

    `FailureClass` of the room watch classifies every end that a report knows, of pods and machines too.
    """

    NOT_FINITE = "nan"
    GPU_MEMORY = "oom-gpu"
    HOST_MEMORY = "oom-host"
    HANG = "hang"
    PROCESS_LOST = "process-lost"
    TCP_FALLBACK = "tcp-fallback"
    """TCP joined the machines where a faster network was expected."""
    STORAGE = "storage"
    """A checkpoint or a record could not be written: a full disk, no permission."""
    DATA = "data-loader"
    CONFIGURATION = "configuration"
    SERVICE = "service"
    """An outside service, such as the source of a stream, refused."""
    BUG = "user-code"
    """An unexpected error; the log has its traceback."""
    INTERRUPTED = "interrupted"
    UNKNOWN = "unknown"


_STEP = re.compile(r"Step (\d{1,18}): ")
"""The format in which a message names the failed step; `where_it_ended` puts it into the headline."""
# Where neither a fix nor the exception is known: `trainyard explain` shows the lines around the error.
_UNKNOWN = "find the error that its output shows"
PROCESS_LOST = "The log has the message of the process that ended; once its cause is fixed"
_ANEW = "set program.resume, or training begins at step 1, unless the program itself resumes"
_LAST_OWN_CODE = 127
"""The last exit code of a program that no signal ended; a shell gives 128 + N."""
_ADVICE = {
    FailureKind.STORAGE: "Once that is fixed",
    FailureKind.DATA: "Once the data is fixed",
    FailureKind.CONFIGURATION: "Once that is fixed",
    FailureKind.SERVICE: "Once the service answers",
    FailureKind.BUG: "The log has the traceback; once its cause is fixed",
}
"""Text before the command that resumes, if the failure itself has no advice."""


_KEYS = {"kind": "class", "changes": "set"}
"""The keys of a record whose names differ from the fields."""


@dataclass(frozen=True)
class Failure:
    """A failure as recorded in `run.json`."""

    kind: str
    step: int | None = None
    """The step that failed, counted from 1; `outcome.steps` is the last one that completed."""
    fix: str = ""
    """Advice, as a sentence without its full stop."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Settings to change, by their dotted key; without them the run would fail again."""
    from_step: int | None = None
    """The checkpoint from which a changed run can start; None is step 0."""
    error: str = ""
    """The root error of another program, verbatim."""
    retry: str = ""
    """Whether a retry recovers from it: `yes`, `no`, `other` (on another node) or `unknown`."""

    def to_json(self) -> dict[str, Any]:
        facts = {_KEYS.get(name, name): value for name, value in vars(self).items()}
        return {key: value for key, value in facts.items() if value not in (None, "", {})}


def failure_of(error: BaseException) -> Failure:
    """Return the error's own description of the failure, else one by its class."""
    known = getattr(error, "failure", None)
    if isinstance(known, Failure):
        return known
    for classes, kind in _KINDS:
        if isinstance(error, classes):
            return Failure(kind, fix=_ADVICE.get(kind, ""))
    return Failure(FailureKind.BUG, fix=_ADVICE[FailureKind.BUG])


_KINDS: tuple[tuple[type[BaseException] | tuple[type[BaseException], ...], FailureKind], ...] = (
    ((CheckpointError, RecordError), FailureKind.STORAGE),
    (DataError, FailureKind.DATA),
    ((ConfigError, IncompatibleCheckpointError), FailureKind.CONFIGURATION),
    (ServiceError, FailureKind.SERVICE),
    (TrainyardError, FailureKind.UNKNOWN),
    (KeyboardInterrupt, FailureKind.INTERRUPTED),
)


def read_failure(outcome: Mapping[str, Any]) -> Failure | None:
    """Return the recorded failure; None if the run ended otherwise, or the record has none."""
    value = outcome.get("failure")
    if not isinstance(value, Mapping) or not isinstance(value.get("class"), str):
        return None
    changes, fix = value.get("set"), value.get("fix")
    return Failure(
        value["class"],
        _integer_or_none(value.get("step")),
        fix if isinstance(fix, str) else "",
        {str(key): new for key, new in changes.items()} if isinstance(changes, Mapping) else {},
        _integer_or_none(value.get("from_step")),
        *(text if isinstance(text := value.get(key), str) else "" for key in ("error", "retry")),
    )


def short_reason(outcome: Mapping[str, Any]) -> str:
    """Return one line that says why a run ended, without the step; empty if unknown."""
    reason = outcome.get("reason")
    line = " ".join(reason.split()) if isinstance(reason, str) else ""
    return re.sub(r"^Stopped at step \d+ of \d+: ", "", _STEP.sub("", line))


def with_advice(reason: str, outcome: Mapping[str, Any]) -> str:
    """Return `reason` and, after a failure, the advice: `out of main memory. Train on shorter sequences.`"""
    failure = read_failure(outcome)
    fix = failure.fix if failure is not None and failure.changes else ""
    return f"{reason.rstrip('.')}. {fix}." if reason and fix else reason


def where_it_ended(outcome: Mapping[str, Any], steps: int | None) -> str:
    """Return `in step 2 of 40` for a step that failed, else `at step 12 of 40`; empty if unknown."""
    failure, done = read_failure(outcome), _integer_or_none(outcome.get("steps"))
    named = _STEP.match(str(outcome.get("reason", "")))
    step = failure.step if failure is not None and failure.step is not None else done
    if step == done and named:
        step = int(named[1])
    if step is None:
        return ""
    word = "at" if step == done else "in"
    return f"{word} step {step:,}" + (f" of {steps:,}" if steps else "")


def next_step(run: Mapping[str, Any], directory: Path) -> str:
    """Return what to do after an unsuccessful end: `next_command`, after the change that it needs."""
    outcome, command, program = run.get("outcome"), next_command(run, directory), run.get("program")
    if not isinstance(program, Mapping):
        return command
    steps = plan.get("steps") if isinstance(plan := run.get("plan"), Mapping) else None
    change = _needed_change(outcome, steps) if isinstance(outcome, Mapping) else ""
    change = change or ("" if program.get("resume") else _ANEW)
    explain = trainyard_command(f"explain {shlex.quote(str(directory))}")
    return explain if change == _UNKNOWN else f"{change}; then: {command}" if change else command


def _needed_change(outcome: Mapping[str, Any], planned: object) -> str:
    """Return what to change in a program that ended by itself; empty if something else ended it."""
    code, failure, error = outcome.get("program_exit_code"), read_failure(outcome), outcome.get("exception")
    is_own = outcome.get("status") == "failed" and isinstance(code, int) and 0 <= code <= _LAST_OWN_CODE
    if not is_own or outcome.get("stopped_by") is not None or (failure is not None and failure.changes):
        return ""
    if failure is not None and (failure.fix or failure.retry == "yes"):
        return failure.fix if failure.retry != "yes" else ""
    if isinstance(error, Mapping) and error.get("type"):
        return f"fix the {error['type']}" + (f" in {error['place']}" if error.get("place") else "")
    if code:
        return _UNKNOWN
    done, total = _integer_or_none(outcome.get("steps")), _integer_or_none(planned)
    if not done:
        return "let the program report its loss: print it, or name its file in program.metrics"
    if total is not None and done < total:
        return f"let the program do {total:,} steps, or state in program.steps how many it does"
    return "change what the program does, as stated above"


def next_command(run: Mapping[str, Any], directory: Path) -> str:
    """Return the command to run after an unsuccessful end: the same again, or with changed settings."""
    outcome = run.get("outcome")
    failure = read_failure(outcome) if isinstance(outcome, Mapping) else None
    return command_after(failure, directory, command_line=command_line_of(run))


def command_after(failure: Failure | None, directory: Path, *, command_line: Sequence[str]) -> str:
    """Return the command to run after `failure`.

    A changed run is a new run, because a run with two configurations cannot be proven.
    """
    if failure is None or not failure.changes:
        return resume_command(directory, command_line=command_line)
    begin = None
    if failure.from_step is not None:
        begin = RunDirectory(directory).checkpoint(failure.from_step)
    return changed_command(directory, failure.changes, checkpoint=begin, command_line=command_line)


def command_line_of(run: Mapping[str, Any]) -> list[str]:
    """Return the command words in `run.json` that started the run; without them those of its kind."""
    usual = ["trainyard", "run"] if is_program_run(run) else []
    words = run.get("command_line", usual)
    return [str(word) for word in words] if isinstance(words, list) else usual


def _integer_or_none(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
