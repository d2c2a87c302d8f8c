"""Allow one trainer per run directory, with a lock that the system releases however the process ends."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trainyard.errors import ConfigError

_NAME = ".lock"


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock the run directory, and create it if needed. Raises ConfigError when it is locked or unusable."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = (directory / _NAME).open("a+")
    except OSError as error:
        raise unusable(directory, error) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise ConfigError(
                f"{directory} is being trained by process {file.read().strip() or 'unknown'}. A second one "
                "would damage the run. Wait for it, or choose another --run-dir. Nothing was started."
            ) from None
        except OSError as error:
            raise unusable(directory, error) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        try:
            yield
        finally:
            _remove_if_unused(directory)


def is_locked(directory: Path) -> bool:
    """Return whether a trainer holds the lock of the run directory. Raises OSError when that is not known."""
    try:
        descriptor = os.open(directory / _NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def holder(directory: Path) -> int | None:
    """Return the id of the process that holds the lock of the run directory; None if unknown."""
    with suppress(OSError, ValueError):
        if is_locked(directory):
            return int((directory / _NAME).read_text(encoding="ascii"))
    return None


def unusable(directory: Path, error: OSError) -> ConfigError:
    """Return the error of a run directory that cannot be written."""
    return ConfigError(
        f"--run-dir {directory}: cannot be used ({error.strerror}). "
        f"Name a directory that user {os.geteuid()} can write and lock."
    )


def _remove_if_unused(directory: Path) -> None:
    """Remove the directory of a run that never started, if it holds nothing else."""
    if not (directory / "run.json").exists():
        (directory / _NAME).unlink(missing_ok=True)
        with suppress(OSError):
            directory.rmdir()
