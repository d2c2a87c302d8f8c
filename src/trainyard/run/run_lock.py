"""Allow one trainer per run directory, with a lock that the system releases however the process ends.

The lock ends with the command, and its program may live on. So the file of the lock also has who held it
last: the command, its machine, and the session of its program. `gateways.process_tree` finds those processes.
"""

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from trainyard.errors import ConfigError

_NAME = ".lock"


@dataclass(frozen=True)
class LockHolder:
    """The command that holds the lock of a run directory, or held it last."""

    pid: int
    host: str = ""
    machine: str = ""
    """The scope of its process ids."""
    since: float | None = None
    """When it took the lock, in Unix seconds."""
    session: int | None = None
    """The session of its program, whose id is that of the process that leads it."""
    session_start: int | None = None
    """When that process started, in the kernel's ticks."""

    @property
    def is_here(self) -> bool:
        """Whether its process ids are those that this process sees."""
        return self.machine in ("", machine())

    def describe(self) -> str:
        """Return the process, with its host if that is another one, and the time if known."""
        host = "" if self.is_here else f" on {self.host}"
        return f"process {self.pid}{host}{since(self.since)}"


def since(moment: float | None) -> str:
    """Return a Unix time as words of a message; empty for None."""
    return "" if moment is None else time.strftime(" since %Y-%m-%d %H:%M:%S", time.localtime(moment))


def machine() -> str:
    """Identify the scope in which a process id is unique: one boot of a machine and one container."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    if not boot.exists():
        return socket.gethostname()
    return f"{boot.read_text().strip()} {Path('/proc/self/ns/pid').readlink()}"


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
            raise in_use(directory) from None
        except OSError as error:
            raise unusable(directory, error) from None
        _write_holder(directory, LockHolder(os.getpid(), socket.gethostname(), machine(), time.time()))
        try:
            yield
        finally:
            if not (directory / "run.json").exists():  # a run that never started leaves nothing
                (directory / _NAME).unlink(missing_ok=True)
                with suppress(OSError):
                    directory.rmdir()


def note_session(directory: Path, session: int, start: int) -> None:
    """Add the session of the program to the record of the lock, which this process holds."""
    if (holder := last_holder(directory)) is not None:
        _write_holder(directory, replace(holder, session=session, session_start=start))


def in_use(directory: Path) -> ConfigError:
    """Return the error of a run directory that is locked."""
    holder = last_holder(directory)
    return ConfigError(
        f"{directory} is being trained by {holder.describe() if holder else 'another process'}. A second one "
        "would damage the run. Wait for it, stop it first with trainyard run --takeover, or choose another "
        "--run-dir. Nothing was started."
    )


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


def last_holder(directory: Path) -> LockHolder | None:
    """Return who holds the lock of the run directory, or held it last; None if unknown."""
    with suppress(OSError, ValueError, TypeError):
        return LockHolder(**json.loads((directory / _NAME).read_text(encoding="utf-8")))
    return None


def leader_here(directory: Path) -> tuple[int, int] | None:
    """Return the id and the start of the process that led the last program's session, if it was here."""
    holder = last_holder(directory)
    if holder is None or not holder.is_here or holder.session is None or holder.session_start is None:
        return None
    return holder.session, holder.session_start


def unusable(directory: Path, error: OSError) -> ConfigError:
    """Return the error of a run directory that cannot be written."""
    return ConfigError(
        f"--run-dir {directory}: cannot be used ({error.strerror}). "
        f"Name a directory that user {os.geteuid()} can write and lock."
    )


def _write_holder(directory: Path, holder: LockHolder) -> None:
    (directory / _NAME).write_text(json.dumps(asdict(holder)), encoding="utf-8")
