"""Several runs side by side: their figures, their weights, and the settings that differ.

It states differences and judges none: which difference matters is for people to decide.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from trainyard.report.dashboard.markdown import escape_markdown, setting_table
from trainyard.report.facts.config_changes import ConfigChange, changed_settings, format_setting
from trainyard.report.facts.quantities import (
    format_count,
    format_duration,
    format_gigabytes,
    format_loss,
    format_percent,
    format_scaled,
)
from trainyard.report.facts.run_facts import RunFacts

_WARM_UP = 0.25
"""The share of the first rows whose speed is ignored: caches are cold and the allocator still grows."""
Value = Callable[[RunFacts], float | None]


def _settled(name: str) -> Value:
    """The median of a figure over the run without its start."""

    def value(run: RunFacts) -> float | None:
        values = run.curve(name).values
        settled = values[int(len(values) * _WARM_UP) :]
        return median(settled.tolist()) if len(settled) else None

    return value


_FIGURES: tuple[tuple[str, Value, Callable[[float], str]], ...] = (
    ("steps", lambda run: run.step, "{:,.0f}".format),
    ("loss", lambda run: run.loss, format_loss),
    ("validation loss", lambda run: run.validation_loss, format_loss),
    ("reward", lambda run: run.reward, format_loss),
    ("tokens/s", _settled("tokens_per_second"), format_scaled),
    ("MFU", _settled("mfu"), format_percent),
    ("GPU memory", _settled("gpu_memory_bytes"), format_gigabytes),
    ("training time", lambda run: run.training_seconds, format_duration),
)


@dataclass(frozen=True)
class Comparison:
    """The differences of some runs, in words."""

    figures: Sequence[tuple[str, Sequence[str]]]
    """Name and value in each run, and for two runs the change; without figures that no run has."""
    weights: str
    settings: Sequence[tuple[str, Sequence[str]]]
    """Key and value in each run."""
    changes: tuple[ConfigChange, ...] | None
    """None when a configuration is missing."""


def run_labels(runs: Sequence[RunFacts]) -> list[str]:
    """A label for each run: `run 812`, or its id or its folder where these are the same."""
    choices = (
        [run.title for run in runs],
        [run.name for run in runs],
        [run.directory.name for run in runs],
        [str(run.directory) for run in runs],
    )
    return next((labels for labels in choices if len({*labels}) == len(runs)), choices[0])


def compare_runs(runs: Sequence[RunFacts]) -> Comparison:
    """Compare the runs, the first of which is the base."""
    changes = changed_settings([run.directory for run in runs])
    figures = []
    for name, value, form in _FIGURES:
        values = [value(run) for run in runs]
        if any(known is not None for known in values):
            cells = ["" if known is None else form(known) for known in values]
            figures.append((name, cells + ([_change(*values)] if len(values) == 2 else [])))
    settings = [(one.key, [format_setting(value) for value in one.values]) for one in changes or ()]
    return Comparison(figures, _weights(runs), settings, changes)


def comparison_report(runs: Sequence[RunFacts]) -> str:
    """Return the comparison as Markdown, ending in a newline."""
    compared = compare_runs(runs)
    labels = run_labels(runs)
    titles = [escape_markdown(label) for label in labels]
    heads = ["", *titles, *(["change"] if len(runs) == 2 else [])]
    rows = [[name, *cells] for name, cells in compared.figures]
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    settings = ""
    if compared.changes is not None:
        settings = "The configurations are the same."
    if compared.changes:
        settings = f"Settings that differ:\n\n{setting_table(compared.changes, labels)}"
    sides = (f"{title} ({_commit(run)})" for title, run in zip(titles, runs, strict=True))
    parts = [
        f"### Compared: {' → '.join(sides)}",
        "\n".join(f"| {' | '.join(line)} |" for line in lines) if rows else "No run has a figure yet.",
        compared.weights,
        settings,
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def comparison_text(runs: Sequence[RunFacts]) -> str:
    """Return the comparison as aligned columns for a terminal and a log, ending in a newline."""
    compared = compare_runs(runs)
    heads = ["", *run_labels(runs), *(["change"] if len(runs) == 2 else [])]
    rows = [heads, *([name, *cells] for name, cells in compared.figures)]
    rows += [[key, *values] for key, values in compared.settings]
    lines = [[*row, *[""] * (len(heads) - len(row))] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
    weights = [f"  {compared.weights}"] if compared.weights else []
    return "\n".join(["RUNS COMPARED", *(f"  {line}" for line in table), *weights]) + "\n"


def _commit(run: RunFacts) -> str:
    return f"`{escape_markdown(run.commit[:7])}`" if run.commit else "unknown commit"


def _change(before: float | None, after: float | None) -> str:
    if before is None or after is None:
        return ""
    if before == after:
        return "none"
    if before == 0:
        return ""
    share = (after - before) / abs(before)
    if abs(share) < 0.0005:
        return "below 0.1 %"
    return f"{share:+.1%}".replace("%", " %").replace("-", "−")


def _weights(runs: Sequence[RunFacts]) -> str:
    digests = {run.weights_sha256 for run in runs}
    if None in digests:
        return ""
    after = "" if runs[-1].step is None else f" after {format_count(runs[-1].step, 'step')}"
    return f"The weights{after} are {'equal to the bit' if len(digests) == 1 else 'not the same'}."
