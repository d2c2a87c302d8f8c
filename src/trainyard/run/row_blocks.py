"""Read the rows of `metrics.jsonl` in blocks of 256 KiB, in which nearly all rows have the same keys.

    block --one flat list of names and numbers--> rows with the same keys as one list of numbers
          --any other block-----------------------> one object a line

A block whose lines are flat objects of numbers is parsed as one list, several times as fast as line by line.
Lines that are no objects are left out. The callers interpret names and numbers.
"""

import io
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from trainyard.errors import DamagedFileError
from trainyard.run.untrusted_files import (
    MOST_LINE_BYTES,
    MOST_SKIPPED_BYTES,
    open_regular,
    parse_json_line,
    parse_json_lines,
)

_BLOCK_BYTES = 1 << 18
_SEPARATORS = bytes.maketrans(b"{}:\n", b" ,, ")
_MOST_OTHER_ROWS = 64
"""Number of rows with other keys in a block above which each row is parsed by itself."""

_AT_ONCE = 64
"""Number of rows whose keys are compared at once."""


@dataclass(frozen=True)
class EqualRows:
    """Consecutive rows with the same keys."""

    names: tuple[str, ...]
    values: Sequence[Any]
    """The values of the first row, then those of the next."""
    are_numbers: bool = False
    """Whether it is known that all are int or float."""


def iterate_rows(path: Path) -> Iterator[EqualRows]:
    """Yield the rows of a file in order; a missing file has none.

    Raises DamagedFileError when the path is not a regular file or cannot be read to its end.
    """
    try:
        with io.BufferedReader(open_regular(path), _BLOCK_BYTES) as file:
            for block in _blocks(file, str(path)):
                yield from _equal_rows(block) or _single_rows(block)
    except FileNotFoundError:
        return
    except OSError:
        raise DamagedFileError(f"{path}: cannot be read to its end") from None


def _blocks(file: IO[bytes], name: str) -> Iterator[bytes]:
    """Yield complete lines of about a block. A line that is too long is skipped in pieces."""
    while block := file.read(_BLOCK_BYTES):
        if not block.endswith(b"\n"):
            rest = file.readline(MOST_LINE_BYTES)
            if rest.endswith(b"\n") or len(rest) < MOST_LINE_BYTES:
                block += rest
            else:
                _skip_line(file, name)
                block = block[: block.rfind(b"\n") + 1]
        yield block


def _skip_line(file: IO[bytes], name: str) -> None:
    skipped = 0
    while rest := file.readline(MOST_LINE_BYTES):
        skipped += len(rest)
        if rest.endswith(b"\n"):
            return
        if skipped > MOST_SKIPPED_BYTES:
            raise DamagedFileError(f"{name}: cannot be read to its end")


def _single_rows(block: bytes) -> Iterator[EqualRows]:
    """Yield each row by itself, but together with its neighbours of the same keys."""
    names: tuple[str, ...] = ()
    values: list[Any] = []
    for row in parse_json_lines([line for line in block.split(b"\n") if line]):
        keys = tuple(row)
        if keys != names and values:
            yield EqualRows(names, values)
            values = []
        names = keys
        values += row.values()
    if values:
        yield EqualRows(names, values)


def _equal_rows(block: bytes) -> list[EqualRows]:
    """Return the rows of a block whose lines are flat objects of numbers; nothing for any other block."""
    from jiter import from_json

    flat: list[Any] = [0]
    with suppress(ValueError):
        # Each row ends with a comma; the 0 completes the list without another copy of the block.
        flat = from_json(b"[%b0]" % block.translate(_SEPARATORS), cache_mode="all")
    keys, values = flat[0:-1:2], flat[1::2]
    if not set(map(type, values)) <= {int, float} or not _is_flat(block, len(values)):
        return []
    first, _, _ = block.partition(b"\n")
    names = tuple(parse_json_line(first) or ())
    rows, found = _split(keys, values, names) if names else (0, [])
    return found if rows == block.count(b"\n") else []


def _is_flat(block: bytes, values: int) -> bool:
    """Return whether each line begins with `{` and ends with `}`, and each of `values` follows a `":`.

    The list of the values does not show it: braces, colons and line ends became commas and spaces there.
    """
    import numpy as np

    text = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(text == ord("\n"))
    if not len(ends) or ends[-1] != len(text) - 1 or text[0] != ord("{"):
        return False
    begin, close = (np.count_nonzero(text == ord(brace)) == len(ends) for brace in "{}")
    whole = begin and close and bool((text[ends[:-1] + 1] == ord("{")).all())
    if not whole or not (text[ends - 1] == ord("}")).all():
        return False
    colons = text == ord(":")
    after_names = np.count_nonzero(colons[1:] & (text[:-1] == ord('"')))
    commas = np.count_nonzero(text == ord(","))
    return bool(after_names == np.count_nonzero(colons) == values and commas == values - len(ends))


def _split(keys: list[Any], values: list[Any], names: tuple[str, ...]) -> tuple[int, list[EqualRows]]:
    """Return the number of rows, and the rows, divided before and after each row with other keys.

    Each row must begin with the same key as the first one. If one does not, or too many have other keys, the
    result is empty.
    """
    width, usual = len(names), list(names)
    count, rest = divmod(len(keys), width)
    if not rest and keys == usual * count:
        return count, [EqualRows(names, values, are_numbers=True)]
    many = usual * _AT_ONCE
    found: list[EqualRows] = []
    rows, start, at = 0, 0, 0
    while at < len(keys):
        if keys[at : at + len(many)] == many and keys[at + len(many) : at + len(many) + 1] == usual[:1]:
            at += len(many)
            rows += _AT_ONCE
            continue
        if keys[at : at + width] == usual and (at + width == len(keys) or keys[at + width] == usual[0]):
            at += width
        else:
            end = at + 1
            while end < len(keys) and keys[end] != usual[0]:
                end += 1
            others = keys[at:end]
            if others[0] != usual[0] or set(map(type, others)) != {str} or len(set(others)) < len(others):
                return 0, []
            if at > start:
                found.append(EqualRows(names, values[start:at], are_numbers=True))
            found.append(EqualRows(tuple(others), values[at:end], are_numbers=True))
            start = at = end
            if len(found) > 2 * _MOST_OTHER_ROWS:
                return 0, []
        rows += 1
    if at > start:
        found.append(EqualRows(names, values[start:at], are_numbers=True))
    return rows, found
