"""Read the index of a Megatron dataset: the sequences and documents in the tokens of a `.bin` file.

The format is that of Megatron-LM's `megatron/core/datasets/indexed_dataset.py`, all numbers little-endian:

    "MMIDIDX" 0 0 | version u64 = 1 | type of the tokens u8 | sequences u64 | document marks u64 |
    lengths in tokens i32 × sequences | byte offsets i64 × sequences | first sequences i64 × document marks

There is one more document mark than documents; the last mark is the number of sequences. `token_files` reads
the tokens themselves.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trainyard.errors import DataError

SUFFIX = ".idx"
_MAGIC = b"MMIDIDX\x00\x00"
_VERSION = 1
_HEADER = struct.Struct("<9sQBQQ")
_TYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float64", 7: "float32", 8: "uint16"}
_CHUNK = 1 << 20


@dataclass(frozen=True)
class MegatronIndex:
    """An index that is consistent and fits its `.bin` file."""

    dtype: str
    """The type of the tokens."""
    lengths: npt.NDArray[np.int32]
    """The number of tokens of each sequence."""
    documents: npt.NDArray[np.int64]
    """The first sequence of each document, then the number of sequences."""

    def document_starts(self) -> Iterator[npt.NDArray[np.int64]]:
        """Yield the positions of the first tokens of all non-empty documents, ascending, in parts."""
        before = 0
        for first in range(0, self.documents.size - 1, _CHUNK):
            marks = self.documents[first : first + _CHUNK + 1]
            tokens = self.lengths[marks[0] : marks[-1]].astype(np.int64)
            starts = before + np.concatenate(([0], np.cumsum(tokens)))[marks - marks[0]]
            yield starts[:-1][np.diff(starts) > 0]
            before = int(starts[-1])


def index_beside(tokens: Path) -> Path | None:
    """The path of the index of the `.bin` file `tokens`; None if it has none."""
    path = tokens.with_suffix(SUFFIX)
    return path if path.is_file() else None


def read_megatron_index(path: Path, tokens: Path) -> MegatronIndex:
    """Read the index at `path` of the `.bin` file `tokens`, but not the tokens.

    Raises DataError when the index is damaged, has a type that is not for token ids, or does not describe
    all of `tokens`.
    """
    dtype, sequences, marks = _header(path)
    content: np.memmap[Any, np.dtype[np.uint8]] = np.memmap(path, np.uint8, mode="r")
    expected = _HEADER.size + 12 * sequences + 8 * marks
    if content.size != expected:
        raise _damage_error(
            path, f"{content.size:,} bytes where its {sequences:,} sequences take {expected:,}"
        )
    ends = np.cumsum([_HEADER.size, 4 * sequences, 8 * sequences, 8 * marks]).tolist()
    parts = [content[start:end] for start, end in pairwise(ends)]
    lengths, offsets, documents = (
        part.view(kind) for part, kind in zip(parts, ("<i4", "<i8", "<i8"), strict=True)
    )
    if not marks or documents[0] != 0 or documents[-1] != sequences or (np.diff(documents) < 0).any():
        raise _damage_error(path, f"its documents are not its {sequences:,} sequences in order")
    _check_sequences(path, (lengths, offsets), tokens, width=np.dtype(dtype).itemsize)
    return MegatronIndex(dtype, lengths, documents)


def _header(path: Path) -> tuple[str, int, int]:
    """Return the type of the tokens, the number of sequences and the number of document marks."""
    with path.open("rb") as file:
        head = file.read(_HEADER.size)
    if not head.startswith(_MAGIC):
        raise DataError(
            f"{path}: not the index of a Megatron dataset, though it lies beside a .bin file. If that file "
            f"is bare tokens of data.bin_dtype, move the {SUFFIX} file away."
        )
    if len(head) < _HEADER.size:
        raise _damage_error(path, f"{len(head)} bytes, less than a header")
    _, version, code, sequences, marks = _HEADER.unpack(head)
    if version != _VERSION:
        raise _damage_error(path, f"version {version}, and only {_VERSION} is known")
    dtype = _TYPES.get(code)
    if dtype is None or dtype.startswith("float"):
        raise _damage_error(path, f"its tokens are of type {dtype or code}, which holds no token ids")
    return dtype, sequences, marks


def _check_sequences(path: Path, table: tuple[Any, Any], tokens: Path, *, width: int) -> None:
    """Check that the sequences fill `tokens` from the first byte to the last in order, as Megatron writes.

    Each token has `width` bytes.
    """
    lengths, offsets = table
    end, size = 0, tokens.stat().st_size
    for first in range(0, lengths.size, _CHUNK):
        part = lengths[first : first + _CHUNK].astype(np.int64)
        if int(part.min()) < 0:
            raise _damage_error(path, f"sequence {first + int(np.argmin(part)):,} has a length below zero")
        starts = end + (np.cumsum(part) - part) * width
        wrong = np.flatnonzero(offsets[first : first + _CHUNK] != starts)
        if wrong.size:
            number = first + int(wrong[0])
            where = f"starts at byte {int(offsets[number]):,}, not where the one before it ends"
            raise _damage_error(path, f"sequence {number:,} {where}")
        end = int(starts[-1] + part[-1] * width)
        if end > size:
            break
    if end != size:
        raise _damage_error(path, f"its sequences are {end:,} bytes, and {tokens.name} has {size:,}")


def _damage_error(path: Path, what: str) -> DataError:
    return DataError(
        f"{path}: {what}. The index and its .bin file must both come complete from one run of Megatron-LM's "
        "tools/preprocess_data.py; copy both again, or write them again."
    )
