"""A line chart as SVG, for paper and for browsers without scripts: its lines, and the ends of its axes.

The page's template writes it; colours come from the style sheet. With scripts uPlot draws more.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from trainyard.report.dashboard.panels import DrawnPanel, Series
from trainyard.report.facts.quantities import format_scaled

WIDTH, HEIGHT = 480, 200
_MARGIN = 3


@dataclass(frozen=True)
class Chart:
    """A chart in CSS pixels, with the texts at the ends of its axes."""

    lines: Sequence[tuple[Series, str]]
    """Each line as the `points` of SVG's polyline."""
    low: str
    high: str
    first: str
    last: str


def draw_chart(drawn: DrawnPanel) -> Chart:
    """The chart of a panel over the steps. Places are whole pixels, so that a long curve has few points."""
    unit, _, from_zero = drawn.panel.scale
    points = [point for line in drawn.series for point in line.points]
    values = [point.value for point in points] + ([0.0] if from_zero else [])
    low, high = min(values), max(values)
    first, last = min(point.step for point in points), max(point.step for point in points)

    def place(step: float, value: float) -> str:
        across = (step - first) / (last - first) if last > first else 0.5
        up = (value - low) / (high - low) if high - low > 1e-9 * abs(high) else 0.5
        return f"{across * WIDTH:.0f},{HEIGHT - _MARGIN - up * (HEIGHT - 2 * _MARGIN):.0f}"

    lines = [
        (line, " ".join(dict.fromkeys(place(point.step, point.value) for point in line.points)))
        for line in drawn.series
    ]
    ends = f"{low:.4g}{unit}", f"{high:.4g}{unit}"
    return Chart(lines, *ends, format_scaled(first), format_scaled(last))
