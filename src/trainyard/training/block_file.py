"""A file written in whole blocks, from memory of this process to the disk, past the system's page cache.

Pages for a whole checkpoint are taken from what training reads, and where free memory is given back to a host
they cost a processor more than hashing does: docs/benchmarks.md. Where a file system refuses such writes
(open(2), O_DIRECT) the blocks go through its cache.
"""

import errno
import os
from pathlib import Path
from types import TracebackType
from typing import Self

BLOCK_BYTES = 4 << 20
"""Of a write; a multiple of every device's own block, and of a page."""
_PAST_THE_CACHE = getattr(os, "O_DIRECT", 0)
"""Linux alone has it."""
_REFUSALS = (errno.EINVAL, errno.EOPNOTSUPP)


class BlockFile:
    """A new file, or an old one emptied."""

    def __init__(self, path: Path) -> None:
        """Open it. Raises OSError."""
        self._path = path
        self._descriptor, self._is_direct = _open(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it; it is whole if it was finished."""
        os.close(self._descriptor)

    def write(self, block: memoryview) -> None:
        """Append `block`, whose memory begins with a page. Raises OSError.

        One that is no multiple of BLOCK_BYTES goes through the cache, and so do all after it.
        """
        if len(block) % BLOCK_BYTES:
            self._use_cache()
        rest = block
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except OSError as error:
                if not self._is_direct or error.errno not in _REFUSALS:
                    raise
                self._use_cache()

    def finish(self) -> None:
        """Have all of it on the disk. Raises OSError."""
        os.fsync(self._descriptor)

    def _use_cache(self) -> None:
        """By opening it once more: of a flag that is taken back a file system in user space hears nothing."""
        if not self._is_direct:
            return
        direct, place = self._descriptor, os.lseek(self._descriptor, 0, os.SEEK_CUR)
        self._descriptor, self._is_direct = os.open(self._path, os.O_WRONLY), False
        os.close(direct)
        os.lseek(self._descriptor, place, os.SEEK_SET)


def _open(path: Path) -> tuple[int, bool]:
    """Its descriptor, and whether it goes past the cache."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    if _PAST_THE_CACHE:
        try:
            return os.open(path, flags | _PAST_THE_CACHE, 0o666), True
        except OSError as error:
            if error.errno not in _REFUSALS:
                raise
    return os.open(path, flags, 0o666), False
