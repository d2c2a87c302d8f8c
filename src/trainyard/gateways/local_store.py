"""A folder as a store (`file:///folder`), for a laptop: the operations of S3, durable and never half done.

A file is copied under a temporary name, fsynced, read back and only then renamed. The checksum it reports is
computed from the bytes on disk each time it is asked, so there is nothing to trust. A symbolic link is never
an object: it may lead out of the store, or to what changes there. It knows nothing of runs.
"""

import base64
import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainyard.errors import ServiceError, VerificationError

_INCOMING = ".incoming"
"""Files on their way; what a crash leaves here is never listed."""
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class LocalObject:
    """A file of the store."""

    key: str
    size: int
    etag: str = ""
    checksum: Mapping[str, Any] = field(default_factory=dict)
    modified: float = field(default=0.0, compare=False)
    encrypted_as_asked: bool = True


class LocalStore:
    """A store in the folder `root`, which is made at the first write."""

    prefix = ""

    def __init__(self, root: Path, pace: Callable[[int], None] = lambda _count: None) -> None:
        self._root, self._pace = root, pace
        self.url = f"file://{root}"

    def folders(self) -> Iterator[str]:
        if self._root.is_dir():
            yield from sorted(entry.name for entry in self._root.iterdir() if _is_visible_folder(entry))

    def list_objects(self, prefix: str) -> Iterator[LocalObject]:
        if not self._root.is_dir():
            raise ServiceError(f"The store's folder {self._root} does not exist.")
        with _refusals_named(self._root):
            for path in sorted(self._files_below(prefix)):
                key = path.relative_to(self._root).as_posix()
                if key.startswith(prefix):
                    _refuse_link(path)
                    found = path.stat()
                    yield LocalObject(key, found.st_size, modified=found.st_mtime)

    def describe(self, key: str) -> LocalObject | None:
        path = self._path(key)
        _refuse_link(path)
        if not path.is_file():
            return None
        with _refusals_named(path):
            digest, size = _digest(path)
            return LocalObject(key, size, checksum=_checksum(digest), modified=path.stat().st_mtime)

    def read_chunks(self, key: str, *, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        path = self._path(key)
        _refuse_link(path)
        if not path.is_file():
            raise FileNotFoundError(key)
        left = path.stat().st_size - start if length is None else length
        with _refusals_named(path), path.open("rb", buffering=0) as file:
            file.seek(start)
            while left > 0 and (chunk := file.read(min(_CHUNK_BYTES, left))):
                left -= len(chunk)
                yield chunk

    def read_into(self, key: str, start: int, room: memoryview) -> int:
        done = 0
        for chunk in self.read_chunks(key, start=start, length=len(room)):
            room[done : done + len(chunk)] = chunk
            done += len(chunk)
        return done

    def put_new(self, key: str, content: bytes, *, metadata: Mapping[str, str]) -> bool:  # noqa: ARG002
        path = self._path(key)
        with _refusals_named(path), contextlib.ExitStack() as undo:
            temporary = self._temporary()
            undo.callback(temporary.unlink, missing_ok=True)
            temporary.write_bytes(content)
            _sync_file(temporary)
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                _name_exclusively(temporary, path)
            except FileExistsError:
                return False
            _sync_directory(path.parent)
        return True

    def swap(self, key: str, old: bytes, new: bytes, *, metadata: Mapping[str, str]) -> bool:  # noqa: ARG002
        path = self._path(key)
        with _refusals_named(path), self._alone(), contextlib.ExitStack() as undo:
            _refuse_link(path)
            if not path.is_file() or path.read_bytes() != old:
                return False
            temporary = self._temporary()
            undo.callback(temporary.unlink, missing_ok=True)
            temporary.write_bytes(new)
            _sync_file(temporary)
            temporary.replace(path)
            _sync_directory(path.parent)
        return True

    def delete(self, key: str) -> None:
        path = self._path(key)
        with _refusals_named(path):
            path.unlink(missing_ok=True)
            with contextlib.suppress(FileNotFoundError):  # somebody else has removed the last one
                _sync_directory(path.parent)
            with contextlib.suppress(OSError):  # up to the first folder that holds something
                for folder in path.relative_to(self._root).parents[:-1]:
                    (self._root / folder).rmdir()

    def stage(self, path: Path, key: str, *, metadata: Mapping[str, str]) -> "LocalUpload":  # noqa: ARG002
        target = self._path(key)
        with _refusals_named(target, path.stat().st_size), contextlib.ExitStack() as undo:
            temporary = self._temporary()
            undo.callback(temporary.unlink, missing_ok=True)
            digest, size = _copy(path, temporary, self._pace)
            undo.pop_all()
        return LocalUpload(key, target, temporary, size, digest.hex())

    def is_checksum_of(self, path: Path, checksum: Mapping[str, Any]) -> bool:  # noqa: ARG002
        return False

    def sweep(self, older_than_seconds: float) -> int:
        swept = 0
        with contextlib.suppress(OSError):
            for left in (self._root / _INCOMING).iterdir():
                if time.time() - left.stat().st_mtime > older_than_seconds:
                    left.unlink(missing_ok=True)
                    swept += 1
        return swept

    def _path(self, key: str) -> Path:
        if key.startswith("/") or ".." in key.split("/"):
            raise VerificationError(f"{key}: not a key of a store")
        path = self._root / key
        for folder in path.relative_to(self._root).parents:
            if folder != Path():
                _refuse_link(self._root / folder)
        return path

    def _files_below(self, prefix: str) -> Iterator[Path]:
        start = self._path(prefix.rpartition("/")[0])
        if start != self._root:
            _refuse_link(start)
        for folder, names, files in os.walk(start):
            names[:] = [name for name in names if name != _INCOMING]
            links = [name for name in names if Path(folder, name).is_symlink()]  # os.walk passes them by
            yield from (Path(folder, name) for name in (*files, *links))

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Only one process at a time gets here; the system lets go when it ends, however it ends."""
        incoming = self._root / _INCOMING
        incoming.mkdir(parents=True, exist_ok=True)
        with (incoming / "lock").open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _temporary(self) -> Path:
        incoming = self._root / _INCOMING
        incoming.mkdir(parents=True, exist_ok=True)
        return incoming / secrets.token_hex(8)


@dataclass(frozen=True)
class LocalUpload:
    """A copy that waits under a temporary name."""

    key: str
    target: Path
    temporary: Path
    size: int
    sha256: str

    def commit(self) -> LocalObject:
        with _refusals_named(self.target):
            digest, size = _digest(self.temporary)
            if digest.hex() != self.sha256:
                self.abort()
                raise VerificationError(f"{self.target}: the disk does not give back the bytes it was given")
            self.target.parent.mkdir(parents=True, exist_ok=True)
            self.temporary.replace(self.target)
            _sync_directory(self.target.parent)
        return LocalObject(self.key, size, checksum=_checksum(digest))

    def abort(self) -> None:
        with contextlib.suppress(OSError):
            self.temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def _refusals_named(path: Path, needed: int = 0) -> Iterator[None]:
    """Turn what the file system refuses into a ServiceError that says what to do."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        folder = next(parent for parent in (path, *path.parents) if parent.is_dir())
        free = shutil.disk_usage(folder).free
        room = f" ({_size(free)} free" + (f", the file has {_size(needed)})" if needed else ")")
        raise ServiceError(f"The store cannot use {path}: {error.strerror}{room}.") from error


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise VerificationError(
            f"{path}: a symbolic link, which is never part of a store. "
            "Remove it, and store the run again if the link stood for one of its files."
        )


def _size(count: int) -> str:
    """Bytes in the unit that fits: `812 bytes`, `43.1 MB`."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:,.1f} {unit}"
    return f"{count} bytes"


def _copy(source: Path, target: Path, pace: Callable[[int], None]) -> tuple[bytes, int]:
    digest, size = hashlib.sha256(), 0
    with source.open("rb", buffering=0) as reader, target.open("wb", buffering=0) as writer:
        while chunk := reader.read(_CHUNK_BYTES):
            pace(2 * len(chunk))  # it is read back before it gets its name
            digest.update(chunk)
            view = memoryview(chunk)
            while view:
                view = view[writer.write(view) :]
            size += len(chunk)
        os.fsync(writer.fileno())
    return digest.digest(), size


def _digest(path: Path) -> tuple[bytes, int]:
    digest, size = hashlib.sha256(), 0
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return digest.digest(), size


def _checksum(digest: bytes) -> dict[str, str]:
    return {"algorithm": "SHA256", "type": "FULL_OBJECT", "value": base64.b64encode(digest).decode()}


def _is_visible_folder(entry: Path) -> bool:
    return entry.is_dir() and not entry.is_symlink() and entry.name != _INCOMING


def _name_exclusively(temporary: Path, path: Path) -> None:
    """Like a rename, but refused (FileExistsError) when the name is taken."""
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
            raise
        # No hard links here (FAT, some network shares): exclusive, but a crash can leave half of it.
        with path.open("xb") as file:
            file.write(temporary.read_bytes())
            os.fsync(file.fileno())


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
