"""Memory for the parts and ranges that are on their way: one budget for all files of a store.

It comes from the system and goes back to it: what threads free of the heap stays with the process.
"""

import mmap
import threading

BUDGET_BYTES = 128 << 20
"""Eight parts of 16 MiB."""


class Memory:
    """Lends buffers of any size, at most `budget` bytes at a time; a larger buffer is lent alone."""

    def __init__(self, budget: int = BUDGET_BYTES) -> None:
        self._budget, self._lent = budget, 0
        self._spare: list[mmap.mmap] = []
        """Buffers that came back, all of one size: new ones would be filled with zeros first."""
        self._changed = threading.Condition()

    def take(self, size: int, *, wait: bool = True) -> mmap.mmap | None:
        """A buffer of `size` bytes, which `give` takes back; None where none is left and `wait` is False.

        Who waits must hold no buffer that only he gives back: two of them would wait for each other.
        """
        with self._changed:
            if not wait and not self._has_room(size):
                return None
            self._changed.wait_for(lambda: self._has_room(size))
            self._lent += size
            if self._spare and len(self._spare[0]) != size:
                self._spare = []
            return self._spare.pop() if self._spare else mmap.mmap(-1, size)

    def give(self, buffer: mmap.mmap) -> None:
        """Take a buffer back that nobody reads or fills any more."""
        with self._changed:
            self._lent -= len(buffer)
            if not self._spare or len(self._spare[0]) == len(buffer):
                self._spare.append(buffer)
            self._changed.notify_all()

    def _has_room(self, size: int) -> bool:
        return not self._lent or self._lent + size <= self._budget
