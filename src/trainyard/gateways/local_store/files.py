"""Files of a folder that is a store: copied and hashed in one pass, made durable, refused in plain words.

It knows no store and no keys.
"""

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from trainyard.errors import PermissionRefusedError, ServiceError, VerificationError

CHUNK_BYTES = 1 << 20
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)


@contextlib.contextmanager
def refusals_named(path: Path, needed: int = 0) -> Iterator[None]:
    """Turn what the file system refuses into a ServiceError that says what to do."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        if (file := _file_in_the_way(path)) is not None:
            raise ServiceError(f"The store cannot use {path}: {file} is a file and no folder.") from error
        room = f" ({_free(path)} free" + (f", the file has {_size(needed)})" if needed else ")")
        refusal = PermissionRefusedError if error.errno in _DENIED else ServiceError
        raise refusal(f"The store cannot use {path}: {error.strerror}{room}.") from error


def _file_in_the_way(path: Path) -> Path | None:
    """What stands where `path` has a folder; None where all of them are folders, or not there yet."""
    with contextlib.suppress(OSError):
        return next((each for each in path.parents if each.exists() and not each.is_dir()), None)
    return None


def _free(path: Path) -> str:
    """The room where `path` is, or would be; of the nearest folder that can be looked at."""
    for folder in (path, *path.parents):
        with contextlib.suppress(OSError):
            if folder.is_dir():
                return _size(shutil.disk_usage(folder).free)
    return "an unknown number of bytes"


def refuse_link(path: Path) -> None:
    """Raise VerificationError for a symbolic link, ServiceError for what may not be looked at."""
    with refusals_named(path):
        is_link = path.is_symlink()
    if is_link:
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


def copy_file(source: Path, target: Path, pace: Callable[[int], None]) -> tuple[bytes, int]:
    """Copy a file and make it durable; the SHA-256 and the number of the bytes that were read."""
    digest, size = hashlib.sha256(), 0
    with source.open("rb", buffering=0) as reader, target.open("wb", buffering=0) as writer:
        while chunk := reader.read(CHUNK_BYTES):
            pace(2 * len(chunk))  # it is read back before it gets its name
            digest.update(chunk)
            view = memoryview(chunk)
            while view:
                view = view[writer.write(view) :]
            size += len(chunk)
        os.fsync(writer.fileno())
    return digest.digest(), size


def digest_of(path: Path) -> tuple[bytes, int]:
    """The SHA-256 and the number of a file's bytes."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return digest.digest(), size


def name_exclusively(temporary: Path, path: Path) -> None:
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


def sync_file(path: Path) -> None:
    """Make what is in the file durable."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Make the renames and removals in the directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
