"""Read the rows of `metrics.jsonl` in blocks of 256 KiB, in which nearly all rows have the same keys.

    block --flat objects of numbers with known keys--> one table of numbers
          --any other block--------------------------> one object a line, whose keys are known from then on

A table is several times as fast as line by line, and holds what the lines hold. Lines that are no objects are
left out. The callers interpret names and numbers.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from trainyard.errors import DamagedFileError
from trainyard.run.untrusted_files import MOST_LINE_BYTES, open_regular, parse_json_line

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_BLOCK_BYTES = 1 << 18
_MOST_NAMES = 256
"""Keys beyond which further ones are read line by line."""


@dataclass(frozen=True)
class EqualRows:
    """Consecutive rows with the same keys."""

    names: tuple[str, ...]
    values: "Sequence[Any] | NDArray[np.float64]"
    """The values of the first row, then those of the next. In an array, NaN is a key that the row lacks."""


class _TableDecoder:
    """Decode blocks whose lines are flat objects of numbers with names that earlier blocks had."""

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._decoder: Any = None

    def learn(self, names: set[str]) -> None:
        """Accept these names from now on."""
        import msgspec

        # A colon, a quote or a backslash in a name would make the count of colons below ambiguous.
        new = {
            name
            for name in names.difference(self._names)
            if not set(name) & set('":\\') and name.isprintable()
        }
        if not new or len(self._names) + len(new) > _MOST_NAMES:
            return
        self._names += tuple(sorted(new))
        fields = {f"field_{place}": name for place, name in enumerate(self._names)}
        row = msgspec.defstruct(
            "Row",
            [(field, float, math.nan) for field in fields],
            rename=fields,
            forbid_unknown_fields=True,
            gc=False,
        )
        self._decoder = msgspec.json.Decoder(list[row])  # type: ignore[valid-type]

    def decode(self, block: bytes) -> EqualRows | None:
        """Return the rows of a block; None for any block that may hold something else."""
        import msgspec
        import numpy as np

        if self._decoder is None or not block.endswith(b"}\n"):
            return None
        try:
            rows = self._decoder.decode(b"[%b]" % block[:-1].replace(b"\n", b","))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        values = np.fromiter(
            chain.from_iterable(map(msgspec.structs.astuple, rows)), float, len(rows) * len(self._names)
        )
        known = values.size - np.count_nonzero(np.isnan(values))
        # Of a key given twice the decoder keeps the last value: then the block has more colons than values.
        text = np.frombuffer(block, np.uint8)
        line_ends, colons = text == ord("\n"), np.count_nonzero(text == ord(":"))
        row_ends = np.count_nonzero(line_ends[1:] & (text[:-1] == ord("}")))
        is_row_a_line = len(rows) == row_ends == np.count_nonzero(line_ends)
        return EqualRows(self._names, values) if is_row_a_line and colons == known else None


def iterate_rows(path: Path) -> Iterator[EqualRows]:
    """Yield the rows of a file in order; a missing file has none.

    Raises DamagedFileError when the path is not a regular file or cannot be read to its end.
    """
    table = _TableDecoder()
    try:
        with open_regular(path) as file:
            for block in _blocks(file, str(path)):
                if decoded := table.decode(block):
                    yield decoded
                    continue
                names: set[str] = set()
                for rows in _single_rows(block):
                    names.update(rows.names)
                    yield rows
                table.learn(names)
    except FileNotFoundError:
        return
    except OSError:
        raise DamagedFileError(f"{path}: cannot be read to its end") from None


def _blocks(file: IO[bytes], name: str) -> Iterator[bytes]:
    """Yield complete lines of about a block."""
    while block := file.read(_BLOCK_BYTES):
        if not block.endswith(b"\n"):
            rest = file.readline(MOST_LINE_BYTES)
            if len(rest) == MOST_LINE_BYTES and not rest.endswith(b"\n"):
                raise DamagedFileError(f"{name}: damaged: a line of more than {MOST_LINE_BYTES:,} bytes")
            block += rest
        yield block


def _single_rows(block: bytes) -> Iterator[EqualRows]:
    """Yield each row by itself, but together with its neighbours of the same keys."""
    names: tuple[str, ...] = ()
    values: list[Any] = []
    rows = (parse_json_line(line) for line in block.split(b"\n") if line)
    for row in (row for row in rows if row is not None):
        keys = tuple(row)
        if keys != names and values:
            yield EqualRows(names, values)
            values = []
        names = keys
        values += row.values()
    if values:
        yield EqualRows(names, values)
