"""The charts of the report: every figure of the runs, in groups, thinned to what a page can hold.

One panel is drawn twice from the same points: as SVG for paper and for browsers without scripts, and by uPlot
in the browser. Colours come from the style sheet.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from trainyard.report.facts.curve import average_curve, thin_curve
from trainyard.report.facts.event_words import axis_marks
from trainyard.report.facts.history import AXES, STEP_PARTS, Curve
from trainyard.report.facts.quantities import format_scaled
from trainyard.report.facts.run_facts import RunFacts
from trainyard.run.source_words import source_in_words

_PAGE_BUCKETS, _MOST_BUCKETS, _LEAST_BUCKETS = 4000, 400, 60
"""Most buckets of all curves of a page, so that more runs do not make it larger; and of one curve."""
_AXIS_POINTS = 100
WIDTH, HEIGHT = 480, 200
_MARGIN = 3
_MOST_DOTS = 40
MAIN, MACHINE, OTHER = "", "machine", "other"
"""The groups of figures without a prefix of their own."""


@dataclass(frozen=True)
class Panel:
    """A chart and its figures."""

    title: str
    group: str
    figures: tuple[tuple[str, str], ...]
    """The names of the figures in `metrics.jsonl`, and their labels."""

    @property
    def scale(self) -> tuple[str, float, bool]:
        """The unit, the factor from base units to it, and whether the axis starts at zero."""
        found = (scale for ending, scale in _SCALES if self.figures[0][0].endswith(ending))
        return next(found, ("", 1.0, False))


_SCALES = (
    ("_seconds", (" s", 1.0, True)),
    ("_bytes", (" GB", 1e-9, True)),
    ("_percent", (" %", 1.0, True)),
    ("_celsius", (" °C", 1.0, False)),
    ("_per_second", ("", 1.0, True)),
    ("mfu", (" %", 100.0, True)),
)
_MEMORY = (
    ("gpu_memory_bytes", "used"),
    ("gpu_memory_peak_bytes", "peak"),
    ("gpu_memory_total_bytes", "total"),
)
# The figures of the run directory's contract, in their order; those of one panel are read together.
_KNOWN = (
    Panel("Reward", MAIN, (("reward", "reward"),)),
    Panel("Loss", MAIN, (("loss", "training"), ("val_loss", "validation"))),
    Panel("Learning rate", MAIN, (("learning_rate", "learning rate"),)),
    Panel("Gradient norm", MAIN, (("grad_norm", "gradient norm"),)),
    Panel("Bits per byte", MAIN, (("val_bits_per_byte", "validation"),)),
    Panel("Tokens per second", MACHINE, (("tokens_per_second", "tokens/s"),)),
    Panel("Samples per second", MACHINE, (("samples_per_second", "samples/s"),)),
    Panel("MFU", MACHINE, (("mfu", "MFU"),)),
    Panel("Time of a step", MACHINE, (("step_seconds", "step"),)),
    Panel("Parts of a step", MACHINE, tuple((f"{part}_seconds", part) for part in STEP_PARTS)),
    Panel("Peak memory", MACHINE, (("memory_peak_bytes", "peak memory"),)),
    Panel("GPU memory", MACHINE, _MEMORY),
    Panel("GPU use", MACHINE, (("gpu_utilization_percent", "busy"),)),
    Panel("GPU temperature", MACHINE, (("gpu_temperature_celsius", "temperature"),)),
)


@dataclass(frozen=True)
class Series:
    """One line of a panel."""

    run: int
    """The position of its run."""
    figure: int
    """The position of the figure in its panel."""
    name: str
    label: str
    points: Curve
    """Of a long curve the extremes of its stretches."""
    means: Curve | None
    """Of a long curve the means of its stretches, which smoothing starts from; else None."""
    style: str
    """Its classes in the style sheet. With several runs the colour is that of the run, else of the figure."""

    @property
    def has_dots(self) -> bool:
        return len(self.points) <= _MOST_DOTS


@dataclass(frozen=True)
class DrawnPanel:
    """A panel with its lines."""

    panel: Panel
    source: str
    """Where another program's figures come from, in words; empty for our own trainer."""
    series: tuple[Series, ...]

    def to_json(self) -> dict[str, Any]:
        """The panel as the page's script reads it."""
        unit, _, from_zero = self.panel.scale
        lines = [
            {
                "run": line.run,
                "figure": line.figure,
                "name": line.name,
                "label": line.label,
                "dots": line.has_dots,
                **line.points.to_json(),
                **({"means": line.means.to_json()} if line.means else {}),
            }
            for line in self.series
        ]
        return {"title": self.panel.title, "unit": unit, "zero": from_zero, "series": lines}


def draw_panels(runs: Sequence[RunFacts], labels: Sequence[str]) -> list[DrawnPanel]:
    """The panels that have a line to draw, group by group; `labels` name the runs."""
    panels = list(_panels(dict.fromkeys(name for run in runs for name in run.figures)))
    known = sum(len(run.curve(name)) > 1 for run in runs for panel in panels for name, _ in panel.figures)
    buckets = max(_LEAST_BUCKETS, min(_MOST_BUCKETS, _PAGE_BUCKETS // max(1, known)))
    drawn = (
        DrawnPanel(
            panel,
            next((found for run in runs if (found := _source(run, panel))), ""),
            tuple(
                line
                for place, run in enumerate(runs)
                for figure in range(len(panel.figures))
                for line in _lines(panel, figure, run, place=place, labels=labels, buckets=buckets)
            ),
        )
        for panel in panels
    )
    return [panel for panel in drawn if any(len(line.points) > 1 for line in panel.series)]


def panel_groups(drawn: Sequence[DrawnPanel]) -> list[tuple[str, list[tuple[int, DrawnPanel]]]]:
    """The panels by group, each with its place among all panels."""
    places = groupby(enumerate(drawn), key=lambda each: each[1].panel.group)
    return [(group, list(panels)) for group, panels in places]


def script_data(runs: Sequence[RunFacts], panels: Sequence[DrawnPanel]) -> dict[str, Any]:
    """Everything that the page's script draws."""
    return {
        "runs": [{"axes": _axes(run), "marks": axis_marks(run)} for run in runs],
        "panels": [panel.to_json() for panel in panels],
    }


def _panels(names: Iterable[str]) -> Iterator[Panel]:
    """The panels of figures: those of the contract, then a panel for each other figure, by its prefix."""
    yield from _KNOWN
    known = {name for panel in _KNOWN for name, _ in panel.figures}
    others = sorted(set(names) - known)
    shared = Counter(_prefix(name) for name in others)
    groups = {name: _prefix(name) if shared[_prefix(name)] > 1 or "/" in name else OTHER for name in others}
    for name in sorted(others, key=lambda name: (groups[name] == OTHER, groups[name], name)):
        yield Panel(name, groups[name], ((name, name),))


def _prefix(name: str) -> str:
    """`eval` of `eval/f1`; `gpu` of `gpu_power_watts`."""
    return name.partition("/")[0] if "/" in name else re.split(r"[_. ]", name, maxsplit=1)[0]


def _source(run: RunFacts, panel: Panel) -> str:
    sources = (source_in_words(run.outcome, name) for name, _ in panel.figures)
    return next((found.strip(" ()") for found in sources if found), "")


def _axes(run: RunFacts) -> dict[str, dict[str, list[float]]]:
    """The axes beside the steps: for some steps the seconds since the first row, the epoch and so on."""
    curves = {name: thin_curve(run.curve(name), _AXIS_POINTS // 2) for name in AXES[1:]}
    if len(times := curves["time"]):
        curves["time"] = Curve(times.steps, times.values - times.values[0])
    found = {name: points.to_json() for name, points in curves.items() if len(points) > 1}
    if run.steps_per_epoch and run.step:
        found["epoch"] = {"steps": [0, run.step], "values": [0, run.step / run.steps_per_epoch]}
    return found


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
    elif len(panel.figures) == 1:  # the title says it
        label = ""
    points, scale = thin_curve(curve, buckets), panel.scale[1]
    means = average_curve(curve, buckets).times(scale) if len(points) < len(curve) else None
    return [Series(place, figure, name, label, points.times(scale), means, style)]


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
    steps = [step for line in drawn.series for step in line.points.steps]
    values = [value for line in drawn.series for value in line.points.values] + [0.0] * from_zero
    low, high, first, last = min(values), max(values), min(steps), max(steps)

    def place(step: float, value: float) -> str:
        across = (step - first) / (last - first) if last > first else 0.5
        up = (value - low) / (high - low) if high - low > 1e-9 * abs(high) else 0.5
        return f"{across * WIDTH:.0f},{HEIGHT - _MARGIN - up * (HEIGHT - 2 * _MARGIN):.0f}"

    lines = [
        (line, " ".join(dict.fromkeys(map(place, line.points.steps, line.points.values))))
        for line in drawn.series
    ]
    bottom, top = (f"{format_scaled(end) if abs(end) >= 1000 else f'{end:.3g}'}{unit}" for end in (low, high))
    return Chart(lines, bottom, top, format_scaled(first), format_scaled(last))
