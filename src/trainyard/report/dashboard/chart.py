"""The geometry of a line chart: axes with round numbers, lines and marks, in CSS pixels.

The page's template writes it as SVG; colours come from the style sheet.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trainyard.report.dashboard.panels import DrawnPanel, Series
from trainyard.report.facts.curve import Point
from trainyard.report.facts.event_words import AxisMark
from trainyard.report.facts.quantities import format_scaled

WIDTH, HEIGHT = 480, 240
LEFT, RIGHT, TOP, BOTTOM = 52, 470, 12, 204
_LONG_STEP = 100_000
"""From this step on, labels are shortened to the form 200k, so that they fit under their tick."""
_MOST_POINTS = 120
_CHARACTER = 6.5
"""The width of a character of a mark."""


@dataclass(frozen=True)
class ChartLine:
    """A line, or its dots, as SVG's `points`."""

    series: Series
    points: str
    dots: Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Chart:
    """A chart in CSS pixels."""

    title: str
    rows: Sequence[tuple[float, str]]
    columns: Sequence[tuple[float, str]]
    lines: Sequence[ChartLine]
    marks: Sequence[tuple[float, float, float, str]]
    """x of the line; x, y and text of its label. The text is empty if there is no room."""


@dataclass(frozen=True)
class _Axis:
    low: float
    high: float
    begin: float
    end: float

    def at(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(self.begin + share * (self.end - self.begin), 1)


def draw_chart(drawn: DrawnPanel, marks: Sequence[AxisMark] = ()) -> Chart:
    """The chart of a panel over the steps, with the marks that lie on its axis."""
    points = [point for line in drawn.series for point in line.points]
    values = [point.value for point in points] + ([0.0] if drawn.panel.from_zero else [])
    rows = round_ticks(min(values), max(values), 5)
    first, last = min(point.step for point in points), max(point.step for point in points)
    first = 0.0 if 0 <= first <= last / 10 else first
    x = _Axis(first, _above(first, last), LEFT, RIGHT)
    y = _Axis(rows[0], rows[-1], BOTTOM, TOP)
    columns = [
        tick for tick in round_ticks(first, last, 5) if tick == round(tick) and x.low <= tick <= x.high
    ]
    return Chart(
        drawn.panel.title,
        [(y.at(tick), format_tick(tick) + drawn.panel.unit) for tick in rows],
        [(x.at(tick), _step(tick)) for tick in columns],
        [_line(line, x, y) for line in drawn.series],
        _place_marks([(x.at(mark.step), mark.words) for mark in marks if first <= mark.step <= last]),
    )


def round_ticks(low: float, high: float, count: int) -> list[float]:
    """About `count` round numbers that enclose `low` and `high`."""
    high = _above(low, high)
    rough = (high - low) / max(1, count - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(size * power for size in (1, 2, 2.5, 5, 10) if size * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 12 - math.floor(math.log10(step))) for index in range(first, last + 1)]


def format_tick(value: float) -> str:
    """`0.25`, `3e-4`, `22k`: as short as a label of an axis has to be."""
    if abs(value) >= 10_000:
        return format_scaled(value).replace(" ", "")
    return f"{value:.3g}".replace("e-0", "e-")


def _above(low: float, high: float) -> float:
    """`high`, or a value a little above `low` when the two are equal, so that the axis has a length."""
    return high if high - low > abs(high) * 1e-9 else low + (abs(low) * 0.1 or 1.0)


def _step(tick: float) -> str:
    return f"{tick:,.0f}" if abs(tick) < _LONG_STEP else format_scaled(tick).replace(" ", "")


def _line(line: Series, x: _Axis, y: _Axis) -> ChartLine:
    places = [(round(x.at(point.step)), round(y.at(point.value))) for point in _sparse(line.points)]
    return ChartLine(
        line,
        " ".join(f"{across},{down}" for across, down in dict.fromkeys(places)),
        places if line.has_dots else (),
    )


def _sparse(points: Sequence[Point]) -> Sequence[Point]:
    """The lowest and the highest point of each stretch of the points, and both ends."""
    if len(points) <= _MOST_POINTS:
        return points
    size = math.ceil(2 * len(points) / _MOST_POINTS)
    stretches = [range(begin, min(begin + size, len(points))) for begin in range(0, len(points), size)]
    kept = {0, len(points) - 1}
    for stretch in stretches:
        kept |= {choose(stretch, key=lambda index: points[index].value) for choose in (min, max)}
    return [points[index] for index in sorted(kept)]


def _place_marks(marks: Sequence[tuple[float, str]]) -> list[tuple[float, float, float, str]]:
    """Put the label of each mark on the first of three lines that has room; without room, leave it empty."""
    ends = [0.0, 0.0, 0.0]
    placed: list[tuple[float, float, float, str]] = []
    for at, words in marks:
        begin = min(at + 3, RIGHT - len(words) * _CHARACTER)
        row = next((row for row, end in enumerate(ends) if end <= begin), None)
        if row is not None:
            ends[row] = begin + len(words) * _CHARACTER + 4
        placed.append((at, round(begin, 1), TOP + 10 + 13 * (row or 0), words if row is not None else ""))
    return placed
