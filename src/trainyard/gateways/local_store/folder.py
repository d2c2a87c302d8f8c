"""A folder as a store (`file:///folder`), for a laptop: the operations of S3, durable and atomic.

A file is copied under a temporary name and fsynced, and only then linked to its own, which replaces nothing.
A checksum is computed from the bytes on disk each time it is requested, so no stored checksum has to be
trusted. A symbolic link is never an object, because it may lead out of the store or to a file that changes.
The module knows nothing about runs.
"""

import base64
import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
import stat
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from trainyard.errors import (
    ConfigError,
    ObjectChangedError,
    PermissionRefusedError,
    ServiceError,
    VerificationError,
)
from trainyard.gateways import GatewayObject, join_chunks

if TYPE_CHECKING:
    from trainyard.artifacts.store.store_address import StoreOptions

CHUNK_BYTES = 1 << 20
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)
_INCOMING = ".incoming"
"""The folder of unfinished files; the leftovers of a crash in it are never listed."""


def open_at(url: str, rest: str, options: "StoreOptions") -> "LocalStore":
    """Open the store; `rest` is `url` after `file://`. Raises ConfigError for an invalid address."""
    pace = options.get("pace")
    return LocalStore(folder_at(url, rest), pace) if pace else LocalStore(folder_at(url, rest))


def require_address(url: str, rest: str) -> None:
    """Raise ConfigError when `rest` is not a path of a folder."""
    folder_at(url, rest)


def folder_at(url: str, rest: str) -> Path:
    """Return the folder. Raises ConfigError for an invalid path."""
    path = rest.removeprefix("localhost")
    if not path.startswith("/"):
        raise ConfigError(f"{url}: a folder's path must be absolute, with three slashes: file:///{rest}")
    encoded = unquote_to_bytes(path.encode(errors="surrogateescape"))  # names are bytes, of any encoding
    if b"\0" in encoded:
        raise ConfigError(f"{url}: %00 stands for a byte that no path can hold")
    return Path(os.fsdecode(encoded))


class LocalStore:
    """A store in the folder `root`, which the first write creates."""

    prefix = ""
    part_bytes = None

    def __init__(self, root: Path, pace: Callable[[int], None] = lambda _count: None) -> None:
        self._root, self._pace = root, pace
        self.url = root.as_uri()

    def folders(self) -> Iterator[str]:
        with name_refusals(self._root):
            if self._root.is_dir():
                entries = [each for each in self._root.iterdir() if each.is_dir() and not each.is_symlink()]
                yield from sorted(entry.name for entry in entries if entry.name != _INCOMING)

    def list_objects(self, prefix: str) -> Iterator[GatewayObject]:
        if not self._root.is_dir():
            what = "is a file and no folder." if self._root.exists() else "does not exist."
            raise ServiceError(f"The store's folder {self._root} {what}")
        with name_refusals(self._root):
            for key, found in sorted(self._files_below(prefix)):
                if stat.S_ISLNK(found.st_mode):
                    refuse_link(self._root / key)
                modified, identity = found.st_mtime, _identity(found)
                yield GatewayObject(key, found.st_size, modified=modified, identity=identity)

    def describe(self, key: str) -> GatewayObject | None:
        path = self._path(key)
        refuse_link(path)
        try:
            with name_refusals(path):
                if not path.is_file():
                    return None
                found = path.stat()  # before reading, so that a replacement has another identity
                digest, size = hash_stored_file(path)
        except FileNotFoundError:
            return None
        return GatewayObject(
            key, size, checksum=_checksum(digest), modified=found.st_mtime, identity=_identity(found)
        )

    def stream(
        self,
        key: str,
        start: int,
        size: int,  # noqa: ARG002 - it is read to its end
        *,
        identity: str = "",
    ) -> Generator[bytes, None, None]:
        path = self._path(key)
        refuse_link(path)
        with name_refusals(path):
            if not path.is_file():
                raise FileNotFoundError(key)
            with path.open("rb", buffering=0) as file:
                file.seek(start)
                while chunk := file.read(CHUNK_BYTES):
                    yield chunk
                if identity and {identity} != {_identity(os.fstat(file.fileno())), _identity(path.stat())}:
                    raise ObjectChangedError(f"{path}: became another file while it was read")

    def read_object(self, key: str) -> bytes | None:
        try:
            return join_chunks(key, self.stream(key, 0, 0))
        except FileNotFoundError:
            return None

    def put_new(self, key: str, content: bytes, *, metadata: Mapping[str, str]) -> bool:  # noqa: ARG002
        path = self._path(key)
        with name_refusals(path), self._temporary_file(content) as temporary:
            try:
                self._name(temporary, path)
            except FileExistsError:
                return False
        return True

    def accepts_again(self, key: str, content: bytes) -> bool:
        return self.put_new(key, content, metadata={})

    def _name(self, temporary: Path, path: Path) -> None:
        """Give a file its name, durably. Raises FileExistsError when the name is taken."""
        make_folders(path.parent)
        name_exclusively(temporary, path)
        sync_directory(path.parent)

    def swap(self, key: str, old: bytes, new: bytes, *, metadata: Mapping[str, str]) -> bool:  # noqa: ARG002
        path = self._path(key)
        with name_refusals(path), self._lock():
            refuse_link(path)
            if not path.is_file() or path.read_bytes() != old:
                return False
            with self._temporary_file(new) as temporary:
                temporary.replace(path)
            sync_directory(path.parent)
        return True

    def delete(self, key: str) -> None:
        path = self._path(key)
        with name_refusals(path):
            path.unlink(missing_ok=True)
            with contextlib.suppress(FileNotFoundError):  # another process removed the folder
                sync_directory(path.parent)
            with contextlib.suppress(OSError):  # stops at the first folder that is not empty
                for folder in path.relative_to(self._root).parents[:-1]:
                    (self._root / folder).rmdir()

    def stage(
        self,
        path: Path,
        key: str,
        *,
        metadata: Mapping[str, str],  # noqa: ARG002
        replaces: str = "",
    ) -> "LocalUpload":
        target = self._path(key)
        with name_refusals(target), contextlib.ExitStack() as undo:
            temporary = self._incoming_folder() / secrets.token_hex(8)
            undo.callback(temporary.unlink, missing_ok=True)
            digest, size = copy_file(path, temporary, self._pace)
            undo.pop_all()
        return LocalUpload(self, key, target, temporary, size, digest, replaces)

    def commit(self, upload: "LocalUpload") -> GatewayObject:
        """Name the copy. Raises VerificationError when the name has other bytes."""
        target = upload.target
        with name_refusals(target):
            if upload.replaces:
                with self._lock():
                    found = target.stat() if target.is_file() else None
                    if found is None or _identity(found) != upload.replaces:
                        raise VerificationError(f"{target}: was replaced while another file was stored here")
                    upload.temporary.replace(target)
                    sync_directory(target.parent)
            else:
                try:
                    self._name(upload.temporary, target)
                except FileExistsError:
                    refuse_link(target)
                    if hash_stored_file(target) != (upload.digest, upload.size):
                        raise VerificationError(
                            f"{target}: the store holds other bytes under this name, and they were not "
                            "replaced. What is stored is never changed."
                        ) from None
        upload.abort()
        return GatewayObject(upload.key, upload.size, checksum=_checksum(upload.digest))

    def refuses_to_join(self, key: str) -> bool:  # noqa: ARG002
        return True  # nothing is sent in parts

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
                refuse_link(self._root / folder)
        return path

    def _files_below(self, prefix: str) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the key and the description of each file and link whose key has the prefix."""
        folder = prefix.rpartition("/")[0]
        start = self._path(folder)
        if start != self._root:
            refuse_link(start)
        pending = [f"{folder}/" if folder else ""]
        while pending:
            above = pending.pop()
            with (
                contextlib.suppress(FileNotFoundError, NotADirectoryError),
                os.scandir(self._root / above) as entries,
            ):
                for entry in entries:
                    key = above + entry.name
                    if key == _INCOMING or not (key.startswith(prefix) or prefix.startswith(f"{key}/")):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(f"{key}/")
                    else:
                        with contextlib.suppress(FileNotFoundError):  # removed since
                            yield key, entry.stat(follow_symlinks=False)

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        """Hold a lock that one process at a time can have; the system releases it when the process ends."""
        with (self._incoming_folder() / "lock").open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextlib.contextmanager
    def _temporary_file(self, content: bytes) -> Iterator[Path]:
        """A temporary file with `content`, flushed to disk; it is removed unless the body renames it."""
        temporary = self._incoming_folder() / secrets.token_hex(8)
        try:
            temporary.write_bytes(content)
            sync_file(temporary)
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)

    def _incoming_folder(self) -> Path:
        folder = self._root / _INCOMING
        with contextlib.suppress(FileNotFoundError):  # so do /proc and the like refuse a new folder
            make_folders(folder)
            return folder
        raise ServiceError(f"The store cannot use {folder}: no folder can be created there.")


@dataclass(frozen=True)
class LocalUpload:
    """A copy that waits under a temporary name."""

    store: LocalStore
    key: str
    target: Path
    temporary: Path
    size: int
    digest: bytes
    replaces: str = ""
    """`identity` of the file that may be replaced; empty: the name must be free."""

    @property
    def sha256(self) -> str:
        return self.digest.hex()

    def commit(self) -> GatewayObject:
        return self.store.commit(self)

    def abort(self) -> None:
        with contextlib.suppress(OSError):
            self.temporary.unlink(missing_ok=True)


def _checksum(digest: bytes) -> dict[str, str]:
    return {"algorithm": "SHA256", "type": "FULL_OBJECT", "value": base64.b64encode(digest).decode()}


def _identity(found: os.stat_result) -> str:
    return f"{found.st_dev}:{found.st_ino}:{found.st_size}:{found.st_mtime_ns}"


@contextlib.contextmanager
def name_refusals(path: Path) -> Iterator[None]:
    """Turn an error of the file system into a ServiceError that names the path."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        refusal = PermissionRefusedError if error.errno in _DENIED else ServiceError
        raise refusal(f"The store cannot use {path}: {error.strerror}.") from error


def refuse_link(path: Path) -> None:
    """Raise VerificationError for a symbolic link, ServiceError for a path that is not accessible."""
    with name_refusals(path):
        is_link = path.is_symlink()
    if is_link:
        raise VerificationError(
            f"{path}: a symbolic link, which is never part of a store. "
            "Remove it, and store the run again if the link stood for one of its files."
        )


def copy_file(source: Path, target: Path, pace: Callable[[int], None]) -> tuple[bytes, int]:
    """Copy a file and flush it to disk; return the SHA-256 and the number of the bytes read."""
    digest, size = hashlib.sha256(), 0
    with source.open("rb", buffering=0) as reader, target.open("wb", buffering=0) as writer:
        while chunk := reader.read(CHUNK_BYTES):
            pace(len(chunk))
            digest.update(chunk)
            view = memoryview(chunk)
            while view:
                view = view[writer.write(view) :]
            size += len(chunk)
        os.fsync(writer.fileno())
    return digest.digest(), size


def hash_stored_file(path: Path) -> tuple[bytes, int]:
    """Return the SHA-256 and the size of a file."""
    with path.open("rb", buffering=0) as file:
        digest = hashlib.file_digest(file, "sha256")
        return digest.digest(), file.tell()


def name_exclusively(temporary: Path, path: Path) -> None:
    """Give the file `temporary` the name `path` too, but raise FileExistsError when `path` exists."""
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
            raise
        # Without hard links (FAT, some network shares), an empty file takes the name first. A crash can leave
        # it, and a reader can come across it.
        path.open("xb").close()
        temporary.replace(path)


def sync_file(path: Path) -> None:
    """Flush the file's content to disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def make_folders(path: Path) -> None:
    """Create the folder and those above it that are missing, and flush each new name to disk.

    Without it, a crash of the machine can take a folder, and every flushed file in it, away again.
    """
    if path.is_dir():
        return
    make_folders(path.parent)
    try:
        path.mkdir(exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)) from None
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Flush renames and removals in the directory to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
