"""The rows of a run as columns: each figure's last known value, and the curves that people look at.

A million rows are read one by one and held as numbers. What the figures mean for people is decided elsewhere.
"""

import math
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainyard.run.records import iterate_rows

CURVES = ("loss", "val_loss", "learning_rate", "tokens_per_second", "reward")


def number(value: object) -> float | None:
    """`value` if it is a finite number, else None: what is not known is not shown."""
    if type(value) is float:  # the usual case, a million times over; only a finite number less itself is 0
        return value if value - value == 0.0 else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer beyond every float
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


@dataclass
class History:
    """What `metrics.jsonl` says, in columns."""

    last: dict[str, float] = field(default_factory=dict)
    """The newest known value of each figure."""
    curves: dict[str, Curve] = field(default_factory=lambda: {name: Curve() for name in CURVES})
    steps: "array[float]" = field(default_factory=lambda: array("d"))
    """The step of each row that has a step and a time."""
    times: "array[float]" = field(default_factory=lambda: array("d"))
    """Unix seconds of these rows."""

    def add(self, row: dict[str, Any]) -> None:
        known = {key: figure for key, value in row.items() if (figure := number(value)) is not None}
        self.last.update(known)
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
        """Wall time of a step over the last rows, validation and saving included; None when not known.

        The median over the rows, so that one long pause (a resume, a save) does not count.
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


def read_history(path: Path) -> History:
    """Read `metrics.jsonl`, also one that is missing, still written to, or cut off mid-line."""
    history = History()
    for row in iterate_rows(path):
        history.add(row)
    return history
