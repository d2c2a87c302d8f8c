"""Write the rows that a program prints into `metrics.jsonl`: each logged step once, in order.

A program that resumes from a checkpoint prints steps again. The old rows from its first new step on are then
dropped, because the new ones belong to the model that remains.
"""

import math
from pathlib import Path

from trainyard.run.records import RecordWriter, Row, keep_rows_up_to


class MetricRowWriter:
    """Appends the rows that are due, and any other row whose loss is not finite."""

    def __init__(self, path: Path, *, log_steps: int, last: int) -> None:
        self._path, self._log_steps, self._last = path, log_steps, last
        self._writer: RecordWriter | None = None
        self._newest = 0

    @property
    def newest(self) -> int:
        """The last step that was kept in this segment; 0 for none."""
        return self._newest

    def keep(self, row: Row) -> bool:
        """Append `row` if it belongs to the record; return whether it does."""
        step = int(row["step"])
        if step <= self._newest or not (self._is_due(step) or _is_odd(row)):
            return False
        if self._writer is None:
            keep_rows_up_to(self._path, step - 1)
            self._writer = RecordWriter(self._path)
        self._writer.write(row)
        self._newest = step
        return True

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _is_due(self, step: int) -> bool:
        return step % self._log_steps == 0 or step == self._last


def _is_odd(row: Row) -> bool:
    """Return whether a row must not be left out: its loss is not finite, or it had skipped or NaN steps."""
    loss = row.get("loss")
    finite = isinstance(loss, int | float) and math.isfinite(loss)
    return not finite or bool(row.get("nan_steps")) or bool(row.get("skipped_steps"))
