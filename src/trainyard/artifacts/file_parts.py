"""A large file on its way from a store to a disk: part by part, each compared by itself as it lands.

    on any thread: read a piece of a part → BLAKE3, write → compare the part, read it again where it is wrong

In any order, on any number of processors, in little memory: a piece is hashed and written while the processor
that received it still has it at hand. What the parts should be is the checkpoint's own manifest's to say.
"""

import mmap
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import FileIO

from trainyard.artifacts.manifest import ManifestObject
from trainyard.artifacts.store import Store
from trainyard.artifacts.workers import Workers
from trainyard.errors import ObjectChangedError
from trainyard.run.digests import PartDigests, PartHasher, part_digest

ATTEMPTS = 3
"""To read what arrives as other bytes: damage on the way heals, damage in the store does not."""
_MISSING = "missing in the store"
_PIECE_BYTES = 1 << 20
_TOGETHER, _TURNS = 4, 4
"""Parts that are asked for at once, but so few that each thread comes so often to its turn."""


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
        together = max(1, min(_TOGETHER, len(numbers) // (_TURNS * workers.limit)))

        def bring(run: range) -> str | None:
            room = _room(workers)
            with workers.timed(self._span(run[-1])[1] - self._span(run[0])[0]):
                wrong = self._read(file, run, room, landed=landed)
            for _ in range(ATTEMPTS - 1):
                if _MISSING not in wrong.values():
                    parts = [range(number, number + 1) for number in wrong]
                    reads = [self._read(file, part, room, landed=landed) for part in parts]
                    wrong = {number: why for read in reads for number, why in read.items()}
            return next(iter(wrong.values()), None)

        problems = workers.each(bring, _runs(numbers, together))
        return next((problem for problem in problems if problem), None)

    def _read(
        self, file: FileIO, run: range, room: memoryview, *, landed: Callable[[int], None]
    ) -> dict[int, str]:
        """Write parts that follow each other into `file`; what is wrong with each that is not right."""
        (place, _), (_, end) = self._span(run[0]), self._span(run[-1])
        found = PartHasher(self.parts.part_bytes)
        try:
            for piece in self.store.read_pieces(self.entry.key, place, end - place, room[: end - place]):
                found.update(piece)
                place = _write(file, piece, place)
                landed(len(piece))
        except FileNotFoundError:
            return dict.fromkeys(run, _MISSING)
        except ObjectChangedError:
            return dict.fromkeys(run, "replaced while it was read")
        arrived = dict(zip(run, found.digests, strict=False))
        wrong = [number for number in run if arrived.get(number) != self.parts.digests[number]]
        return {number: self._difference(number, arrived.get(number, ""), place) for number in wrong}

    def _is_there(self, file: FileIO, number: int) -> bool:
        digest, (place, end) = part_digest(), self._span(number)
        while chunk := os.pread(file.fileno(), min(_PIECE_BYTES, end - place), place):
            digest.update(chunk)
            place += len(chunk)
        return digest.hexdigest() == self.parts.digests[number]

    def _difference(self, number: int, digest: str, place: int) -> str:
        """Where the object ended at `place`, or what arrived has another `digest`."""
        start, end = self._span(number)
        if place < end:
            return f"ends at {place:,} bytes, the manifest says {self.entry.size:,}"
        return (
            f"BLAKE3 {digest[:12]}… arrived of bytes {start:,} to {end:,}, "
            f"the checkpoint's manifest says {self.parts.digests[number][:12]}…"
        )

    def _span(self, number: int) -> tuple[int, int]:
        return self.parts.span(number, self.entry.size)


def _runs(numbers: Sequence[int], together: int) -> list[range]:
    """The numbers as ranges of up to `together` that follow each other."""
    runs = list[range]()
    for number in numbers:
        if runs and number == runs[-1].stop and len(runs[-1]) < together:
            runs[-1] = range(runs[-1].start, number + 1)
        else:
            runs.append(range(number, number + 1))
    return runs


def _write(file: FileIO, piece: memoryview, place: int) -> int:
    """Write it at `place`; where it ends."""
    while piece:
        count = os.pwrite(file.fileno(), piece, place)
        piece, place = piece[count:], place + count
    return place


def _room(workers: Workers) -> memoryview:
    """This thread's memory for pieces: new memory would be filled with zeros, each time."""
    room: memoryview | None = getattr(workers.here, "room", None)
    if room is None:
        room = workers.here.room = memoryview(mmap.mmap(-1, _PIECE_BYTES))
    return room
