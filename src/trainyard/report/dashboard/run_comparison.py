"""Two runs side by side as Markdown: their figures, their weights, and the settings that differ.

It states differences and judges none: which difference matters is for people to decide.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median

from trainyard.report.dashboard.markdown import escape_markdown, setting_table
from trainyard.report.facts.config_changes import changed_settings
from trainyard.report.facts.quantities import format_count, format_duration, format_loss, format_scaled
from trainyard.report.facts.run_facts import RunFacts

_WARM_UP = 0.25
"""The share of the first rows whose speed is ignored: caches are cold and the allocator still grows."""


@dataclass(frozen=True)
class _ComparedFigure:
    name: str
    value: Callable[[RunFacts], float | None]
    form: Callable[[float], str]


def _settled_speed(facts: RunFacts) -> float | None:
    """Return the median tokens/s of the run without its start."""
    values = facts.history.curves["tokens_per_second"].values
    settled = values[int(len(values) * _WARM_UP) :]
    return median(settled) if settled else None


_FIGURES = (
    _ComparedFigure("steps", lambda facts: facts.step, "{:,.0f}".format),
    _ComparedFigure("loss", lambda facts: facts.loss, format_loss),
    _ComparedFigure("validation loss", lambda facts: facts.validation_loss, format_loss),
    _ComparedFigure("reward", lambda facts: facts.reward, format_loss),
    _ComparedFigure("tokens/s", _settled_speed, format_scaled),
    _ComparedFigure("training time", lambda facts: facts.training_seconds, format_duration),
)


def comparison_report(base: RunFacts, head: RunFacts) -> str:
    """Return the comparison as Markdown, ending in a newline; figures that neither run has are left out."""
    sides = " → ".join(f"{escape_markdown(side.title)} ({_commit(side)})" for side in (base, head))
    rows = [row for figure in _FIGURES for row in _rows(figure, base, head)]
    head_lines = ["| | base | head | change |", "|---|---:|---:|---:|"]
    parts = [
        f"### Compared: {sides}",
        "\n".join([*head_lines, *rows]) if rows else "Neither run has a figure yet.",
        _weights(base, head),
        _settings(base, head),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _commit(facts: RunFacts) -> str:
    return f"`{escape_markdown(facts.commit[:7])}`" if facts.commit else "unknown commit"


def _rows(figure: _ComparedFigure, base: RunFacts, head: RunFacts) -> Iterable[str]:
    before, after = figure.value(base), figure.value(head)
    if before is None and after is None:
        return
    cells = ("" if value is None else figure.form(value) for value in (before, after))
    yield f"| {figure.name} | {' | '.join(cells)} | {_change(before, after)} |"


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


def _weights(base: RunFacts, head: RunFacts) -> str:
    if base.weights_sha256 is None or head.weights_sha256 is None:
        return ""
    equal = base.weights_sha256 == head.weights_sha256
    steps = "" if head.step is None else f" after {format_count(head.step, 'step')}"
    return f"The weights{steps} are {'equal to the bit' if equal else 'not the same'}."


def _settings(base: RunFacts, head: RunFacts) -> str:
    changes = changed_settings(base.directory, head.directory)
    if changes is None:
        return ""
    if not changes:
        return "The configurations are the same."
    return f"Settings that differ:\n\n{setting_table(changes)}"
