"""Read numbers as training programs print them: quoted, in `tensor(…)`, with thousands commas, or not finite.

A number that is not finite becomes a text, because JSON has no such number; a proof treats it as a fault.
"""

import math
import re
from collections.abc import Mapping

_NUMBER = re.compile(
    r"[-+]?(?:\d[\d,]*+\.?+\d*+|\.\d++)(?:e[-+]?\d++)?+(?!\w)|[-+]?(?:nan|inf(?:inity)?)(?!\w)", re.IGNORECASE
)
_WRAPPED = re.compile(r"[A-Za-z_][\w.]*\((.*)")

JUDGED = frozenset({"loss", "val_loss", "grad_norm"})
"""The figures of a row that a proof judges; they stay in the row as text if they are not numbers."""
_LONGEST_FIGURE = 80


def read_number(text: str) -> float | str | None:
    """Return the number at the start of `text`, `nan` or `inf` as a text, None if there is no number.

    `'0.1'`, `np.float64(0.1)`, `tensor(0.1, device='cuda:0')` and `1,234` are numbers. One with a unit
    directly behind it, such as `1.2B`, is none.
    """
    try:
        value = float(text)
    except ValueError:
        plain = text.strip().strip("'\"")
        wrapped = _WRAPPED.match(plain)
        found = _NUMBER.match(wrapped[1].lstrip() if wrapped else plain)
        if found is None:
            return None
        value = float(found[0].replace(",", ""))
    return value if math.isfinite(value) else str(value)


def read_figure(text: str) -> float | str:
    """Return the number at the start of `text`; if there is none, the text itself.

    A proof must see that such a figure was printed but is not a number, such as `None`.
    """
    value = read_number(text)
    return text.strip()[:_LONGEST_FIGURE] if value is None else value


def read_figures(texts: Mapping[str, str], names: Mapping[str, str]) -> dict[str, float | str]:
    """Return the figures of a row; `names` has the name in a row for each name that the program prints."""
    found: dict[str, float | str] = {}
    for name, key in names.items():
        if (text := texts.get(name)) is None or key in found:
            continue
        value = read_figure(text) if key in JUDGED else read_number(text)
        if value is not None and (key in JUDGED or not isinstance(value, str)):
            found[key] = value
    return found


def read_whole_number(text: str) -> int | None:
    """Return `text` as an integer; None for anything else."""
    plain = text.strip().replace(",", "")
    return int(plain) if re.fullmatch(r"\d{1,15}", plain) else None
