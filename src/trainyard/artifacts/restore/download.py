"""Download objects from a store in parallel, hash them while writing, and resume interrupted downloads.

A file is complete when its SHA-256 matches the manifest. The beginning of a file that an earlier attempt
fetched is kept, and only the rest is fetched. `restore` chooses the objects and what happens to them. Memory
is bounded: only small pieces of a large file are in memory at a time.
"""

import hashlib
import os
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from io import FileIO
from pathlib import Path, PurePosixPath
from typing import Self

from trainyard.artifacts.record.manifest import ManifestObject
from trainyard.artifacts.store.object_store import Store
from trainyard.artifacts.store.worker_threads import map_items
from trainyard.errors import ObjectChangedError, VerificationError
from trainyard.run.progress import UNSEEN, Progress

_FILES_AT_ONCE = 32
"""Small files mostly wait for responses."""
_CHUNK_BYTES = 1 << 20
_ATTEMPTS = 3
"""Attempts to read a file with a wrong digest, because it may have been damaged only in transit."""


class Downloader:
    """Writes files below one folder; a context manager, because it owns threads."""

    def __init__(self, store: Store, folder: Path, progress: Progress = UNSEEN) -> None:
        self.fetched_bytes = 0
        self.kept = 0
        """Number of files that were already complete."""
        self._store, self._folder, self._progress = store, folder, progress
        self._pool = ThreadPoolExecutor(_FILES_AT_ONCE)
        self._counting = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def download(self, places: Mapping[PurePosixPath, ManifestObject]) -> list[str]:
        """Complete every file; return a problem for each one that the store does not return as listed.

        Raises ServiceError when the store gives up, OSError when the disk does; complete files stay.
        """
        problems = map_items(self._pool, lambda each: self._download_file(*each), list(places.items()))
        keys = (entry.key for entry in places.values())
        return [f"{key}: {problem}" for key, problem in sorted(zip(keys, problems, strict=True)) if problem]

    def _download_file(self, place: PurePosixPath, entry: ManifestObject) -> str | None:
        file, existed = _open_or_create(self._folder / place)
        with file:
            digest = _digest_so_far(file, entry) if existed else hashlib.sha256()
            self._progress.advance(file.tell())
            if existed and file.tell() == entry.size and digest.hexdigest() == entry.sha256:
                self._count(kept=1)
                return None
            return self._fetch(file, entry, digest)

    def _fetch(self, file: FileIO, entry: ManifestObject, digest: "hashlib._Hash") -> str | None:
        """Read the missing bytes; start again from the beginning when the result has the wrong digest."""
        problem = ""
        for _ in range(_ATTEMPTS):
            try:
                with closing(self._store.stream(entry.key, file.tell(), entry.size)) as chunks:
                    for chunk in chunks:
                        digest.update(chunk)
                        _write(file, chunk)
                        self._count(fetched_bytes=len(chunk))
                        if file.tell() > entry.size:
                            break
            except FileNotFoundError:
                problem = "missing in the store"
                break
            except ObjectChangedError:
                problem, digest = "replaced while it was read", _empty_file(file)
                continue
            size = file.tell()
            if size == entry.size and digest.hexdigest() == entry.sha256:
                os.fsync(file.fileno())
                return None
            problem = f"SHA-256 {digest.hexdigest()[:12]}… arrived, the manifest says {entry.sha256[:12]}…"
            if size != entry.size:
                least = "at least " if size > entry.size else ""
                problem = f"{least}{size:,} bytes arrived, the manifest says {entry.size:,}"
            digest = _empty_file(file)
        _empty_file(file)
        return problem

    def _count(self, *, fetched_bytes: int = 0, kept: int = 0) -> None:
        self._progress.advance(fetched_bytes)
        with self._counting:
            self.fetched_bytes += fetched_bytes
            self.kept += kept


def _open_or_create(path: Path) -> tuple[FileIO, bool]:
    """Open the file for reading and writing, creating it if needed; also return whether it existed.

    Links are not followed.
    """
    how = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.fdopen(os.open(path, how), "r+b", buffering=0), True
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.fdopen(os.open(path, how | os.O_CREAT, 0o666), "r+b", buffering=0), False


def _digest_so_far(file: FileIO, entry: ManifestObject) -> "hashlib._Hash":
    """Return the digest of the file so far, at its end; empty a file that cannot be a beginning."""
    size = os.fstat(file.fileno()).st_size
    if size > entry.size:
        return _empty_file(file)
    digest = hashlib.sha256()
    while chunk := file.read(min(_CHUNK_BYTES, size + 1)):
        digest.update(chunk)
    return digest if size < entry.size or digest.hexdigest() == entry.sha256 else _empty_file(file)


def _empty_file(file: FileIO) -> "hashlib._Hash":
    file.seek(0)
    file.truncate()
    return hashlib.sha256()


def _write(file: FileIO, chunk: bytes | memoryview) -> None:
    view = memoryview(chunk)
    while view:
        view = view[file.write(view) :]


def require_distinct(folder: Path, places: Mapping[PurePosixPath, ManifestObject]) -> None:
    """Raise VerificationError when the file system treats two names as one (letter case, Unicode forms)."""
    found: dict[tuple[int, int], PurePosixPath] = {}
    for place in places:
        status = (folder / place).stat()
        other = found.setdefault((status.st_dev, status.st_ino), place)
        if other != place:
            raise VerificationError(
                f"{folder}: its file system treats {str(other)!r} and {str(place)!r} as one name. "
                "Restore to a file system that distinguishes them."
            )
