"""The trials of a sweep as a table for a terminal and a log, the best first. It reads no run."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainyard.report.facts.quantities import format_loss

if TYPE_CHECKING:
    from trainyard.sweep.sweep_study import Trial


def sweep_table(trials: Sequence["Trial"]) -> str:
    """Return one line a trial: its number, its value or its state, its settings, and why it failed."""
    keys = list(dict.fromkeys(key for trial in trials for key in trial.settings))
    rows = [["trial", "value", *keys, ""]]
    for trial in trials:
        value = trial.state if trial.value is None else format_loss(trial.value)
        settings = [_short(trial.settings.get(key, "")) for key in keys]
        rows.append([str(trial.number), value, *settings, trial.reason])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    )


def _short(value: str) -> str:
    """A number with four digits; any other text as it is."""
    try:
        return value if value.lstrip("-").isdecimal() else f"{float(value):.4g}"
    except ValueError:
        return value
