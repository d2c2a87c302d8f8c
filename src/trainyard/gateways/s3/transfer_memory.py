"""Memory for the parts and ranges being transferred: one budget for all files of a store.

The buffers are mapped from the system and returned to it, because the process keeps heap memory that threads
free.
"""

import mmap
import threading

BUDGET_BYTES = 128 << 20
"""Eight parts of 16 MiB."""


class TransferMemory:
    """Lends buffers of any size, at most `budget` bytes at a time; a larger buffer is lent alone."""

    def __init__(self, budget: int = BUDGET_BYTES) -> None:
        self._budget, self._lent = budget, 0
        self._changed = threading.Condition()

    def take(self, size: int, *, wait: bool = True) -> mmap.mmap | None:
        """Return a buffer of `size` bytes for `give` to take back; None if none is left and `wait` is False.

        A caller that waits must not hold a buffer that only it can return: two such callers would deadlock.
        """
        with self._changed:
            if not wait and not self._has_room(size):
                return None
            self._changed.wait_for(lambda: self._has_room(size))
            self._lent += size
            return mmap.mmap(-1, size)

    def give(self, buffer: mmap.mmap) -> None:
        """Take back a buffer that nobody reads or fills any more."""
        with self._changed:
            self._lent -= len(buffer)
            self._changed.notify_all()

    def _has_room(self, size: int) -> bool:
        return not self._lent or self._lent + size <= self._budget
