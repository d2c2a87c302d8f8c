"""A file written in whole blocks, from memory of this process to the disk, past the system's page cache.

Pages for a checkpoint that is to be read much later, if at all, are taken from what training reads, and cost
a processor more than hashing it where memory is a virtual machine's: docs/benchmarks.md. Where a file
system knows no such writes (open(2), O_DIRECT) the blocks go through its cache.
"""

import errno
import fcntl
import mmap
import os
from pathlib import Path
from types import TracebackType
from typing import Self

BLOCK_BYTES = 4 << 20
"""Of each write but the last; a multiple of every device's own block, and of a page."""
_PAST_THE_CACHE = getattr(os, "O_DIRECT", 0)
"""Linux alone has it."""


class BlockFile:
    """A new file, or an old one emptied."""

    def __init__(self, path: Path) -> None:
        """Open it. Raises OSError."""
        self._descriptor, self._is_direct = _open(path)
        self._block, self._filled = memoryview(mmap.mmap(-1, BLOCK_BYTES)), 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it; it is whole if it was finished."""
        os.close(self._descriptor)

    def write(self, content: bytes | memoryview) -> None:
        """Append it. Raises OSError."""
        rest = memoryview(content)
        while rest:
            piece = rest[: BLOCK_BYTES - self._filled]
            end = self._filled + len(piece)
            self._block[self._filled : end] = piece
            self._filled, rest = end, rest[len(piece) :]
            if end == BLOCK_BYTES:
                self._put()

    def finish(self) -> None:
        """Have all of it on the disk. Raises OSError."""
        self._use_cache()  # no block is whole but those before
        self._put()
        os.fsync(self._descriptor)

    def _put(self) -> None:
        rest, self._filled = self._block[: self._filled], 0
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except OSError as error:
                if not self._is_direct or error.errno != errno.EINVAL:
                    raise
                self._use_cache()

    def _use_cache(self) -> None:
        if self._is_direct:
            flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags & ~_PAST_THE_CACHE)
            self._is_direct = False


def _open(path: Path) -> tuple[int, bool]:
    """Its descriptor, and whether it goes past the cache."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        return os.open(path, flags | _PAST_THE_CACHE, 0o666), bool(_PAST_THE_CACHE)
    except OSError as error:
        if not _PAST_THE_CACHE or error.errno != errno.EINVAL:
            raise
        return os.open(path, flags, 0o666), False
