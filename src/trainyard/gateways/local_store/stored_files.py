"""File operations for a store in a folder: copy and hash in one pass, flush to disk, report refusals clearly.

It knows nothing about stores and keys.
"""

import contextlib
import errno
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from trainyard.errors import PermissionRefusedError, ServiceError, VerificationError

CHUNK_BYTES = 1 << 20
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)


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
