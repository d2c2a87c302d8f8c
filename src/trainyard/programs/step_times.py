"""Which step a program was at when it wrote a checkpoint that shows none: by the times of its rows.

row 10 ─ row 20 [save] ─────── row 30    printed before the save: step 20
row 10 ───────── [save] row 20 ─ row 30  printed soon after it: step 20 too, the program saves first
"""

from collections import deque
from itertools import islice, pairwise
from statistics import median

_MOST_STEPS = 100_000
"""The most steps that are remembered; a checkpoint is found within seconds."""
_LATE_SECONDS = 0.5
"""A row may arrive so much later than it was printed; rows that arrive together have no known time."""
_AT_ONCE_SECONDS = 1.0
"""Rows within this time of each other, or of the last save, are printed together at the end."""
_INTERVALS = 20
"""How many of the last rows show how often rows are printed."""


class StepTimes:
    """The last steps of a program, in the order in which they were printed."""

    def __init__(self) -> None:
        self._steps: deque[tuple[int, float | None]] = deque(maxlen=_MOST_STEPS)

    def note(self, step: int, time: float | None) -> None:
        """Add a step that was printed at `time` in Unix seconds; None if that is not known."""
        self._steps.append((step, time))

    def step_at(self, moment: float, *, is_over: bool = False) -> int:
        """Return the step of what was written at `moment` in Unix seconds; 0 if no row was printed yet.

        Only rows that were certainly printed later are disregarded. Once the program is over, a single later
        row counts: it may be that of the last step, which was validated between the save and the row. So do
        rows that arrive within a second of it.
        """
        later: list[tuple[int, float]] = []
        before, soon = 0, moment + max(_LATE_SECONDS, self._usual_interval() / 2)
        for step, time in reversed(self._steps):
            if time is None or time <= soon:
                before = step
                break
            later.append((step, time))
        if not later:
            return before
        (last_step, last_time), (next_step, next_time) = later[0], later[-1]
        if is_over and (len(later) == 1 or not before or last_time - moment < _AT_ONCE_SECONDS):
            return last_step
        if not before:
            return last_step if last_time - next_time < _AT_ONCE_SECONDS else next_step
        return before

    def _usual_interval(self) -> float:
        """Return the median of the seconds between two of the last rows; 0 if none is known."""
        last = [time for _, time in islice(reversed(self._steps), _INTERVALS)]
        between = [later - time for later, time in pairwise(last) if later is not None and time is not None]
        return median(between) if between else 0.0
