"""Run a program on a terminal of its own, with a screen of a given size, and record its output.

Programs behave here as they do in front of a person; `process` runs programs without a terminal.
"""

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_READ_BYTES = 65536
_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Recording:
    """The output of a program on its terminal, with escape sequences, and how the program ended."""

    output: bytes
    exit_code: int | None
    """Negative for a signal; None when it did not end in time, and was killed."""


def record(
    command: Sequence[str],
    *,
    columns: int,
    rows: int,
    seconds: float,
    cwd: Path,
    environment: Mapping[str, str],
    watch: Callable[[bytes], None] = lambda _: None,
) -> Recording:
    """Run `command` in exactly `environment` on a terminal of `columns` × `rows` for at most `seconds`.

    `watch` is called with each piece of output when it arrives.
    """
    process, terminal = pty.fork()
    if process == 0:
        _become(command, cwd, environment, (columns, rows))
    try:
        output, ended = _read(terminal, time.monotonic() + seconds, watch)
        if not ended:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process, signal.SIGKILL)
    finally:
        os.close(terminal)
    _, status = os.waitpid(process, 0)
    return Recording(output, os.waitstatus_to_exitcode(status) if ended else None)


def _become(command: Sequence[str], cwd: Path, environment: Mapping[str, str], size: tuple[int, int]) -> None:
    """Turn the forked child into `command`; like a shell, exit with 127 if it cannot be started."""
    columns, rows = size
    try:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        os.chdir(cwd)
        os.execvpe(command[0], list(command), dict(environment))
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\r\n".encode())
    finally:
        os._exit(127)


def _read(terminal: int, until: float, watch: Callable[[bytes], None]) -> tuple[bytes, bool]:
    """Everything the program writes, and whether it closed its terminal before `until`."""
    parts: list[bytes] = []
    while time.monotonic() < until:
        ready, _, _ = select.select([terminal], [], [], _POLL_SECONDS)
        if not ready:
            continue
        try:
            part = os.read(terminal, _READ_BYTES)
        except OSError:  # Linux raises EIO after the last writer has closed the terminal
            part = b""
        if not part:
            return b"".join(parts), True
        parts.append(part)
        watch(part)
    return b"".join(parts), False
