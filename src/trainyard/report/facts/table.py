"""A table of text: columns as wide as their longest cell, the last one wrapped below itself."""

import textwrap
from collections.abc import Sequence

_GAP = "  "
_NARROWEST = 24
_INDENT = 4


def wrap_table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, width: int) -> list[str]:
    """The lines of a table whose last column is wrapped at `width` cells; no lines without rows.

    Where the other columns leave too little room, the last cell of a row is on lines of its own below it.
    """
    if not rows:
        return []
    lines = [tuple(heads), *map(tuple, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads) - 1)]
    beside = sum(widths) + len(_GAP) * len(widths)
    is_beside = width - beside >= min(_NARROWEST, max(len(row[-1]) for row in rows))
    indent = beside if is_beside else _INDENT
    result: list[str] = []
    for line in lines:
        start = "".join(cell.ljust(size) + _GAP for cell, size in zip(line[:-1], widths, strict=True))
        room = max(_NARROWEST, width - indent)
        last = textwrap.wrap(line[-1], room, break_long_words=False, break_on_hyphens=False)
        if is_beside:
            start += last.pop(0) if last else ""
        elif line is lines[0]:
            last = []
        result += [start.rstrip(), *(" " * indent + part for part in last)]
    return result
