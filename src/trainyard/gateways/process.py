"""Other programs, always with a time limit. The only importer of subprocess."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Finished:
    """How a program ended."""

    exit_code: int | None
    """None when it could not be started or did not end in time."""
    stdout: str
    stderr: str

    @property
    def ok(self) -> bool:
        return self.exit_code == 0


def run_program(command: Sequence[str], *, seconds: float, cwd: Path | None = None) -> Finished:
    """Run `command` for at most `seconds`; a missing program is an answer, not an error."""
    try:
        done = subprocess.run(
            list(command),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            cwd=cwd,
            check=False,
        )
    except FileNotFoundError:
        return Finished(None, "", f"{command[0]}: not found")
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finished(None, "", f"{command[0]}: {error}")
    return Finished(done.returncode, done.stdout, done.stderr)
