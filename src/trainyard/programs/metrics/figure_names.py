"""The one name that a row of `metrics.jsonl` has for the few figures that reports and proofs know.

Any other number of a program is kept under its own name. A rule reads the words of a name: `train/lm_loss`,
`Train Loss` and `loss` are the training loss; `train/box_loss` is a figure of its own. A number that is not
finite becomes a text, because JSON has no such number; a proof treats it as a fault.
"""

import math
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from trainyard.run.records import Row

JUDGED = {
    "grad_norm": "gradient norm",
    "loss": "loss",
    "val_loss": "validation loss",
    "val_bits_per_byte": "validation loss",
}
"""The figures that a proof judges, in words; they stay in the row as text if they are not numbers."""
_WORD = re.compile(r"[a-z]+|\d+|%")
_VALIDATION = frozenset(("val", "valid", "validation", "eval", "evaluation", "dev"))
# Words of a name that leave open nothing about which figure it is.
_PLAIN = frozenset(("train", "training", "trainer", "tr", "global", "mean", "avg", "average", "metrics"))
_PLAIN |= {"charts", "step"}
_RULES = (
    ("step", "step", "current optimizer"),
    ("step", "steps", "current"),
    ("step", "iteration", ""),
    ("step", "iter", ""),
    ("epoch", "epoch", "current"),
    ("loss", "loss", "lm ce reduced total"),
    ("loss", "pg loss", "actor"),  # verl's
    ("reward", "critic score mean", ""),
    ("learning_rate", "lr", "group pg optim actor adamw adam sgd 0"),
    ("learning_rate", "learning rate", "group pg optim actor adamw adam sgd 0"),
    ("grad_norm", "grad norm", "optim actor l 2 total"),
    ("grad_norm", "gradient norm", "optim actor l 2 total"),
    ("tokens", "tokens", "num input seen consumed total"),
    ("samples", "samples", "num seen consumed total"),
    ("tokens_per_second", "tokens per second", "throughput"),
    ("tokens_per_second", "tokens per sec", "throughput"),
    ("tokens_per_second", "tok sec", "per"),
    ("samples_per_second", "samples per second", "throughput"),
    ("samples_per_second", "samples per sec", "throughput"),
    ("step_seconds", "step seconds", ""),
    ("step_seconds", "step time", ""),
    ("step_seconds", "iteration time", ""),
    ("step_seconds", "timing s step", ""),
    ("mfu", "mfu", "bf 16 % throughput device"),
)
"""Figure, the words that its name has, and those that it may have beside the plain ones."""
_COUNTS = ("step", "samples", "tokens", "nan_steps")
_TIMES = frozenset(("time", "timestamp", "_timestamp", "wall_time", "_runtime", "_step"))
"""A row has its own `time`; these are no figures."""
NUMBER = (
    r"(?:[A-Za-z_][\w.]*\([^()]*\)|[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
    r"|[-+]?(?i:nan|inf(?:inity)?))(?!\w)"
)
"""A number as a program prints it: plain, not finite, or in the name of its type."""
_NUMERAL = re.compile(
    r"[-+]?(?:\d{1,3}(?:,\d{3})++(?:\.\d*+)?+|\d++\.?+\d*+|\.\d++)(?:e[-+]?\d++)?+(?![\w,])"
    r"|[-+]?(?:nan|inf(?:inity)?)(?!\w)",
    re.IGNORECASE,
)
_WRAPPED = re.compile(r"[A-Za-z_][\w.]*\((.*)")
_LONGEST_FIGURE = 80


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
    for figure, needed, allowed in _RULES:
        rest = found.difference(needed.split())
        if len(found) == len(rest) + len(needed.split()) and rest <= _PLAIN.union(allowed.split()):
            return figure
    return plain


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
        read = read_number(value)
        if read is None and figure in JUDGED:  # a proof must see that it was printed, such as `None`
            read = value.strip()[:_LONGEST_FIGURE] or None
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


def read_number(text: str) -> float | str | None:
    """Return the number at the start of `text`, `nan` or `inf` as a text, None if there is no number.

    `'0.1'`, `np.float64(0.1)`, `tensor(0.1, device='cuda:0')` and `1,234.5` are numbers. One with a unit
    directly behind it, such as `1.2B`, is none, and a comma that may be that of decimals, as in `2,31`.
    """
    try:
        value = float(text)
    except ValueError:
        plain = text.strip().strip("'\"")
        wrapped = _WRAPPED.match(plain)
        found = _NUMERAL.match(wrapped[1].lstrip().replace(",", " ") if wrapped else plain)
        if found is None:
            return None
        value = float(found[0].replace(",", ""))
    return value if math.isfinite(value) else str(value)
