"""Make folders that are either complete or absent: fill under a temporary name, fsync, rename.

Several processes may want the same folder at once: one makes it, and the others wait for it. A killed process
leaves a temporary folder, which the next one clears. The caller decides about the content.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from trainyard.run.atomic_files import sync_directory


def fill_folder(path: Path, fill: Callable[[Path], None], is_complete: Callable[[Path], bool]) -> bool:
    """Let `fill` fill a temporary folder, then rename it to `path`; replace an incomplete one.

    Return False when another process has made it meanwhile. Raises what `fill` raises, and OSError; a failed
    attempt leaves nothing behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    while not is_complete(path):
        temporary.mkdir(exist_ok=True)
        with _lock(temporary) as is_there:
            if not is_there:
                continue
            try:
                if is_complete(path):
                    continue
                for left in temporary.iterdir():
                    left.unlink()
                fill(temporary)
                sync_directory(temporary)
                if path.is_dir():
                    shutil.rmtree(path)
                temporary.rename(path)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
        sync_directory(path.parent)
        return True
    return False


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[bool]:
    """Wait for the lock of `folder`; yield whether it is still there. The system releases it at a death."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        yield False
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield folder.is_dir() and os.path.samestat(os.fstat(descriptor), folder.stat())
    finally:
        os.close(descriptor)
