"""A large file on its way from a store to a disk: part by part, each compared by itself as it lands.

    on any thread: read a piece of a part → BLAKE3, write → compare the part, read it again where it is wrong

In any order, on any number of processors, in little memory: a piece is hashed and written while the processor
that received it still has it at hand. What the parts should be is the checkpoint's own manifest's to say.
"""

import mmap
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import FileIO

from trainyard.artifacts.manifest import ManifestObject
from trainyard.artifacts.store import Store
from trainyard.artifacts.workers import Workers
from trainyard.errors import ObjectChangedError
from trainyard.run.digests import PartDigests, part_digest

ATTEMPTS = 3
"""To read what arrives as other bytes: damage on the way heals, damage in the store does not."""
_PIECE_BYTES = 1 << 20
_here = threading.local()


@dataclass(frozen=True)
class PartedObject:
    """An object of a store, and the digest that each of its parts must have."""

    store: Store
    entry: ManifestObject
    parts: PartDigests

    def missing(self, file: FileIO, workers: Workers) -> list[int]:
        """The parts that `file`, as an earlier attempt left it, does not have as they should be."""
        size = os.fstat(file.fileno()).st_size
        if size > self.entry.size:
            file.truncate(self.entry.size)
        numbers = range(len(self.parts.digests))
        begun = [number for number in numbers if self._span(number)[0] < size]
        right = workers.each(lambda number: self._is_there(file, number), begun)
        there = {number for number, is_right in zip(begun, right, strict=True) if is_right}
        return [number for number in numbers if number not in there]

    def fetch(
        self, file: FileIO, numbers: Sequence[int], workers: Workers, *, landed: Callable[[int], None]
    ) -> str | None:
        """Write these parts into `file`; what is wrong with the first that the store does not give right.

        `landed` is called with the number of bytes of each piece that was written. Raises ServiceError when
        the store gives up, OSError when the disk does; the parts that landed stay.
        """
        problems = workers.each(lambda number: self._fetch(file, number, workers, landed), numbers)
        return next((problem for problem in problems if problem), None)

    def _fetch(
        self, file: FileIO, number: int, workers: Workers, landed: Callable[[int], None]
    ) -> str | None:
        """A part, again when its bytes turn out to be others."""
        (start, end), problem = self._span(number), ""
        for _ in range(ATTEMPTS):
            digest, place = part_digest(), start
            try:
                with workers.timed(end - start):
                    for piece in self.store.read_pieces(
                        self.entry.key, start, end - start, _room(end - start)
                    ):
                        digest.update(piece)
                        place = _write(file, piece, place)
                        landed(len(piece))
            except FileNotFoundError:
                return "missing in the store"
            except ObjectChangedError:
                problem = "replaced while it was read"
                continue
            if digest.hexdigest() == self.parts.digests[number]:
                return None
            problem = self._difference(number, digest.hexdigest())
            if place < end:
                problem = f"ends at {place:,} bytes, the manifest says {self.entry.size:,}"
        return problem

    def _is_there(self, file: FileIO, number: int) -> bool:
        digest, (place, end) = part_digest(), self._span(number)
        while chunk := os.pread(file.fileno(), min(_PIECE_BYTES, end - place), place):
            digest.update(chunk)
            place += len(chunk)
        return digest.hexdigest() == self.parts.digests[number]

    def _difference(self, number: int, digest: str) -> str:
        start, end = self._span(number)
        return (
            f"BLAKE3 {digest[:12]}… arrived of bytes {start:,} to {end:,}, "
            f"the checkpoint's manifest says {self.parts.digests[number][:12]}…"
        )

    def _span(self, number: int) -> tuple[int, int]:
        return self.parts.span(number, self.entry.size)


def _write(file: FileIO, piece: memoryview, place: int) -> int:
    """Write it at `place`; where it ends."""
    while piece:
        count = os.pwrite(file.fileno(), piece, place)
        piece, place = piece[count:], place + count
    return place


def _room(size: int) -> memoryview:
    """This thread's memory for pieces, up to `size` bytes of it: new memory would be filled with zeros."""
    room: memoryview | None = getattr(_here, "room", None)
    if room is None:
        room = _here.room = memoryview(mmap.mmap(-1, _PIECE_BYTES))
    return room[:size]
