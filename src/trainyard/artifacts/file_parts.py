"""A large file on its way from a store to a disk: part by part, each compared by itself as it lands.

    on any thread: read a piece of a part → BLAKE3, write → compare the part, read it again where it is wrong

In any order, on any number of processors, in little memory: a piece is hashed and written while the processor
that received it still has it at hand. What the parts should be is the checkpoint's own manifest's to say.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from itertools import islice
from typing import TypeVar

from trainyard.artifacts.manifest import ManifestObject
from trainyard.artifacts.store import Store
from trainyard.errors import ObjectChangedError
from trainyard.run.digests import PartDigests, part_digest

ATTEMPTS = 3
"""To read what arrives as other bytes: damage on the way heals, damage in the store does not."""
_PIECE_BYTES = 1 << 20
_FAST_BYTES = 200e6
"""A second: one connection to S3 gives half of it, whatever the line."""
_Out = TypeVar("_Out")


class Share:
    """What one of several files gets of threads that they have in common.

    Threads that write to one file wait for each other: as far as there are files, each thread has its own.
    And threads beyond the processors only help where it is the connections that are slow, as those of S3 are.
    """

    def __init__(self, threads: ThreadPoolExecutor, count: int, processors: int) -> None:
        """`count` threads."""
        self.threads, self._count, self._processors = threads, count, processors
        self._files, self._at_work, self._limit = 0, 0, count
        self._changed = threading.Condition()

    @contextmanager
    def of_one_more(self) -> Iterator[None]:
        """While a file has its share."""
        with self._changed:
            self._files += 1
        try:
            yield
        finally:
            with self._changed:
                self._files -= 1

    @property
    def size(self) -> int:
        """Threads."""
        return max(1, self._count // max(1, self._files))

    @contextmanager
    def turn(self, size: int) -> Iterator[None]:
        """While a part of `size` bytes is fetched; waits as long as enough threads do."""
        with self._changed:
            self._changed.wait_for(lambda: self._at_work < self._limit)
            self._at_work += 1
        started, limit = time.monotonic(), self._limit
        try:
            yield
            fast = size > _FAST_BYTES * (time.monotonic() - started)
            limit = min(self._count, self._processors) if fast else self._count
        finally:
            with self._changed:
                self._at_work, self._limit = self._at_work - 1, limit
                self._changed.notify_all()


@dataclass(frozen=True)
class PartedObject:
    """An object of a store, and the digest that each of its parts must have."""

    store: Store
    entry: ManifestObject
    parts: PartDigests

    def missing(self, file: FileIO, share: Share) -> list[int]:
        """The parts that `file`, as an earlier attempt left it, does not have as they should be."""
        size = os.fstat(file.fileno()).st_size
        if size > self.entry.size:
            file.truncate(self.entry.size)
        numbers = range(len(self.parts.digests))
        begun = [number for number in numbers if self._span(number)[0] < size]
        right = _each(share, lambda number: self._is_there(file, number), begun)
        there = {number for number, is_right in zip(begun, right, strict=True) if is_right}
        return [number for number in numbers if number not in there]

    def fetch(
        self, file: FileIO, numbers: Iterable[int], share: Share, *, landed: Callable[[int], None]
    ) -> str | None:
        """Write these parts into `file`; what is wrong with the first that the store does not give right.

        `landed` is called with the number of bytes of each piece that was written. Raises ServiceError when
        the store gives up, OSError when the disk does; the parts that landed stay.
        """
        problems = _each(share, lambda number: self._in_turn(share, file, number, landed=landed), numbers)
        return next((problem for problem in problems if problem), None)

    def _in_turn(
        self, share: Share, file: FileIO, number: int, *, landed: Callable[[int], None]
    ) -> str | None:
        start, end = self._span(number)
        with share.turn(end - start):
            return self._fetch(file, number, landed)

    def _fetch(self, file: FileIO, number: int, landed: Callable[[int], None]) -> str | None:
        """A part, again when its bytes turn out to be others."""
        (start, end), problem = self._span(number), ""
        room = memoryview(bytearray(min(_PIECE_BYTES, end - start)))
        for _ in range(ATTEMPTS):
            digest, place = part_digest(), start
            try:
                for piece in self.store.read_pieces(self.entry.key, start, end - start, room):
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


def _each(share: Share, function: Callable[[int], _Out], numbers: Iterable[int]) -> list[_Out]:
    """`function` of each number; when one raises, no other begins, and none is at work any more."""
    futures, running, left = list[Future[_Out]](), set[Future[_Out]](), iter(numbers)
    try:
        while True:
            for number in islice(left, max(0, share.size - len(running))):
                futures.append(share.threads.submit(function, number))
                running.add(futures[-1])
            if not running:
                return [future.result() for future in futures]
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                future.result()
    finally:
        for future in running:
            future.cancel()
        wait(running)
