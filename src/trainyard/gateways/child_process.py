"""Start a program that runs beside others, with its output in a file, and see how it ends."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path


class ChildProcess:
    """A program in a session of its own, so that a Ctrl-C at the terminal reaches it only through `stop`."""

    def __init__(self, command: Sequence[str], *, log: Path, environment: Mapping[str, str]) -> None:
        """Start it. `log` is appended to; `environment` is added to that of this process."""
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=os.environ | dict(environment),
                start_new_session=True,
            )

    def exit_code(self) -> int | None:
        """Return its exit code, 128 + N for signal N; None while it runs."""
        code = self._process.poll()
        return None if code is None else 128 - code if code < 0 else code

    def stop(self) -> None:
        """Send SIGTERM."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
