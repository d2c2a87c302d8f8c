"""Compare a run's rows with the steps that had to be logged: none missing, none twice, every loss finite.

The rows are read one by one, so a million of them take no more memory than one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainyard.proof.recorded_events import Course
from trainyard.proof.recorded_facts import RecordedFacts, integer_or_none, is_finite_number, section_or_empty
from trainyard.run.run_settings import setting

_FIGURES = ("loss", "val_loss", "grad_norm")


@dataclass(frozen=True)
class Cadence:
    """The steps for which a row is due."""

    last: int
    """The step of the last row."""
    begins_after: int
    """The step the run started from."""
    free_until: int = 0
    """Up to this step, another configuration decided which steps were logged."""
    log_steps: int | None = None
    """Steps between two rows; None when not known, and then the steps only have to increase."""
    validation_steps: int | None = None
    validates: bool = False
    logs_last: bool = True
    """Whether the last step and a loss are due in a row; another program decides what it logs."""
    skipped: frozenset[int] = frozenset()
    """The steps whose update was skipped, according to the events; their loss may be absent."""

    def due_after(self, step: int) -> int:
        """Return the first step after `step` for which a row is due."""
        periods = [self.log_steps, self.validation_steps if self.validates else None]
        return min([self.last, *(step // every * every + every for every in periods if every)])

    def validation_due(self, step: int) -> bool:
        if not self.validates or self.log_steps is None or step <= self.free_until:
            return False
        every = self.validation_steps
        return step == self.last or (every is not None and step % every == 0)


def cadence_of(run: RecordedFacts, settings: Mapping[str, Any], course: Course) -> Cadence:
    """The cadence of a run whose plan has the number of steps; `settings` come from its `config.yaml`."""
    tokens = integer_or_none(section_or_empty(run, "data").get("validation_tokens")) or 0
    length = integer_or_none(setting(settings, "data.sequence_length")) or 0
    log_steps = _positive(setting(settings, "monitoring.log_steps"))
    return Cadence(
        last=integer_or_none(section_or_empty(run, "plan").get("steps")) or 0,
        begins_after=course.begins_after,
        skipped=course.skipped,
        free_until=_other_config_until(run),
        log_steps=log_steps,
        validation_steps=_positive(setting(settings, "training.validation_steps")),
        validates=tokens > length > 0 or "validation_loss" in section_or_empty(run, "outcome"),
    )


@dataclass
class RowsResult:
    """The result of reading the rows."""

    problem: str | None = None
    """The first problem found in them."""
    last_step: int | None = None
    counts_from_zero: bool = False
    figures: dict[str, Any] = field(default_factory=dict)
    """The values in the rows under the names that the outcome uses."""


def judge_rows(rows: Iterable[RecordedFacts | None], cadence: Cadence) -> RowsResult:
    """Read all rows up to the first wrong one; None stands for an unreadable line."""
    read = RowsResult()
    for row in rows:
        read.problem = _value_problem(row, read.last_step, cadence) or _place_problem(
            row or {}, read.last_step, cadence
        )
        if row is None or read.problem is not None:
            return read
        if "val_loss" in row:
            read.figures["validation_loss"] = row["val_loss"]
            read.figures["bits_per_byte"] = row.get("val_bits_per_byte")
        if "step" not in row:
            continue
        if read.last_step is None:
            read.counts_from_zero = row["step"] == 0 and "loss" in row
        read.last_step = row["step"]
        if "loss" in row:
            read.figures.setdefault("first_loss", row["loss"])
            read.figures["final_loss"] = row["loss"]
    read.problem = _end_problem(read.last_step, cadence)
    return read


def _value_problem(row: RecordedFacts | None, before: int | None, cadence: Cadence) -> str | None:
    if row is None:
        after = "at the beginning" if before is None else f"after step {before:,}"
        return f"metrics.jsonl has a line that cannot be read {after}"
    step = integer_or_none(row.get("step"))
    for key in _FIGURES:
        if key in row and not is_finite_number(row[key]):
            return f"{key} is {row[key]!r} at step {row.get('step', 'unknown')}"
    if row.get("nan_steps", 0) != 0:
        step_words = f"steps up to {row.get('step', 'unknown')}"
        return f"{row['nan_steps']} of the {step_words} had a loss that is not finite (metrics.jsonl)"
    if "step" not in row and not cadence.logs_last:  # figures of an epoch of another program
        return None
    if step is None:
        return f"metrics.jsonl has a row whose step is {row.get('step', 'not on record')!r}"
    if not cadence.logs_last:
        return None
    if (row.get("skipped") is True) != (step in cadence.skipped):
        return f"the row of step {step:,} and the events differ on whether its update was skipped"
    return None if "loss" in row or step in cadence.skipped else f"the row of step {step:,} has no loss"


def _place_problem(row: RecordedFacts, before: int | None, cadence: Cadence) -> str | None:
    if "step" not in row:
        return None
    step = integer_or_none(row.get("step")) or 0
    if step > cadence.last:
        return f"metrics.jsonl has a row of step {step:,}, but the run has {cadence.last:,} steps"
    if step == 0 and before is None and not cadence.logs_last and cadence.begins_after == 0:
        return None  # a program that counts from 0, or that validates before its first step
    if step < max(1, cadence.begins_after):
        return f"metrics.jsonl has a row of step {step:,}, before the run's first one"
    if before is not None and step <= before:
        return f"metrics.jsonl has a row of step {step:,} after that of step {before:,}"
    if cadence.validation_due(step) and "val_loss" not in row:
        return f"the row of step {step:,} has no validation loss, which was due"
    begun_with_a_row = before is None and step == cadence.begins_after
    if cadence.log_steps is None or step <= cadence.free_until or begun_with_a_row:
        return None
    due = cadence.due_after(max(before or 0, cadence.begins_after, cadence.free_until))
    if step > due:
        missing = f"metrics.jsonl has no row of step {due:,}, which should have been logged"
        return f"{missing}; the next is of {step:,}"
    return (
        f"metrics.jsonl has a row of step {step:,}, which should not have been logged" if step < due else None
    )


def _end_problem(last: int | None, cadence: Cadence) -> str | None:
    if last is None:
        return "metrics.jsonl has no row with a step and a loss"
    if last != cadence.last and cadence.logs_last:
        return f"the outcome says {cadence.last:,} steps, but the last loss on record is of step {last:,}"
    return None


def _other_config_until(run: RecordedFacts) -> int:
    history = run.get("history", [])
    segments = [part for part in history if isinstance(part, dict)] if isinstance(history, list) else []
    own = run.get("config_sha256")
    return max(
        (integer_or_none(s.get("until")) or 0 for s in segments if s.get("config_sha256") != own), default=0
    )


def _positive(value: object) -> int | None:
    number = integer_or_none(value)
    return number if number is not None and number > 0 else None
