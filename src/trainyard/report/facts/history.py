"""The rows of a run as columns: the last known value of each figure, and the curves that reports draw.

Rows are read one by one and kept as packed numbers, so that a million rows fit in memory. Other modules
decide what the figures mean.
"""

import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainyard.run.records import Row, iterate_rows
from trainyard.watch.health import Health

CURVES = ("loss", "val_loss", "learning_rate", "tokens_per_second", "reward")


def finite_or_none(value: object) -> float | None:
    """`value` if it is a finite number, else None, which the reports do not show."""
    if type(value) is float:  # the fast path for a million rows; x - x is 0 only when x is finite
        return value if value - value == 0.0 else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer larger than any float
        return None


@dataclass
class Curve:
    """One figure over the steps."""

    steps: "array[float]" = field(default_factory=lambda: array("d"))
    values: "array[float]" = field(default_factory=lambda: array("d"))

    def append(self, step: float, value: float) -> None:
        self.steps.append(step)
        self.values.append(value)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def first(self) -> float | None:
        return self.values[0] if self.values else None


@dataclass
class MetricsHistory:
    """The columns of `metrics.jsonl`."""

    last: dict[str, float] = field(default_factory=dict)
    """The newest known value of each figure."""
    curves: dict[str, Curve] = field(default_factory=lambda: {name: Curve() for name in CURVES})
    steps: "array[float]" = field(default_factory=lambda: array("d"))
    """The step of each row that has both a step and a time."""
    times: "array[float]" = field(default_factory=lambda: array("d"))
    """The time of the same rows, in Unix seconds."""
    saves: float = 0.0
    """Seconds that training waited for checkpoints."""
    health: Health = field(default_factory=Health)

    def add(self, row: dict[str, Any]) -> None:
        known = {key: figure for key, value in row.items() if (figure := finite_or_none(value)) is not None}
        self.last.update(known)
        self.health.add_row(row)
        self.saves += known.get("checkpoint_seconds", 0.0)
        step = known.get("step")
        if step is None:
            return
        for name, curve in self.curves.items():
            if name in known:
                curve.append(step, known[name])
        if "time" in known:
            self.steps.append(step)
            self.times.append(known["time"])

    def seconds_per_step(self, rows: int = 50) -> float | None:
        """Wall time per step over the last rows, with validation and saving; None when not known.

        It is the median over the rows, so that one long pause (a resume, a save) does not change it.
        """
        recent_steps, recent_times = self.steps[-rows:], self.times[-rows:]
        paces = sorted(
            (after - before) / (next_step - step)
            for step, next_step, before, after in zip(
                recent_steps, recent_steps[1:], recent_times, recent_times[1:], strict=False
            )
            if next_step > step and after >= before
        )
        return paces[len(paces) // 2] if paces else self.last.get("step_seconds")


def read_history(path: Path, events: Iterable[Row] = ()) -> MetricsHistory:
    """Read `metrics.jsonl`; the file may be missing, still growing, or cut off mid-line.

    `events` are those of the run. Its health is judged from them and the rows in the order of their times.
    """
    history, waiting = MetricsHistory(), list(reversed(list(events)))
    for row in iterate_rows(path):
        while waiting and (finite_or_none(waiting[-1].get("time")) or 0.0) <= (
            finite_or_none(row.get("time")) or 0.0
        ):
            history.health.add_event(waiting.pop())
        history.add(row)
    while waiting:
        history.health.add_event(waiting.pop())
    return history
