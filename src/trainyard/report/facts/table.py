"""A table of text: columns as wide as their longest cell, the last one wrapped below itself."""

import textwrap
from collections.abc import Sequence

_GAP = "  "
_NARROWEST = 24


def wrap_table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, width: int) -> list[str]:
    """The lines of a table whose last column is wrapped at `width` cells; no lines without rows."""
    if not rows:
        return []
    lines = [tuple(heads), *(tuple(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads) - 1)]
    indent = sum(widths) + len(_GAP) * len(widths)
    room = max(_NARROWEST, width - indent)
    result = []
    for line in lines:
        start = "".join(cell.ljust(size) + _GAP for cell, size in zip(line[:-1], widths, strict=True))
        first, *more = textwrap.wrap(line[-1], room, break_long_words=False, break_on_hyphens=False) or [""]
        result.append((start + first).rstrip())
        result.extend(" " * indent + part for part in more)
    return result
