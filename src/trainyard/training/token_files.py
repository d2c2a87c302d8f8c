"""Files of tokens: bare integers in little-endian order, memory-mapped to read.

It writes and checks them; what the tokens mean is the vocabulary's affair, which ones are drawn is that of
`batches`.
"""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from trainyard.errors import DataError
from trainyard.training.vocabulary import TokenArray

_CHUNK_TOKENS = 1 << 22


@dataclass(frozen=True)
class TokenFile:
    """Tokens on disk."""

    path: Path
    dtype: str
    """uint8, uint16 or uint32."""
    tokens: int
    sha256: str
    """Of the file's bytes, lower-case hex."""

    @property
    def is_whole(self) -> bool:
        """Whether the file is there and has its size; the content is not read."""
        size = self.tokens * np.dtype(self.dtype).itemsize
        return self.path.is_file() and self.path.stat().st_size == size

    def open(self) -> "np.memmap[Any, np.dtype[np.unsignedinteger[Any]]]":
        """The tokens `[tokens]`, memory-mapped, read only. Raises DataError when the file is not whole."""
        if not self.is_whole:
            raise DataError(
                f"{self.path}: missing, or no longer {self.tokens:,} {self.dtype} tokens. "
                "Run scripts/prepare_data.py again."
            )
        return np.memmap(self.path, dtype=_stored(self.dtype), mode="r")


class TokenWriter:
    """Writes a token file and hashes it on the way. The caller names it and makes it appear."""

    def __init__(self, path: Path, dtype: str) -> None:
        self._path, self._dtype = path, dtype
        self._file = path.open("wb", buffering=1 << 20)
        self._digest = hashlib.sha256()
        self._tokens = 0

    def write(self, tokens: TokenArray) -> None:
        content = np.ascontiguousarray(tokens, dtype=_stored(self._dtype)).data
        self._file.write(content)
        self._digest.update(content)
        self._tokens += tokens.size

    def finish(self) -> TokenFile:
        """Make the file durable and describe it."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return TokenFile(self._path, self._dtype, self._tokens, self._digest.hexdigest())

    def __enter__(self) -> "TokenWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def copy_tokens(path: Path, dtype: str, vocab_size: int, writer: TokenWriter) -> None:
    """Append the pre-tokenised file at `path` to `writer`, checking each id as `check_tokens` does."""
    for chunk in _checked_chunks(path, dtype, vocab_size):
        writer.write(chunk)


def check_tokens(path: Path, dtype: str, vocab_size: int) -> TokenFile:
    """Describe the pre-tokenised file at `path`, for use where it lies.

    Raises DataError naming the first token that is not below `vocab_size`.
    """
    digest, tokens = hashlib.sha256(), 0
    for chunk in _checked_chunks(path, dtype, vocab_size):
        digest.update(np.ascontiguousarray(chunk).data)
        tokens += chunk.size
    return TokenFile(path.absolute(), dtype, tokens, digest.hexdigest())


def _checked_chunks(path: Path, dtype: str, vocab_size: int) -> Iterator[TokenArray]:
    tokens = np.memmap(path, dtype=_stored(dtype), mode="r")
    for start in range(0, tokens.size, _CHUNK_TOKENS):
        chunk = np.asarray(tokens[start : start + _CHUNK_TOKENS])
        if int(chunk.max()) >= vocab_size:
            place = start + int(np.argmax(chunk >= vocab_size))
            raise DataError(
                f"{path}: token {int(tokens[place]):,} at position {place:,}, but ids must be below "
                f"model.architecture.vocab_size, {vocab_size:,}. Set it to the size of the vocabulary that "
                f"the file was written with, or data.bin_dtype (now {dtype}) to the type of its integers."
            )
        yield chunk


def _stored(dtype: str) -> np.dtype[np.unsignedinteger[Any]]:
    return np.dtype(dtype).newbyteorder("<")
