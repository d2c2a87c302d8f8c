"""Bring objects of a store onto a disk: in parallel, hashed as they are written, going on where they stopped.

A file is whole when its SHA-256 is the manifest's, or each of its parts has the digest that is known of it,
whoever wrote it; what an earlier attempt left of a large one is kept and the rest fetched. Which objects, and
what becomes of them, is `restore`'s affair. Memory is bounded: of a large file little is under way.
"""

import hashlib
import mmap
import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from io import FileIO
from pathlib import Path, PurePosixPath
from typing import Self

from trainyard.artifacts.file_parts import ATTEMPTS, PartedObject
from trainyard.artifacts.manifest import ManifestObject
from trainyard.artifacts.store import Store
from trainyard.artifacts.workers import Workers
from trainyard.errors import ObjectChangedError, VerificationError
from trainyard.run.digests import PartDigests
from trainyard.run.progress import UNSEEN, Progress

_LARGE_AT_ONCE = 2
_PROCESSORS = os.cpu_count() or 1
_AT_ONCE = min(32, max(8, 2 * _PROCESSORS))
_RANGES_AHEAD = 5
"""Of one file: the buffers of two large files take 80 MiB."""
_RANGE_BYTES = 8 << 20
_CHUNK_BYTES = 1 << 20
_NO_PARTS: Mapping[str, PartDigests] = {}


class Landing:
    """Writes files below one folder; a context manager, for its threads."""

    def __init__(self, store: Store, folder: Path, progress: Progress = UNSEEN) -> None:
        self.fetched_bytes = 0
        self.fetched = 0
        """Files of which something was read from the store."""
        self.kept = 0
        """Files that were whole already."""
        self._store, self._folder, self._progress = store, folder, progress
        self._workers = Workers(_AT_ONCE, _PROCESSORS)
        self._ranges = ThreadPoolExecutor(_AT_ONCE)
        self._writes = ThreadPoolExecutor(_LARGE_AT_ONCE)
        self._large = threading.Semaphore(_LARGE_AT_ONCE)
        self._counting = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._workers.close()
        self._ranges.shutdown(cancel_futures=True)
        self._writes.shutdown(cancel_futures=True)

    def land(
        self, places: Mapping[PurePosixPath, ManifestObject], parts: Mapping[str, PartDigests] = _NO_PARTS
    ) -> list[str]:
        """Make every file whole; what is wrong with those that the store does not give as they were.

        `parts` are the digests of parts that are known, by the object's key: in their place no SHA-256 is
        taken. Raises ServiceError when the store gives up, OSError when the disk does; what is whole stays.
        """
        problems = self._workers.each(
            lambda each: self._land(each[0], each[1], parts.get(each[1].key)), list(places.items())
        )
        keys = (entry.key for entry in places.values())
        return [f"{key}: {problem}" for key, problem in sorted(zip(keys, problems, strict=True)) if problem]

    def _land(self, place: PurePosixPath, entry: ManifestObject, parts: PartDigests | None) -> str | None:
        file, existed = _opened(self._folder / place)
        with file:
            if parts is not None:
                return self._land_parts(file, PartedObject(self._store, entry, parts))
            digest = _digest_of_what_is_there(file, entry) if existed else hashlib.sha256()
            self._progress.advance(file.tell())
            if existed and file.tell() == entry.size and digest.hexdigest() == entry.sha256:
                self._count(kept=1)
                return None
            self._count(fetched=1)
            left = entry.size - file.tell()
            with self._workers.timed(left) if left <= _RANGE_BYTES else nullcontext():
                return self._fetch(file, entry, digest)

    def _land_parts(self, file: FileIO, parted: PartedObject) -> str | None:
        missing = parted.missing(file, self._workers)
        self._progress.advance(max(0, parted.entry.size - len(missing) * parted.parts.part_bytes))
        self._count(fetched=1) if missing else self._count(kept=1)
        problem = parted.fetch(file, missing, self._workers, landed=self._count_bytes)
        os.fsync(file.fileno())
        return problem

    def _fetch(self, file: FileIO, entry: ManifestObject, digest: "hashlib._Hash") -> str | None:
        """Read what is missing, again from the start when the bytes turn out to be others."""
        problem = ""
        for _ in range(ATTEMPTS):
            try:
                for chunk in self._chunks(entry, file.tell()):
                    writing = self._writes.submit(_write, file, chunk) if len(chunk) > _CHUNK_BYTES else None
                    digest.update(chunk)
                    writing.result() if writing else _write(file, chunk)
                    self._count(fetched_bytes=len(chunk))
            except FileNotFoundError:
                problem = "missing in the store"
                break
            except ObjectChangedError:
                problem, digest = "replaced while it was read", _emptied(file)
                continue
            size = file.tell()
            if size == entry.size and digest.hexdigest() == entry.sha256:
                os.fsync(file.fileno())
                return None
            problem = f"SHA-256 {digest.hexdigest()[:12]}… arrived, the manifest says {entry.sha256[:12]}…"
            if size != entry.size:
                problem = f"{size:,} bytes arrived, the manifest says {entry.size:,}"
            digest = _emptied(file)
        _emptied(file)
        return problem

    def _chunks(self, entry: ManifestObject, start: int) -> "Iterator[bytes | memoryview]":
        """The rest of the object; a chunk is only good until the next one is asked for."""
        if entry.size - start <= _RANGE_BYTES:
            yield from self._store.read_chunks(entry.key, start=start)
            return
        with self._large:
            yield from self._in_ranges(entry, start)

    def _in_ranges(self, entry: ManifestObject, start: int) -> Iterator[memoryview]:
        # Of the system: what threads free of the heap stays with the process.
        spare = [mmap.mmap(-1, _RANGE_BYTES) for _ in range(_RANGES_AHEAD)]
        under_way: deque[tuple[Future[int], mmap.mmap]] = deque()
        try:
            for offset in range(start, entry.size, _RANGE_BYTES):
                if not spare:
                    future, buffer = under_way.popleft()
                    yield memoryview(buffer)[: future.result()]
                    spare.append(buffer)
                buffer = spare.pop()
                length = min(_RANGE_BYTES, entry.size - offset)
                room = memoryview(buffer)[:length]
                task = self._ranges.submit(self._fill, entry.key, offset, room)
                under_way.append((task, buffer))
            for future, buffer in under_way:
                yield memoryview(buffer)[: future.result()]
        finally:
            for future, _ in under_way:
                future.cancel()

    def _fill(self, key: str, start: int, room: memoryview) -> int:
        """How many bytes there were for it."""
        return sum(len(piece) for piece in self._store.read_pieces(key, start, len(room), room))

    def _count_bytes(self, count: int) -> None:
        self._count(fetched_bytes=count)

    def _count(self, *, fetched: int = 0, fetched_bytes: int = 0, kept: int = 0) -> None:
        self._progress.advance(fetched_bytes)
        with self._counting:
            self.fetched += fetched
            self.fetched_bytes += fetched_bytes
            self.kept += kept


def _opened(path: Path) -> tuple[FileIO, bool]:
    """The file for reading and writing, made if need be, and whether it was there; no link is followed."""
    how = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.fdopen(os.open(path, how), "r+b", buffering=0), True
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.fdopen(os.open(path, how | os.O_CREAT, 0o666), "r+b", buffering=0), False


def _digest_of_what_is_there(file: FileIO, entry: ManifestObject) -> "hashlib._Hash":
    """The digest of the file so far, which is left at its end; what cannot be a beginning is taken away."""
    size = os.fstat(file.fileno()).st_size
    if size > entry.size:
        return _emptied(file)
    digest = hashlib.sha256()
    while chunk := file.read(_CHUNK_BYTES):
        digest.update(chunk)
    return digest if size < entry.size or digest.hexdigest() == entry.sha256 else _emptied(file)


def _emptied(file: FileIO) -> "hashlib._Hash":
    file.seek(0)
    file.truncate()
    return hashlib.sha256()


def _write(file: FileIO, chunk: bytes | memoryview) -> None:
    view = memoryview(chunk)
    while view:
        view = view[file.write(view) :]


def require_distinct(folder: Path, places: Mapping[PurePosixPath, ManifestObject]) -> None:
    """Raise VerificationError when the file system took two names for one (letter case, composed letters)."""
    found: dict[tuple[int, int], PurePosixPath] = {}
    for place in places:
        status = (folder / place).stat()
        other = found.setdefault((status.st_dev, status.st_ino), place)
        if other != place:
            raise VerificationError(
                f"{folder} takes {str(other)!r} and {str(place)!r} for one name. "
                "Restore to a file system that tells them apart."
            )
