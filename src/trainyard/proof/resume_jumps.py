"""Notice a loss or a learning rate that jumps where a run was resumed: a remark, which decides nothing.

The rows pass through, so a million of them take no more memory than ten.
"""

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence

from trainyard.proof.recorded_facts import RecordedFacts, integer_or_none, is_finite_number

# Fewer rows before a resume show no usual change from row to row; a warm-up changes the rate most at first.
_ROWS_BEFORE = 10
# A rate that jumps is this many times as large or small; a loss this many times the largest of the ten rows.
_RATE, _LOSS = 2.0, 1.5


class ResumeJumps:
    """Compares the first row after each resume with the ten rows before it."""

    def __init__(self, resumed_after: Collection[int]) -> None:
        """`resumed_after` are the steps of the checkpoints."""
        self._steps = sorted(resumed_after)
        self._before: deque[RecordedFacts] = deque(maxlen=_ROWS_BEFORE)
        self.remarks: list[str] = []

    def collect(self, rows: Iterable[RecordedFacts | None]) -> Iterator[RecordedFacts | None]:
        """Yield the rows as they are."""
        for row in rows:
            step = integer_or_none((row or {}).get("step"))
            if row is not None and step is not None:
                self._compare(row, step)
                self._before.append(row)
            yield row

    def _compare(self, row: RecordedFacts, step: int) -> None:
        passed = [at for at in self._steps if at < step]
        self._steps = [at for at in self._steps if at >= step]
        if not passed or len(self._before) < _ROWS_BEFORE:
            return
        where = f"where it was resumed after step {passed[-1]:,}"
        losses, rates = (_positive((*self._before, row), name) for name in ("loss", "learning_rate"))
        if losses and losses[-1] > _LOSS * max(losses[:-1]):
            self.remarks.append(f"the loss jumped from {losses[-2]:.3g} to {losses[-1]:.3g} {where}")
        if rates and not 1 / _RATE <= rates[-1] / rates[-2] <= _RATE:
            self.remarks.append(f"the learning rate jumped from {rates[-2]:.3g} to {rates[-1]:.3g} {where}")


def _positive(rows: Sequence[RecordedFacts], name: str) -> list[float]:
    """Return a figure of each row; empty if a row has none above 0."""
    found = [value for row in rows if is_finite_number(value := row.get(name)) and value > 0]
    return found if len(found) == len(rows) else []
