"""Make folders that are either complete or absent: fill under a temporary name, fsync, rename.

Several processes may make the same folder at once; the first to finish wins and the others use its folder. A
killed process leaves a temporary folder, which the next one removes. The caller decides about the content.
"""

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from trainyard.run.atomic_files import sync_directory

_TEMPORARY = ".tmp"
_POLL_SECONDS = 0.1


def fill_folder(path: Path, fill: Callable[[Path], None], is_complete: Callable[[Path], bool]) -> None:
    """Let `fill` fill a temporary folder, then rename it to `path`; replace an incomplete one.

    Raises what `fill` raises, and OSError. A failed attempt leaves nothing behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(path)
    with _temporary_folder(path) as temporary:
        fill(temporary)
        sync_directory(temporary)
        _put_in_place(temporary, path, is_complete)
    sync_directory(path.parent)


def wait_for_maker(path: Path, *, seconds: float) -> None:
    """Wait while a living process makes `path`; wait at most `seconds` for one to start."""
    deadline = time.monotonic() + seconds
    while not path.exists() and (_is_being_made(path) or time.monotonic() < deadline):
        time.sleep(_POLL_SECONDS)


def _is_being_made(path: Path) -> bool:
    """Return whether a living process has locked a temporary folder for `path`."""
    for folder in path.parent.glob(f".{path.name}.*{_TEMPORARY}"):
        with _try_lock(folder) as locked:
            if not locked and folder.is_dir():
                return True
    return False


@contextlib.contextmanager
def _temporary_folder(path: Path) -> Iterator[Path]:
    """A temporary folder beside `path`, locked while this process works on it and removed afterwards."""
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_TEMPORARY}")
        temporary.mkdir()
        with _try_lock(temporary) as locked:
            if not locked:  # another process checked or cleaned up between the two lines above
                shutil.rmtree(temporary, ignore_errors=True)
                continue
            try:
                yield temporary
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
            return


@contextlib.contextmanager
def _try_lock(folder: Path) -> Iterator[bool]:
    """Lock `folder` and yield whether that worked. The system releases the lock when the process dies."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        yield False
        return
    try:
        yield _acquire_lock(descriptor) and folder.is_dir()
    finally:
        os.close(descriptor)


def _acquire_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove_abandoned(path: Path) -> None:
    """Remove the temporary folders for `path` that no living process has locked."""
    for folder in path.parent.glob(f".{path.name}.*{_TEMPORARY}"):
        with _try_lock(folder) as locked:
            if locked:
                shutil.rmtree(folder, ignore_errors=True)


def _put_in_place(temporary: Path, path: Path, is_complete: Callable[[Path], bool]) -> None:
    """Rename `temporary` to `path`, unless another process has made it; one process at a time.

    Otherwise one process could find `path` broken and remove it just after another has replaced it.
    """
    with _wait_for_lock(path.parent):
        while True:
            try:
                temporary.rename(path)
                return
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            if is_complete(path):
                return
            _set_aside(path)


@contextlib.contextmanager
def _wait_for_lock(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _set_aside(path: Path) -> None:
    """Move a broken folder away with one rename, then remove it."""
    broken = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_TEMPORARY}")
    with contextlib.suppress(FileNotFoundError):  # another process was quicker
        path.rename(broken)
    shutil.rmtree(broken, ignore_errors=True)
