"""Write the rows that a program prints into `metrics.jsonl`: each logged step once, in order.

A program that resumes from a checkpoint, or that starts again within one attempt, prints steps again. A row
with another loss replaces the old one and drops the later ones, because the new rows belong to the model that
is kept. A row that shows a fault is never replaced by one that does not.
"""

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from trainyard.run.atomic_files import write_bytes_atomically
from trainyard.run.records import RecordWriter, Row, keep_rows_up_to, read_rows

_FINE: Row = {"loss": 0.0}


def _ignored(_step: int) -> None:
    """Do nothing about a step that has another row."""


class MetricRowWriter:
    """Appends the rows of steps that are to be logged, and any other row that shows a fault."""

    def __init__(
        self,
        path: Path,
        *,
        log_steps: int,
        last: int,
        resumed_at: int = 0,
        on_other_row: Callable[[int], None] = _ignored,
    ) -> None:
        """`on_other_row` is called with the first step up to `resumed_at` whose row differs from the old one.

        This shows that the program did not resume after `resumed_at`. The old row is dropped after the call.
        """
        self._path, self._log_steps, self._last = path, log_steps, last
        self._resumed_at, self._on_other_row = resumed_at, on_other_row
        self._writer: RecordWriter | None = None
        self._known: dict[int, Row] = {}
        self._newest = 0
        self._first: int | None = None
        self._has_fault = False

    @property
    def newest(self) -> int:
        """The last recorded step; 0 until a row was given that belongs to the record."""
        return self._newest

    def keep(self, row: Row) -> bool:
        """Write `row` if it belongs to the record; return whether it does."""
        step, faulty = int(row["step"]), _is_faulty(row)
        self._first = step if self._first is None else min(step, self._first)
        if not (faulty or self._is_due(step)):
            return False
        if self._writer is None:
            self._open()
        if (before := self._known.get(step)) is not None and _is_same(before, row):
            return self._complete(before, row)
        if step <= self._newest and not (faulty or self._may_drop_from(step)):
            return False
        if self._resumed_at and step <= self._resumed_at:
            self._on_other_row(step)
            self._resumed_at = 0
        dropped = self._drop_from(step) if step <= self._newest else []
        self._write(row)
        for later in dropped:
            if faulty and later["step"] > step:  # a fault is no sign of retraining, so later rows stay
                self._write(later)
        self._has_fault = self._has_fault or faulty
        return True

    def _complete(self, before: Row, row: Row) -> bool:
        """Add the new figures of `row`, such as a validation loss; return whether there are any."""
        if not row.keys() - before.keys():
            return False
        dropped = self._drop_from(int(row["step"]))
        for each in dropped:
            self._write({**row, **each} if each["step"] == row["step"] else each)
        return True

    def _may_drop_from(self, step: int) -> bool:
        """Return whether a row without a fault may replace what is on record from `step` on.

        A fault that this attempt printed stays. One of an earlier attempt stays if this attempt starts with
        the same step: a program may print the step that it resumes after once more.
        """
        return not self._has_fault and not (self._first == step and _is_faulty(self._known.get(step, _FINE)))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _open(self) -> None:
        rows = read_rows(self._path)
        self._known = {row["step"]: row for row in rows if isinstance(row.get("step"), int)}
        self._newest = max(self._known, default=0)
        self._writer = RecordWriter(self._path)

    def _write(self, row: Row) -> None:
        assert self._writer is not None
        self._writer.write({key: _in_json(value) for key, value in row.items()})
        self._known[row["step"]] = row
        self._newest = row["step"]

    def _drop_from(self, step: int) -> list[Row]:
        """Drop the rows from `step` on, and return them."""
        self.close()
        dropped = [self._known[known] for known in sorted(self._known) if known >= step]
        keep_rows_up_to(self._path, step - 1)
        self._open()
        return dropped

    def _is_due(self, step: int) -> bool:
        return step % self._log_steps == 0 or step == self._last


def add_missing_rows(path: Path, rows: Iterable[Row], *, last: int) -> None:
    """Insert those of `rows` up to step `last` whose step is not recorded yet, in order."""
    known = {row["step"]: row for row in read_rows(path)}
    found = {row["step"]: row for row in rows if row["step"] <= last and row["step"] not in known}
    if found:
        every = (row for _, row in sorted((known | found).items()))
        lines = (json.dumps({key: _in_json(value) for key, value in row.items()}) for row in every)
        write_bytes_atomically(path, "".join(f"{line}\n" for line in lines).encode())


def _is_faulty(row: Row) -> bool:
    """Return whether a row must be kept: a figure is not finite, or it had skipped or NaN steps."""
    return (
        not _is_finite(row.get("loss"))
        or not _is_finite(row.get("grad_norm", 0.0))
        or bool(row.get("nan_steps"))
        or bool(row.get("skipped_steps"))
    )


def _is_same(before: Row, row: Row) -> bool:
    """Return whether both rows have the same loss and fault. Other figures, such as seconds, may differ."""
    return before.get("loss") == row.get("loss") and _is_faulty(before) == _is_faulty(row)


def _in_json(value: object) -> object:
    """Return a number that is not finite as text, because JSON has no such number."""
    return str(value) if isinstance(value, int | float) and not _is_finite(value) else value


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max
