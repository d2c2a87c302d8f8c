"""Merge the rows of a program's log with those of its files: one row a step, in the order of the steps.

A row waits until a later step is seen, so that it has its validation loss and the figures of a file. Figures
of a file win over printed ones, which are rounded. A step with another loss than before was trained again,
and is returned again; `programs.metric_rows` decides what it replaces.
"""

import math
from collections.abc import Iterable
from typing import Any

from trainyard.programs.metrics.log_reader import LogReader
from trainyard.programs.metrics.metric_files import MetricFiles
from trainyard.programs.step_times import StepTimes
from trainyard.run.records import Row

_FLOAT32 = 1e-5
"""Figures of two files are equal if they differ by less: TensorBoard keeps 32 bits."""
_LEAST_ERROR = 0.45
"""A step is computed from a printed epoch only if its rounding error is less than this, in steps."""


class ProgramMetrics:
    """The rows of one start of a program."""

    def __init__(self, log: LogReader, files: MetricFiles) -> None:
        self.log, self.files = log, files
        self.times = StepTimes()
        """When the rows were printed; those of files have no known time, because files are written late."""
        self._open: dict[int, _Step] = {}
        self._done: dict[int, _Step] = {}
        self._newest = 0
        self._rows_without_step: list[Row] = []
        self._steps_per_epoch: float | None = None
        self._newest_epoch = 0.0
        self._have_files_losses = False

    @property
    def steps_asked(self) -> int | None:
        """The steps of the complete run, as a file or the log states them."""
        return self.files.steps_asked or self.log.steps_asked

    @property
    def rows_without_step(self) -> tuple[Row, ...]:
        """Rows whose step is unknown. A fault in one of them is a fault of the run, too."""
        return tuple(self._rows_without_step)

    def rows(self) -> list[Row]:
        """Return every row of this start with its best figures, each step once, even if returned before.

        A file that is written late, such as trainer_state.json, has the exact figures of rows that were
        returned as printed.
        """
        steps = {**self._done, **self._open}
        return [steps[step].best() for step in sorted(steps)]

    def take(self, text: str, now: float | None = None) -> list[Row]:
        """Return the rows that are complete after the program printed `text`, `now` in Unix seconds.

        Rows of several steps that come at once were buffered by the program: their times are not known.
        """
        rows = self.log.take(text)
        has_one_step = len({row.get("step") for row in rows}) == 1
        return self._add_printed(rows, time=now if has_one_step else None) + self._release()

    def poll(self) -> list[Row]:
        """Read the files; return the rows that are complete, and returned ones with figures that are new.

        A row that is returned again keeps the figures it had.
        """
        return self._add_filed(self.files.poll()) + self._release()

    def close(self) -> list[Row]:
        """Return the rows that were still open when the program ended."""
        rows = self._add_filed(self.files.poll(at_end=True))
        last = self.log.close()
        if not (self._have_files_losses and self.log.forms_seen in (("lightning",), ("epochs",))):
            rows += self._add_printed(last)
        rows += self._place()
        return rows + self._release(at_end=True)

    def describe(self) -> str:
        """Return a text for people if there is no row: the known forms, and what was printed."""
        lines = [self.log.describe(), *self.files.notes]
        if count := len(self._rows_without_step):
            lines = [f"{count:,} rows have no step: print a step in each, or write a file that has it."]
            lines += self.files.notes
        return "\n".join(lines)

    def _add_printed(self, rows: Iterable[Row], *, time: float | None = None) -> list[Row]:
        ready: list[Row] = []
        for row in rows:
            if "step" not in row:
                self._rows_without_step.append(row)
                continue
            before = self._open.get(row["step"])
            if before is None and (done := self._done.get(row["step"])):
                if not _has_other_loss(done.printed, row, rounding=0.0):
                    ready += done.with_news(row, is_printed=True)
                    continue
                ready += self._release(at_end=True)
                self._forget_from(row["step"])
            self._step(row["step"], time).add(row, is_printed=True)
        return ready

    def _add_filed(self, rows: Iterable[Row]) -> list[Row]:
        ready: list[Row] = []
        for row in rows:
            step = row["step"]
            self._have_files_losses = self._have_files_losses or "loss" in row
            epoch = row.get("epoch")
            if "loss" in row and isinstance(epoch, int | float) and epoch > 0 and step > 0:
                self._steps_per_epoch = step / epoch
                self._newest_epoch = max(self._newest_epoch, float(epoch))
            if step not in self._open and (done := self._done.get(step)):
                if "loss" in done.printed or not _has_other_loss(done.filed, row, rounding=_FLOAT32):
                    ready += done.with_news(row, is_printed=False)
                    continue
                ready += self._release(at_end=True)  # this file alone shows that the step was trained again
                self._forget_from(step)
            self._step(step).add(row, is_printed=False)
        return ready + self._place()

    def _step(self, step: int, time: float | None = None) -> "_Step":
        if step not in self._open:
            self._open[step] = _Step(step)
            self.times.note(step, time)
        self._newest = max(self._newest, step)
        return self._open[step]

    def _forget_from(self, step: int) -> None:
        self._done = {known: row for known, row in self._done.items() if known < step}
        self._newest = step

    def _release(self, *, at_end: bool = False) -> list[Row]:
        """Return the open rows of steps before the newest, or all."""
        if len(self._open) < 2 and not at_end:
            return []
        rows = []
        for step in sorted(self._open):
            if at_end or step < self._newest:
                self._done[step] = self._open.pop(step)
                rows.append(self._done[step].returned_row())
        return rows

    def _place(self) -> list[Row]:
        """Compute the step of rows without one from their epoch, if the steps per epoch are known."""
        if not self._rows_without_step:
            return []
        per_epoch = self._steps_per_epoch or self.log.steps_per_epoch
        digits = max(map(_decimals, self._rows_without_step))
        placed: list[Row] = []
        left: list[Row] = []
        for row in self._rows_without_step:
            epoch = row.get("epoch")
            if not isinstance(epoch, int | float) or epoch <= 0 or per_epoch is None:
                left.append(row)
            elif epoch > self._newest_epoch:  # else the file has this row
                is_exact = per_epoch * _epoch_error(epoch, digits) < _LEAST_ERROR
                if is_exact and (step := round(epoch * per_epoch)):
                    placed.append({**row, "step": step})
                else:
                    left.append(row)
        self._rows_without_step = left
        return self._add_printed(placed)


class _Step:
    """Known facts of a step."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.printed: Row = {}
        self.filed: Row = {}
        self.returned: Row | None = None

    def add(self, row: Row, *, is_printed: bool) -> None:
        """Add figures. The first one of a source stays, unless a later one is not a number."""
        known = self.printed if is_printed else self.filed
        for name, value in row.items():
            if name not in known or (isinstance(value, str) and not isinstance(known[name], str)):
                known[name] = value

    def best(self) -> Row:
        """Return the row; a file's figures win, but not over a printed one that is not a number."""
        merged = {**self.printed, **self.filed}
        faults = {name: value for name, value in self.printed.items() if isinstance(value, str)}
        return {"step": self.step, **merged, **{name: faults[name] for name in faults if name in merged}}

    def returned_row(self) -> Row:
        self.returned = self.best()
        return self.returned

    def with_news(self, row: Row, *, is_printed: bool) -> list[Row]:
        """Add figures to a row that was returned; return the row again if any of them is new."""
        self.add(row, is_printed=is_printed)
        assert self.returned is not None
        best = self.best()
        news = {
            name: value
            for name, value in best.items()
            if name not in self.returned or (isinstance(value, str) and self.returned[name] != value)
        }
        if not news:
            return []
        self.returned = {**self.returned, **news}
        return [self.returned]


def row_fault(row: Row) -> str | None:
    """Return why a row shows that the training failed, or None.

    The Hugging Face trainer prints a loss of NaN as 0, and Megatron omits it from its line.
    """
    where = (
        f"step {row['step']:,}" if "step" in row else f"epoch {row['epoch']}" if "epoch" in row else "a row"
    )
    for name, words in (
        ("grad_norm", "gradient norm"),
        ("loss", "loss"),
        ("val_loss", "validation loss"),
        ("val_bits_per_byte", "validation loss"),
    ):
        if name in row and not _is_finite(row[name]):
            return f"{where}: the {words} is {row[name]}, which is not finite"
    if row.get("nan_steps"):
        return f"{where}: {row['nan_steps']} steps had a loss that is not finite"
    if row.get("loss") == 0 and "grad_norm" not in row and "reward" not in row:
        return f"{where}: the loss is exactly 0, which is how a loss of NaN is printed by some trainers"
    return None


def _decimals(row: Row) -> int:
    """Return the number of decimals of a row's epoch."""
    return len(repr(row.get("epoch", 0)).partition(".")[2])


def _epoch_error(epoch: float, digits: int) -> float:
    """Return the largest rounding error of a printed epoch.

    `digits` is the largest number of decimals in the log. Old trainers round to 2, new ones to 4 digits.
    """
    if digits <= 2 or digits > 6:
        return float(0.5 * 10**-digits)
    return float(0.5 * 10.0 ** (math.floor(math.log10(epoch)) - 3))


def _has_other_loss(known: Row, row: Row, *, rounding: float) -> bool:
    """Return whether a step was trained again: both rows have a loss, and the losses differ."""
    if "loss" not in known or "loss" not in row:
        return False
    before, now = known["loss"], row["loss"]
    if _is_finite(before) and _is_finite(now):
        return not math.isclose(before, now, rel_tol=rounding)
    return bool(str(before) != str(now))


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
