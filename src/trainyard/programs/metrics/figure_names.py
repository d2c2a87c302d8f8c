"""The one name that a row of `metrics.jsonl` has for the few figures that reports and proofs know.

Any other number of a program is kept under its own name. A rule reads the words of a name: `train/lm_loss`,
`Train Loss` and `loss` are the training loss; `train/box_loss` is a figure of its own.
"""

import re
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from typing import Any

from trainyard.programs.metrics.printed_numbers import read_figure, read_number
from trainyard.run.records import Row

JUDGED = frozenset({"loss", "val_loss", "grad_norm"})
"""The figures that a proof judges; they stay in the row as text if they are not numbers."""
_WORD = re.compile(r"[a-z]+|\d+|%")
_VALIDATION = frozenset(("val", "valid", "validation", "eval", "evaluation", "dev"))
# Words of a name that leave open nothing about which figure it is.
_PLAIN = {
    "train",
    "training",
    "trainer",
    "tr",
    "global",
    "mean",
    "avg",
    "average",
    "metrics",
    "charts",
    "step",
}
_RULES = """
    step: step, current optimizer
    step: steps, current
    step: iteration,
    step: iter,
    epoch: epoch, current
    loss: loss, lm ce reduced total
    learning_rate: lr, group pg optim actor adamw adam sgd 0
    learning_rate: learning rate, group pg optim actor adamw adam sgd 0
    grad_norm: grad norm, optim actor l 2 total
    grad_norm: gradient norm, optim actor l 2 total
    tokens: tokens, num input seen consumed total
    samples: samples, num seen consumed total
    tokens_per_second: tokens per second, throughput
    tokens_per_second: tokens per sec, throughput
    tokens_per_second: tok sec, per
    samples_per_second: samples per second, throughput
    samples_per_second: samples per sec, throughput
    step_seconds: step seconds,
    step_seconds: step time,
    mfu: mfu, bf 16 % throughput device
"""
"""Figure: the words that its name has, and those that it may have beside the plain ones."""
_COUNTS = ("step", "samples", "tokens", "nan_steps", "skipped_steps")
_TIMES = frozenset(("time", "timestamp", "_timestamp", "wall_time", "_runtime", "_step"))
"""A row has its own `time`; these are no figures."""


@lru_cache(maxsize=4096)
def figure_of(name: str) -> str:
    """Return the name that a row has for what a program calls `name`; empty for a time."""
    plain = name.strip()
    if plain.lower() in _TIMES:
        return ""
    words = _WORD.findall(plain.lower())
    found = frozenset(words)
    if found & _VALIDATION and len(words) > 1:
        rest = found - _VALIDATION - _PLAIN - {"epoch", "lm", "ce"}
        if rest == {"loss"}:
            return "val_loss"
        return "val_bits_per_byte" if rest in ({"bpb"}, {"bits", "per", "byte"}) else plain
    if plain in ("train/train_loss", "train/epoch_loss"):  # means over the run, of the Hugging Face trainer
        return plain
    for figure, needed, allowed in _rules():
        if needed <= found and found - needed <= allowed:
            return figure
    return plain


@cache
def _rules() -> list[tuple[str, frozenset[str], set[str]]]:
    rules = []
    for line in _RULES.strip().splitlines():
        figure, _, words = line.strip().partition(": ")
        needed, _, allowed = words.partition(",")
        rules.append((figure, frozenset(needed.split()), _PLAIN.union(allowed.split())))
    return rules


def row_of_figures(figures: Iterable[tuple[str, Any]]) -> Row:
    """Return the row of a program's names and values, each number under the name of `figure_of`.

    Of two names of one figure the shorter one has it; the other one keeps its name. What is no number is left
    out, and a step that is not whole.
    """
    row: Row = {}
    owners: dict[str, str] = {}
    for name, value in figures:
        figure = figure_of(name)
        if not figure or (number := _figure(figure, name, value)) is None:
            continue
        if (owner := owners.get(figure)) is not None:
            if len(name) >= len(owner):
                row.setdefault(name, number)
                continue
            row[owner] = row[figure]
        row[figure], owners[figure] = number, name
    return row


def has_figures(row: Row) -> bool:
    """Return whether a row has a place and another figure than that."""
    return ("step" in row or "epoch" in row) and len(row) > ("step" in row) + ("epoch" in row)


def flat_figures(found: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """Yield the names and values of a JSON object; an inner one gives `outer/inner`, `data` gives `inner`."""
    for name, value in found.items():
        if isinstance(value, dict):
            prefix = "" if name in ("data", "metrics", "logs") else f"{name}/"
            yield from ((f"{prefix}{inner}", each) for inner, each in value.items())
        else:
            yield name, value


def _figure(figure: str, name: str, value: Any) -> float | str | None:
    """Return the value in the unit of a row; None if it is no number, as a judged figure stays text."""
    if isinstance(value, bool | list | dict) or value is None:
        return None
    if isinstance(value, str):
        read = read_figure(value) if figure in JUDGED and value.strip() else read_number(value)
    elif isinstance(value, int) and abs(value) < 1 << 63:
        read = value
    else:
        read = read_number(repr(value))
    if isinstance(read, str) or read is None:
        return read if figure in JUDGED or (read and not isinstance(value, str)) else None
    if figure in _COUNTS:
        return int(read) if read == int(read) and read >= 0 else None
    if figure == "mfu" and (read > 1 or "%" in name):
        return read / 100
    return read
