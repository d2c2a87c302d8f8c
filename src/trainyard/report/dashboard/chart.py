"""Line charts as inline SVG: axes with round numbers, grid, lines and dots.

Colours come from the page's style sheet. The caller thins the points; the chart needs no JavaScript.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from trainyard.report.facts.curve import Point
from trainyard.report.facts.quantities import format_scaled

_LONG_STEP = 100_000
"""From this step on, labels are shortened to the form 200k, so that they fit under their tick."""


@dataclass(frozen=True)
class Layer:
    """One set of points."""

    style: str
    """The CSS class: `raw`, `mean` or `dots`."""
    points: Sequence[Point]
    name: str = ""
    """Shown when the pointer rests on a dot."""


@dataclass(frozen=True)
class Frame:
    """The size of a chart in its own units, which are CSS pixels at full width."""

    width: int
    height: int
    left: int = 52
    right: int = 14
    top: int = 12
    bottom: int = 38


@dataclass(frozen=True)
class _Axis:
    low: float
    high: float
    begin: float
    end: float

    def at(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(self.begin + share * (self.end - self.begin), 1)


def line_chart(
    layers: Sequence[Layer],
    frame: Frame,
    *,
    label: str,
    format_value: Callable[[float], str],
    from_zero: bool = False,
) -> str:
    """An SVG of all `layers` over the steps; `format_value` formats the values of the vertical axis."""
    points = [point for layer in layers for point in layer.points]
    values = [point.value for point in points] + ([0.0] if from_zero else [])
    rows = round_ticks(min(values), max(values), 5 if frame.height > 200 else 4)
    first, last = min(point.step for point in points), max(point.step for point in points)
    first = 0.0 if 0 <= first <= last / 10 else first
    columns = [tick for tick in round_ticks(first, last, max(4, frame.width // 110)) if tick == round(tick)]
    x = _Axis(first, _above(first, last), frame.left, frame.width - frame.right)
    y = _Axis(rows[0], rows[-1], frame.height - frame.bottom, frame.top)
    body = [
        *(_row(tick, frame, y, format_value) for tick in rows),
        *(_column(tick, frame, x) for tick in columns if x.low <= tick <= x.high),
        f'<text class="unit" x="{(frame.left + frame.width - frame.right) / 2:.0f}"'
        f' y="{frame.height - 4}" text-anchor="middle">step</text>',
        *(_draw_layer(layer, x, y, format_value) for layer in layers),
    ]
    return (
        f'<svg class="chart" viewBox="0 0 {frame.width} {frame.height}" role="img"'
        f' aria-label="{escape(label)}">{"".join(body)}</svg>'
    )


def round_ticks(low: float, high: float, count: int) -> list[float]:
    """About `count` round numbers that enclose `low` and `high`."""
    high = _above(low, high)
    rough = (high - low) / max(1, count - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(size * power for size in (1, 2, 2.5, 5, 10) if size * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 12 - math.floor(math.log10(step))) for index in range(first, last + 1)]


def _above(low: float, high: float) -> float:
    """`high`, or a value a little above `low` when the two are equal, so that the axis has a length."""
    return high if high - low > abs(high) * 1e-9 else low + (abs(low) * 0.1 or 1.0)


def _row(tick: float, frame: Frame, y: _Axis, format_value: Callable[[float], str]) -> str:
    at = y.at(tick)
    return (
        f'<line class="grid" x1="{frame.left}" x2="{frame.width - frame.right}" y1="{at}" y2="{at}"/>'
        f'<text x="{frame.left - 8}" y="{at + 4}" text-anchor="end">{escape(format_value(tick))}</text>'
    )


def _column(tick: float, frame: Frame, x: _Axis) -> str:
    at, base = x.at(tick), frame.height - frame.bottom
    return (
        f'<line class="tick" x1="{at}" x2="{at}" y1="{base}" y2="{base + 5}"/>'
        f'<text x="{at}" y="{base + 18}" text-anchor="middle">{_step(tick)}</text>'
    )


def _step(tick: float) -> str:
    return f"{tick:,.0f}" if abs(tick) < _LONG_STEP else format_scaled(tick).replace(" ", "")


def _draw_layer(layer: Layer, x: _Axis, y: _Axis, format_value: Callable[[float], str]) -> str:
    places = [(x.at(point.step), y.at(point.value)) for point in layer.points]
    path = " ".join(f"{across},{down}" for across, down in places)
    line = f'<polyline class="{layer.style}" points="{path}"/>'
    if layer.style != "dots":
        return line
    dots = (
        f'<circle class="dots" cx="{across}" cy="{down}" r="3.5"><title>{escape(layer.name)}'
        f" {escape(format_value(point.value))} at step {point.step:,.0f}</title></circle>"
        for (across, down), point in zip(places, layer.points, strict=True)
    )
    return line + "".join(dots)
