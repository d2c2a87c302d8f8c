"""Read numbers from the lines that programs print, and format numbers for their command lines."""

import math
import re
from collections.abc import Mapping

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_NUMBER = re.compile(
    r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:nan|inf(?:inity)?)", re.IGNORECASE
)

JUDGED = frozenset({"loss", "grad_norm"})
"""The figures of a row that a proof judges; others are left out of the row when they are no number."""
_LONGEST_FIGURE = 80


def without_colour(line: str) -> str:
    """Return `line` without the sequences that colour a terminal."""
    return _COLOUR.sub("", line)


def read_number(text: str) -> float | str | None:
    """Return the number at the start of `text`; None if there is none.

    A number that is not finite stays a text, because JSON has none. A proof then sees that it is not one.
    """
    found = _NUMBER.match(text.strip())
    if found is None:
        return None
    value = float(found[0].replace(",", ""))
    return value if math.isfinite(value) else found[0].lower()


def read_figures(texts: Mapping[str, str], names: Mapping[str, str]) -> dict[str, float | str]:
    """Return the figures of a row; `names` has the key of each name that the program prints."""
    found: dict[str, float | str] = {}
    for name, key in names.items():
        if name not in texts:
            continue
        value = read_figure(texts[name]) if key in JUDGED else read_number(texts[name])
        if value is not None:
            found[key] = value
    return found


def read_figure(text: str) -> float | str:
    """Return the number at the start of `text`; if there is none, the text itself.

    It is for figures of which a proof must see that they were printed and are no number, such as `None`.
    """
    value = read_number(text)
    return text.strip()[:_LONGEST_FIGURE] if value is None else value


def read_whole_number(text: str) -> int | None:
    """Return the whole number that `text` is; None for anything else."""
    plain = text.strip().replace(",", "")
    return int(plain) if re.fullmatch(r"\d{1,15}", plain) else None


def format_number(value: float) -> str:
    """Return the shortest text that reads back as exactly this number; whole numbers have no point."""
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))
