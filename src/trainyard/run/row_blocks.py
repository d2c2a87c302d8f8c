"""Read the rows of `metrics.jsonl` in blocks of 256 KiB, in which nearly all rows have the same keys.

    block --flat objects of numbers with known keys--> one table of numbers
          --any other block--------------------------> one object a line, whose keys are known from then on

A table is several times as fast as line by line. Lines that are no objects are left out. Reports show these
rows; the proof reads the file line by line, and refuses a key that is given twice.
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


def iterate_rows(path: Path) -> Iterator[EqualRows]:
    """Yield the rows of a file in order; a missing file has none.

    Raises DamagedFileError when the path is not a regular file or cannot be read to its end.
    """
    names: tuple[str, ...] = ()
    decoder: Any = None
    try:
        with open_regular(path) as file:
            for block in _blocks(file, str(path)):
                if decoder and (table := _decode_table(decoder, names, block)):
                    yield table
                    continue
                new = set[str]()
                for rows in _single_rows(block):
                    new.update(rows.names)
                    yield rows
                # msgspec takes no other names.
                new = {
                    name
                    for name in new.difference(names)
                    if name.isprintable() and not set(name) & set('"\\')
                }
                if new and len(names) + len(new) <= _MOST_NAMES:
                    names += tuple(sorted(new))
                    decoder = _table_decoder(names)
    except FileNotFoundError:
        return
    except OSError:
        raise DamagedFileError(f"{path}: cannot be read to its end") from None


def _table_decoder(names: tuple[str, ...]) -> Any:
    """Return a decoder of lists of flat objects of numbers with these names."""
    import msgspec

    fields = {f"field_{place}": name for place, name in enumerate(names)}
    numbers = [(field, float, math.nan) for field in fields]
    row = msgspec.defstruct("Row", numbers, rename=fields, forbid_unknown_fields=True, gc=False)
    return msgspec.json.Decoder(list[row])  # type: ignore[valid-type]


def _decode_table(decoder: Any, names: tuple[str, ...], block: bytes) -> EqualRows | None:
    """Return the rows of a block; None for a block that holds anything else."""
    import msgspec
    import numpy as np

    try:
        rows = decoder.decode(b"[%b]" % block.rstrip().replace(b"\n", b","))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    values = chain.from_iterable(map(msgspec.structs.astuple, rows))
    return EqualRows(names, np.fromiter(values, float, len(rows) * len(names)))


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
