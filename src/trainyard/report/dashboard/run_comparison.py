"""Several runs side by side: their figures, their weights, and the settings that differ.

The last green run and the thresholds can be beside them. It states differences and judges none: which
difference matters is for people to decide.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainyard.proof.gates import thresholds_of
from trainyard.report.dashboard.markdown import CHART_POINTS, escape_markdown, line_chart, setting_table
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
from trainyard.run.record_models import MetricRow
from trainyard.run.run_settings import setting

_MOST_CHARACTERS = 65_000  # a comment on GitHub ends at 65,536
_LEFT_OUT = "\n\n*The rest was omitted: a comment ends at 65,536 characters.*\n"
# The most figures of a program in a comparison.
_MOST_FIGURES = 20
Value = Callable[[RunFacts], float | None]
Form = Callable[[float], str]

_FIGURES: tuple[tuple[str, Value, Form], ...] = (
    ("steps", lambda run: run.steps_done, "{:,.0f}".format),
    ("loss", lambda run: run.loss, format_loss),
    ("validation loss", lambda run: run.validation_loss, format_loss),
    ("reward", lambda run: run.reward, format_loss),
    ("tokens/s", lambda run: run.history.rate("tokens_per_second"), format_scaled),
    ("MFU", lambda run: run.mfu, format_percent),
    ("GPU memory", lambda run: run.history.rate("gpu_memory_bytes"), format_gigabytes),
    ("training time", lambda run: run.training_seconds, format_duration),
)


@dataclass(frozen=True)
class Comparison:
    """The differences of some runs, in words."""

    labels: Sequence[str]
    """The names of the runs."""
    heads: Sequence[str]
    """The labels and, where there are such, `change` of two runs, the last green run and `threshold`."""
    figures: Sequence[tuple[str, Sequence[str]]]
    """Name and a cell for each head; without figures that no run has."""
    weights: str
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


def compare_runs(runs: Sequence[RunFacts], last_green: RunFacts | None = None) -> Comparison:
    """Compare the runs, the first of which is the base, and with them a last green run if it is proven.

    The thresholds are those of the last run, or else of the green one.
    """
    green = [last_green] if last_green and last_green.proof and last_green.proof.proven else []
    thresholds = next(filter(None, map(_thresholds, (runs[-1], *green))), {})
    columns = _figures_of([*runs, *green], _own_figures(runs))
    is_pair, labels = len(runs) == 2, run_labels(runs)
    rows = []
    for name in dict.fromkeys([*columns, *thresholds]):
        values, form = columns.get(name, ([None] * (len(runs) + len(green)), format_loss))
        cells = ["" if value is None else form(value) for value in values]
        if is_pair:
            cells.insert(2, _change(*values[:2]))
        rows.append((name, [*cells, *([thresholds.get(name, "")] if thresholds else [])]))
    heads = [*labels, *["change"] * is_pair, *(f"last green {run.title}" for run in green)]
    heads += ["threshold"] * bool(thresholds)
    changes = changed_settings([run.directory for run in runs])
    return Comparison(labels, heads, rows, _weights(runs), changes)


def _figures_of(runs: Sequence[RunFacts], own: Sequence[str]) -> dict[str, tuple[list[float | None], Form]]:
    """Return the figures that a run has: name -> its value in each of them, and how it is written."""
    found = {name: ([value(run) for run in runs], form) for name, value, form in _FIGURES}
    found |= {name: ([run.history.last.get(name) for run in runs], format_loss) for name in own}
    proven = [_proven_figures(run) for run in runs]
    for name in dict.fromkeys(name for each in proven for name in each if name not in found):
        found[name] = ([each.get(name) for each in proven], format_loss)
    return {name: each for name, each in found.items() if each[0] != [None] * len(runs)}


def _own_figures(runs: Sequence[RunFacts]) -> list[str]:
    """Return the names that a program gave to its figures, such as `accuracy`, which every run has."""
    ours = {*MetricRow.model_fields} - {"accuracy"}
    known = [{*run.history.last} - ours - {*_proven_figures(run)} for run in runs]
    return sorted(name for name in set.intersection(*known) if not name.endswith("_seconds"))[:_MOST_FIGURES]


def _proven_figures(run: RunFacts) -> dict[str, float]:
    """Return the figures of a run's proof, such as those of its evaluation."""
    figures = run.proof.figures if run.proof else ()
    return {each.name: each.value for each in figures if each.value is not None}


def _thresholds(run: RunFacts) -> dict[str, str]:
    """Return figure -> threshold, as the configuration of a run sets it."""
    limit = setting(run.settings, "proof.learned.max_validation_loss")
    return ({} if limit is None else {"validation loss": f"<= {limit}"}) | thresholds_of(run.settings)


def comparison_report(runs: Sequence[RunFacts], last_green: RunFacts | None = None) -> str:
    """Return the comparison as Markdown, ending in a newline; `last_green` gets a column beside the runs."""
    compared = compare_runs(runs, last_green)
    titles = [escape_markdown(label) for label in compared.labels]
    lines = [["", *compared.heads], *([name, *cells] for name, cells in compared.figures)]
    lines = [[escape_markdown(cell) for cell in line] for line in lines]
    lines.insert(1, ["---", *["---:"] * len(compared.heads)])
    settings = "" if compared.changes is None else "The configurations are the same."
    if compared.changes:
        settings = f"Settings that differ:\n\n{setting_table(compared.changes, compared.labels)}"
    commits = (f"`{escape_markdown(run.commit[:7])}`" if run.commit else "unknown commit" for run in runs)
    sides = (f"{title} ({commit})" for title, commit in zip(titles, commits, strict=True))
    parts = [
        f"### Compared: {' → '.join(sides)}",
        "\n".join(f"| {' | '.join(line)} |" for line in lines) if lines[2:] else "No run has a figure yet.",
        _curves(runs),
        compared.weights,
        settings,
    ]
    text = "\n\n".join(part for part in parts if part) + "\n"
    return text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS].rpartition("\n")[0] + _LEFT_OUT


def _curves(runs: Sequence[RunFacts]) -> str:
    """Return a chart of the loss of each run over the steps that all have; empty without two of them."""
    import numpy as np

    curves = [run.curve("loss") for run in runs]
    if len(runs) < 2 or any(len(curve) < 3 for curve in curves):
        return ""
    begin, end = max(curve.steps[0] for curve in curves), min(curve.steps[-1] for curve in curves)
    if begin >= end:
        return ""
    steps = np.linspace(begin, end, CHART_POINTS)
    lines = [np.interp(steps, curve.steps, curve.values) for curve in curves]
    labels = run_labels(runs)
    titles = [f"Training loss: {labels[0]}", *labels[1:]]
    return line_chart("loss", begin, end, dict(zip(titles, lines, strict=True)))


def comparison_text(runs: Sequence[RunFacts]) -> str:
    """Return the comparison as text for a terminal, without a newline at its end."""
    compared = compare_runs(runs)
    parts = ["COMPARED", *_table(compared.heads, compared.figures, "no run has a figure yet")]
    parts += [f"  {compared.weights}"] if compared.weights else []
    if compared.changes is not None:
        rows = [(one.key, [format_setting(value) for value in one.values]) for one in compared.changes]
        table = _table(compared.labels, rows, "the configurations are the same")
        parts += ["", "SETTINGS THAT DIFFER", *table]
    return "\n".join(parts)


def _table(heads: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]], if_none: str) -> list[str]:
    """Return the lines of a table, its values aligned at the right."""
    if not rows:
        return [f"  {if_none}"]
    lines = [["", *heads], *([name, *cells] for name, cells in rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(heads) + 1)]
    return [
        "  " + "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip()
        for line in lines
    ]


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
    return f"The weights{after} are {'bit-identical' if len(digests) == 1 else 'different'}."
