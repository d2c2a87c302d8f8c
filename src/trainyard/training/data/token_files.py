"""Write, check and read token files: little-endian integers without a header, memory-mapped for reading.

`vocabulary` defines what the tokens mean; `batches` chooses which ones are drawn.
"""

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard.errors import DataError
from trainyard.run.atomic_files import sha256_of_file
from trainyard.run.progress import UNSEEN, Progress
from trainyard.run.suggested_commands import trainyard_command
from trainyard.training.data.validation_split import WHOLE, Portion
from trainyard.training.data.vocabulary import TokenArray

_CHUNK_TOKENS = 1 << 22
LARGE_BYTES = 1 << 30
"""Smaller files are hashed at every reuse, which takes half a second at most."""


class FileState(NamedTuple):
    """Values that change whenever somebody writes to a file; the change time (ctime) cannot be set back."""

    modified_ns: int
    changed_ns: int
    inode: int
    size: int

    @classmethod
    def of(cls, status: os.stat_result) -> "FileState":
        return cls(status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size)


@dataclass(frozen=True)
class TokenFile:
    """Tokens on disk."""

    path: Path
    dtype: str
    """An integer type, such as uint16."""
    tokens: int
    sha256: str
    """The digest of the file's bytes, lower-case hex."""
    seen: FileState | None = field(default=None, compare=False)
    """The state of the file when its digest was last verified."""
    documents: "TokenFile | None" = None
    """The positions of the first tokens of documents, ascending; None unless requested."""
    part_of: tuple[int, int] | None = None
    """The first token of the part and the tokens of the complete file; None for a complete file.

    The digest is that of the complete file.
    """

    @property
    def _file_tokens(self) -> int:
        return self.part_of[1] if self.part_of else self.tokens

    @property
    def is_large(self) -> bool:
        return self._file_tokens * np.dtype(self.dtype).itemsize >= LARGE_BYTES

    @property
    def is_complete(self) -> bool:
        """Return whether the file exists and has the right size. The content is not read."""
        try:
            found = self.path.stat()
        except OSError:  # another process may be replacing it
            return False
        has_size = (
            stat.S_ISREG(found.st_mode) and found.st_size == self._file_tokens * np.dtype(self.dtype).itemsize
        )
        return has_size and (self.documents is None or self.documents.is_complete)

    def verify(self, progress: Progress = UNSEEN) -> "TokenFile | None":
        """The file with its current state; None when it is missing or its digest differs.

        A large file that was not written to since it was hashed is not read.
        """
        if not self.is_complete or (self.documents and not self.documents.verify()):
            return None
        try:
            # Take the state before reading the content, so that a write in between is noticed next time.
            state = FileState.of(self.path.stat())
            if self.is_large and state == self.seen:
                return self
            return replace(self, seen=state) if sha256_of_file(self.path, progress) == self.sha256 else None
        except FileNotFoundError:  # removed meanwhile
            return None

    def open(self) -> TokenArray:
        """The tokens `[tokens]`, memory-mapped, read-only. Raises DataError when the file is incomplete."""
        if not self.is_complete:
            raise DataError(
                f"{self.path}: missing, or no longer {self._file_tokens:,} {self.dtype} tokens. "
                f"Run {trainyard_command('prepare')} again."
            )
        tokens = np.memmap(self.path, dtype=_stored_type(self.dtype), mode="r")
        first = self.part_of[0] if self.part_of else 0
        return tokens[first : first + self.tokens]

    def part(self, first: int, end: int) -> "TokenFile":
        """The tokens `first` to `end` (exclusive) of a file that is used in place."""
        return replace(self, tokens=end - first, part_of=(first, self._file_tokens))


class TokenWriter:
    """Writes a token file and hashes it while writing. The caller names and publishes the file."""

    def __init__(self, path: Path, dtype: str) -> None:
        self._path, self._dtype = path, dtype
        self._file = path.open("wb", buffering=1 << 20)
        self._digest = hashlib.sha256()
        self.tokens = 0
        """The number of tokens written."""

    def write(self, tokens: TokenArray) -> None:
        content = np.ascontiguousarray(tokens, dtype=_stored_type(self._dtype)).data
        self._file.write(content)
        self._digest.update(content)
        self.tokens += tokens.size

    def finish(self) -> TokenFile:
        """Make the file durable and describe it."""
        self._file.flush()
        os.fsync(self._file.fileno())
        state = FileState.of(os.fstat(self._file.fileno()))
        return TokenFile(self._path, self._dtype, self.tokens, self._digest.hexdigest(), state)

    def __enter__(self) -> "TokenWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def copy_tokens(
    path: Path,
    writer: TokenWriter,
    *,
    dtype: str,
    vocab_size: int,
    portion: Portion = WHOLE,
    progress: Progress = UNSEEN,
) -> None:
    """Append the pre-tokenised file at `path` to `writer` and check each id as `check_tokens` does."""
    first, end = portion.span(path.stat().st_size // np.dtype(dtype).itemsize)
    place = 0
    for chunk in _checked_chunks(path, dtype, vocab_size):
        writer.write(chunk[max(0, first - place) : max(0, end - place)])
        place += chunk.size
        progress.advance(chunk.nbytes)


def check_tokens(path: Path, dtype: str, vocab_size: int, progress: Progress = UNSEEN) -> TokenFile:
    """Describe the pre-tokenised file at `path`, which is used in place.

    Raises DataError naming the first token that is not below `vocab_size`.
    """
    state = FileState.of(path.stat())
    digest, tokens = hashlib.sha256(), 0
    for chunk in _checked_chunks(path, dtype, vocab_size):
        digest.update(np.ascontiguousarray(chunk).data)
        tokens += chunk.size
        progress.advance(chunk.nbytes)
    return TokenFile(path.absolute(), dtype, tokens, digest.hexdigest(), state)


def places_after(path: Path, dtype: str, token: int) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the positions after each `token` in the file at `path`, ascending, in parts."""
    for start, chunk in _chunks(path, dtype):
        yield np.flatnonzero(chunk == token).astype(np.int64) + start + 1


def _chunks(path: Path, dtype: str) -> Iterator[tuple[int, TokenArray]]:
    """Yield parts of the file at `path`, each with the position of its first token."""
    tokens = np.memmap(path, dtype=_stored_type(dtype), mode="r")
    for start in range(0, tokens.size, _CHUNK_TOKENS):
        yield start, np.asarray(tokens[start : start + _CHUNK_TOKENS])


def _checked_chunks(path: Path, dtype: str, vocab_size: int) -> Iterator[TokenArray]:
    for start, chunk in _chunks(path, dtype):
        if int(chunk.max()) >= vocab_size or int(chunk.min()) < 0:
            place = int(np.argmax((chunk >= vocab_size) | (chunk < 0)))
            raise DataError(
                f"{path}: token {int(chunk[place]):,} at position {start + place:,}, but ids must be 0 or "
                f"more and below model.architecture.vocab_size, {vocab_size:,}. Set it to the size of the "
                "vocabulary that the file was written with, or data.bin_dtype to the type of its integers "
                f"(read: {dtype}); that of a Megatron dataset is in its .idx file."
            )
        yield chunk


def _stored_type(dtype: str) -> np.dtype[np.integer[Any]]:
    return np.dtype(dtype).newbyteorder("<")
