"""The rows of a run as columns: the last known value of each figure, and the curves that reports draw.

Columns are packed numbers, so that a million rows fit in memory. Other modules decide what the figures mean.
"""

import math
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.errors import DamagedFileError
from trainyard.run.records import Row
from trainyard.run.row_blocks import EqualRows, iterate_rows
from trainyard.run.untrusted_files import open_regular, parse_json_line

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

STEP_PARTS = ("data", "forward", "backward", "optimizer", "checkpoint")
"""The parts of a step, in their order; the metrics have `<part>_seconds` for each."""
AXES = ("step", "time", "epoch", "samples", "tokens")
"""The names over which the other figures are drawn."""
# Further names have only their newest value: they are parameters of a program that logs each layer, say.
_MOST_COLUMNS = 200
_NEWEST_BYTES = 8_000_000
_UNKNOWN = array("d", [math.nan])
_LARGEST = 1e100
"""Larger numbers are ignored: no training has them, and their differences are not finite."""


def finite_or_none(value: object) -> float | None:
    """`value` if it is a finite number, else None, which the reports do not show."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer larger than any float
        return None


@dataclass(frozen=True)
class Curve:
    """One figure over the steps, in ascending order."""

    steps: "NDArray[np.float64]"
    values: "NDArray[np.float64]"

    def __len__(self) -> int:
        return len(self.values)

    @property
    def first(self) -> float | None:
        return float(self.values[0]) if len(self) else None

    def times(self, factor: float) -> "Curve":
        """Return the curve in another unit."""
        return Curve(self.steps, self.values * factor)

    def to_json(self) -> dict[str, list[float]]:
        """Return the points with as many digits as a chart or a reader needs."""
        steps, values = self.steps.round(1).tolist(), self.values.tolist()
        return {"steps": steps, "values": [float(f"{value:.6g}") for value in values]}


@dataclass
class MetricsHistory:
    """The columns of `metrics.jsonl`."""

    last: dict[str, float] = field(default_factory=dict)
    """The newest known value of each figure."""
    size: int = 0
    """The number of rows that have a step."""
    columns: "dict[str, array[float]]" = field(default_factory=dict)
    """The values of these rows by name; NaN where a value is not known."""

    def add(self, rows: EqualRows) -> None:
        """Append rows."""
        import numpy as np

        table = _numbers(rows).reshape(-1, len(rows.names))
        places = {name: place for place, name in enumerate(rows.names)}
        for name, place in places.items():
            column = table[:, place]
            if math.isfinite(newest := column[-1]):
                self.last[name] = float(newest)
            elif len(known := column[np.isfinite(column)]):
                self.last[name] = float(known[-1])
        if "step" not in places:
            return
        known = np.isfinite(table[:, places["step"]])
        table = table if known.all() else table[known]
        for name in dict.fromkeys((*self.columns, *rows.names)):
            if name not in self.columns:
                if len(self.columns) >= _MOST_COLUMNS or not np.isfinite(table[:, places[name]]).any():
                    continue
                self.columns[name] = _UNKNOWN * self.size
            if name in places:
                self.columns[name].frombytes(table[:, places[name]].tobytes())
            else:
                self.columns[name].extend(_UNKNOWN * len(table))
        self.size += len(table)

    @property
    def figures(self) -> list[str]:
        """The names that have values at steps, in the order in which they came, without the axes."""
        return [name for name in self.columns if name not in AXES]

    def curve(self, name: str) -> Curve:
        """The known values of a figure. Of rows with the same step, or trained again, the last one counts."""
        import numpy as np

        steps, values = self._column("step"), self._column(name)
        known = np.isfinite(values)
        if not known.all():
            steps, values = steps[known], values[known]
        if (np.diff(steps) <= 0).any():
            kept = np.append(steps[:-1] < np.minimum.accumulate(steps[:0:-1])[::-1], True)
            steps, values = steps[kept], values[kept]
        return Curve(steps, values)

    @property
    def times(self) -> "NDArray[np.float64]":
        """The known times, in Unix seconds, in the order of the rows."""
        import numpy as np

        times = self._column("time")
        return times[np.isfinite(times)]

    def timed_steps(self) -> tuple[list[float], list[float]]:
        """Steps and times (Unix seconds) of the rows that have both."""
        import numpy as np

        steps, times = self._column("step"), self._column("time")
        known = np.isfinite(times)
        return steps[known].tolist(), times[known].tolist()

    def seconds_per_step(self) -> float | None:
        """Wall time per step over the last 50 rows, with validation and saving; None when not known.

        It is the median over the rows, so that one long pause (a resume, a save) does not change it.
        """
        import numpy as np

        steps, times = self._column("step")[-50:], self._column("time")[-50:]
        known = np.isfinite(times)
        more, longer = np.diff(steps[known]), np.diff(times[known])
        usable = (more > 0) & (longer >= 0)
        paces = np.sort(longer[usable] / more[usable])
        return float(paces[len(paces) // 2]) if len(paces) else self.last.get("step_seconds")

    def rate(self, name: str) -> float | None:
        """The median of a figure over the last tenth of its rows, which one slow step does not change."""
        import numpy as np

        values = self.curve(name).values
        return float(np.median(values[-max(1, len(values) // 10) :])) if len(values) else None

    def _column(self, name: str) -> "NDArray[np.float64]":
        import numpy as np

        return np.frombuffer(self.columns.get(name, _UNKNOWN * self.size))


def _numbers(rows: EqualRows) -> "NDArray[np.float64]":
    """The values as floats; NaN for a value that a chart cannot show."""
    import numpy as np

    table = rows.values
    if isinstance(table, np.ndarray):
        found = table
    else:
        known = map(finite_or_none, table)
        found = np.fromiter((math.nan if each is None else each for each in known), float, len(table))
    size = np.abs(found)
    found[size > _LARGEST] = math.nan
    found[size < 1 / _LARGEST] = 0.0
    return found


def read_history(path: Path) -> MetricsHistory:
    """Read `metrics.jsonl`; the file may be missing, still growing, or cut off mid-line."""
    history = MetricsHistory()
    for rows in iterate_rows(path):
        history.add(rows)
    return history


def newest_rows(path: Path) -> list[Row]:
    """Return the last rows of `metrics.jsonl`, some ten thousand: those that health is judged by."""
    try:
        with open_regular(path) as file:
            file.seek(max(0, file.seek(0, 2) - _NEWEST_BYTES))
            lines = file.read().splitlines()
    except (OSError, DamagedFileError):
        return []
    # The first line may be cut, and the last one.
    return [row for line in lines if (row := parse_json_line(line)) is not None]
