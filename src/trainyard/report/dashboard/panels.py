"""The charts of the report: which figures each one shows, thinned to what a page can hold.

One panel is drawn twice from the same points: as SVG for paper and for browsers without scripts (`chart`),
and by uPlot in the browser.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainyard.report.facts.curve import Point, average_curve, thin_curve
from trainyard.report.facts.event_words import axis_marks
from trainyard.report.facts.history import STEP_PARTS
from trainyard.report.facts.run_facts import RunFacts

_PAGE_BUCKETS, _MOST_BUCKETS = 4000, 400
"""Most buckets of all curves of a page, so that more runs do not make it larger; and of one curve."""
_MEANS = 150
"""A longer loss or reward is drawn faint, with this many means on top."""


@dataclass(frozen=True)
class Panel:
    """A chart and its figures."""

    title: str
    figures: tuple[tuple[str, str], ...]
    """The names of the figures in `metrics.jsonl`, and their labels."""
    unit: str = ""
    scale: float = 1.0
    from_zero: bool = False
    has_means: bool = False


PANELS = (
    Panel("Reward", (("reward", "reward"),), has_means=True),
    Panel("Loss", (("loss", "training"), ("val_loss", "validation")), has_means=True),
    Panel("Learning rate", (("learning_rate", "learning rate"),), from_zero=True),
    Panel("Gradient norm", (("grad_norm", "gradient norm"),)),
    Panel("Tokens per second", (("tokens_per_second", "tokens/s"),), from_zero=True),
    Panel("MFU", (("mfu", "MFU"),), " %", 100, from_zero=True),
    Panel("Time of a step", tuple((f"{part}_seconds", part) for part in STEP_PARTS), " s", from_zero=True),
    Panel("GPU memory", (("gpu_memory_bytes", "used"),), " GB", 1e-9, from_zero=True),
    Panel("GPU use", (("gpu_utilization_percent", "busy"),), " %", from_zero=True),
    Panel("GPU temperature", (("gpu_temperature_celsius", "temperature"),), " °C"),
)


@dataclass(frozen=True)
class Series:
    """One line of a panel."""

    run: int
    """The position of its run."""
    figure: int
    """The position of the figure in its panel."""
    label: str
    """Empty for a faint line, because the line of its means has the label."""
    points: Sequence[Point]
    style: str
    """Its classes in the style sheet. With several runs the colour is that of the run, else of the figure."""
    is_faint: bool = False

    @property
    def has_dots(self) -> bool:
        return len(self.points) <= 40


@dataclass(frozen=True)
class DrawnPanel:
    """A panel with its lines."""

    panel: Panel
    series: tuple[Series, ...]

    def to_json(self) -> dict[str, Any]:
        """The panel as the page's script reads it."""
        return {
            "title": self.panel.title,
            "unit": self.panel.unit,
            "zero": self.panel.from_zero,
            "series": [
                {
                    "run": line.run,
                    "figure": line.figure,
                    "faint": line.is_faint,
                    "dots": line.has_dots,
                    "steps": [round(point.step, 1) for point in line.points],
                    "values": [float(f"{point.value:.6g}") for point in line.points],
                }
                for line in self.series
            ],
        }


def draw_panels(runs: Sequence[RunFacts], labels: Sequence[str]) -> list[DrawnPanel]:
    """The panels that have a line to draw; `labels` name the runs."""
    known = sum(len(run.curve(name)) > 1 for run in runs for panel in PANELS for name, _ in panel.figures)
    buckets = min(_MOST_BUCKETS, _PAGE_BUCKETS // max(1, known))
    drawn = (
        DrawnPanel(
            panel,
            tuple(
                line
                for place, run in enumerate(runs)
                for figure in range(len(panel.figures))
                for line in _lines(panel, figure, run, place=place, labels=labels, buckets=buckets)
            ),
        )
        for panel in PANELS
    )
    return [panel for panel in drawn if any(len(line.points) > 1 for line in panel.series)]


def _clock(run: RunFacts) -> list[list[float]]:
    """The steps of some rows, and the seconds from the first row to each of them."""
    points = thin_curve(run.curve("time"), 100)
    return [[point.step for point in points], [round(point.value - points[0].value, 1) for point in points]]


def script_data(runs: Sequence[RunFacts], panels: Sequence[DrawnPanel]) -> dict[str, Any]:
    """Everything that the page's script draws."""
    return {
        "runs": [
            {"clock": _clock(run), "marks": [[mark.step, mark.words] for mark in axis_marks(run)]}
            for run in runs
        ],
        "panels": [panel.to_json() for panel in panels],
    }


def _lines(
    panel: Panel, figure: int, run: RunFacts, *, place: int, labels: Sequence[str], buckets: int
) -> list[Series]:
    name, label = panel.figures[figure]
    curve, style = run.curve(name), f"c{figure}"
    if not len(curve):
        return []
    if len(labels) > 1:
        label = f"{labels[place]} · {label}" if len(panel.figures) > 1 else labels[place]
        style = f"c{place % 6}" + (f" d{figure}" if figure else "")

    def line(points: Sequence[Point], *, is_faint: bool = False) -> Series:
        scaled = [Point(point.step, point.value * panel.scale) for point in points]
        return Series(place, figure, "" if is_faint else label, scaled, style + " faint" * is_faint, is_faint)

    if panel.has_means and len(curve) > 2 * _MEANS:
        return [line(thin_curve(curve, buckets), is_faint=True), line(average_curve(curve, _MEANS))]
    return [line(thin_curve(curve, buckets))]
