"""Read numbers as training programs print them: quoted, in `tensor(…)`, or not finite.

A number that is not finite becomes a text, because JSON has no such number; a proof treats it as a fault.
"""

import math
import re

NUMBER = (
    r"(?:[A-Za-z_][\w.]*\([^()]*\)|[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
    r"|[-+]?(?i:nan|inf(?:inity)?))(?!\w)"
)
"""A number as a program prints it: plain, not finite, or in the name of its type."""
_PLAIN = re.compile(
    r"[-+]?(?:\d{1,3}(?:,\d{3})++(?:\.\d*+)?+|\d++\.?+\d*+|\.\d++)(?:e[-+]?\d++)?+(?![\w,])"
    r"|[-+]?(?:nan|inf(?:inity)?)(?!\w)",
    re.IGNORECASE,
)
_WRAPPED = re.compile(r"[A-Za-z_][\w.]*\((.*)")
_LONGEST_FIGURE = 80


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
        found = _PLAIN.match(wrapped[1].lstrip().replace(",", " ") if wrapped else plain)
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
