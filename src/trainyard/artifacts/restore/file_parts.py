"""Download a large file part by part, and compare each part as it arrives.

    on any thread: read a piece of a part → BLAKE3, write → compare the part, read it again if it is wrong

Parts arrive in any order, on any number of processors, in little memory: a piece is hashed and written while
it is still in the cache of the processor that received it. The checkpoint's own manifest has the digests.
"""

import mmap
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import FileIO

from trainyard.artifacts.record.manifest import ManifestObject
from trainyard.artifacts.store.object_store import Store
from trainyard.artifacts.store.worker_threads import Workers
from trainyard.errors import ObjectChangedError
from trainyard.run.digests import PartDigests, part_digest

ATTEMPTS = 3
"""Attempts to read a part with a wrong digest, because it may have been damaged only in transit."""
_MISSING = "missing in the store"
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class PartedObject:
    """An object of a store, and the digests of its parts."""

    store: Store
    entry: ManifestObject
    parts: PartDigests

    def missing(self, file: FileIO, workers: Workers) -> list[int]:
        """Return the parts that `file` does not have, or has with a wrong digest."""
        size = os.fstat(file.fileno()).st_size
        if size > self.entry.size:
            file.truncate(self.entry.size)
        numbers = range(len(self.parts.digests))
        started = [number for number in numbers if self._span(number)[0] < size]
        right = workers.each(lambda number: self._is_there(file, number), started)
        there = {number for number, is_right in zip(started, right, strict=True) if is_right}
        return [number for number in numbers if number not in there]

    def fetch(
        self, file: FileIO, numbers: Sequence[int], workers: Workers, *, on_bytes: Callable[[int], None]
    ) -> str | None:
        """Write these parts into `file`; return the problem of the first one that fails.

        `on_bytes` is called with the number of bytes of each piece that was written. Raises ServiceError when
        the store gives up, OSError when the disk does; the complete parts stay.
        """

        def fetch_part(number: int) -> str | None:
            wrong = None
            for _ in range(ATTEMPTS):
                wrong = self._read(file, number, _room(workers), on_bytes=on_bytes)
                if wrong in (None, _MISSING):
                    break
            return wrong

        problems = workers.each(fetch_part, numbers)
        return next((problem for problem in problems if problem), None)

    def _read(
        self, file: FileIO, number: int, room: memoryview, *, on_bytes: Callable[[int], None]
    ) -> str | None:
        """Write a part into `file`; return its problem, None if there is none."""
        (place, end), digest = self._span(number), part_digest()
        try:
            for piece in self.store.read_pieces(self.entry.key, place, end - place, room[: end - place]):
                digest.update(piece)
                place = _write(file, piece, place)
                on_bytes(len(piece))
        except FileNotFoundError:
            return _MISSING
        except ObjectChangedError:
            return "replaced while it was read"
        found = digest.hexdigest()
        return None if found == self.parts.digests[number] else self._difference(number, found, place)

    def _is_there(self, file: FileIO, number: int) -> bool:
        digest, (place, end) = part_digest(), self._span(number)
        while chunk := os.pread(file.fileno(), min(_PIECE_BYTES, end - place), place):
            digest.update(chunk)
            place += len(chunk)
        return digest.hexdigest() == self.parts.digests[number]

    def _difference(self, number: int, digest: str, place: int) -> str:
        """Return the problem: the object ended at `place`, or the part has another `digest`."""
        start, end = self._span(number)
        if place < end:
            return f"ends at {place:,} bytes, the manifest says {self.entry.size:,}"
        return (
            f"BLAKE3 {digest[:12]}… arrived of bytes {start:,} to {end:,}, "
            f"the checkpoint's manifest says {self.parts.digests[number][:12]}…"
        )

    def _span(self, number: int) -> tuple[int, int]:
        return self.parts.span(number, self.entry.size)


def _write(file: FileIO, piece: memoryview, place: int) -> int:
    """Write the piece at `place`; return its end."""
    while piece:
        count = os.pwrite(file.fileno(), piece, place)
        piece, place = piece[count:], place + count
    return place


def _room(workers: Workers) -> memoryview:
    """Return this thread's buffer for pieces; it is reused because new memory is zeroed first."""
    room: memoryview | None = getattr(workers.here, "room", None)
    if room is None:
        room = workers.here.room = memoryview(mmap.mmap(-1, _PIECE_BYTES))
    return room
