"""Which step a program was at when it wrote a checkpoint that shows none: by the times of its rows.

    row 10 ─── row 20 ─[save]──── row 30     row 20 was printed before the save: step 20
    row 10 ─────────[save]row 20 ─ row 30    row 20 follows at once: the program saves, then prints

A row also arrives a moment after it was printed, so one that follows at once counts in any case.
"""

from collections import deque
from collections.abc import Iterable
from itertools import islice, pairwise
from statistics import median

from trainyard.run.records import Row

_MOST_STEPS = 100_000
"""The most steps that are remembered; a checkpoint is found within seconds."""
_AT_ONCE_SECONDS = 1.0
"""The latest that a row follows at once. It is less where rows are printed more often."""
_INTERVALS = 20
"""How many of the last rows show how often rows are printed."""


class StepTimes:
    """The last steps of a program, in the order in which they were printed."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._steps: deque[tuple[int, float | None]] = deque(maxlen=_MOST_STEPS)
        for row in rows:
            self.note(row["step"], row.get("time"))

    def note(self, step: int, time: object) -> None:
        """Add a step that was printed at `time` in Unix seconds; None if that is not known."""
        self._steps.append((step, time if isinstance(time, int | float) else None))

    def step_at(self, moment: float, *, is_over: bool = False) -> int:
        """Return the step of what was written at `moment` in Unix seconds; 0 if no row was printed by then.

        A step whose time is not known may have been printed before. Once the program is over, the last step
        counts if it was printed less than a second after `moment`.
        """
        next_step = next_time = None
        for step, time in reversed(self._steps):
            if time is None or time <= moment:
                break
            if next_time is None and is_over and time - moment < _AT_ONCE_SECONDS:
                return step
            next_step, next_time = step, time
        else:
            step = 0
        follows = next_time is not None and next_time - moment < self._at_once_seconds()
        return next_step if follows and next_step is not None else step

    def _at_once_seconds(self) -> float:
        """Return half of the usual time between two rows, at most a second."""
        last = [time for _, time in islice(reversed(self._steps), _INTERVALS)]
        between = [later - time for later, time in pairwise(last) if later is not None and time is not None]
        return min(_AT_ONCE_SECONDS, median(between) / 2) if between else _AT_ONCE_SECONDS
