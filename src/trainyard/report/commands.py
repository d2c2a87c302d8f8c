"""The commands that only the reports propose, ready to be pasted into a shell."""

import shlex
import sys
from pathlib import Path

from trainyard.run.commands import from_here, script_command


def prove_command(directory: Path) -> str:
    """Verify and prove the run in `directory` in the store of its configuration."""
    return f"{script_command('prove_run.py')} --run-dir {_quoted(directory)} --run-number auto"


def restore_command(*, store: str, run_number: int, step: int) -> str:
    """Have a stored checkpoint back on any machine."""
    what = f"--store {shlex.quote(store)} --run-number {run_number} --step {step}"
    return f"{script_command('restore_artifact.py')} {what} --to runs/restored-{run_number}"


def tensorboard_command(directory: Path) -> str:
    """Look at the run's curves in a browser, with the TensorBoard of this environment if it has one."""
    program = Path(sys.executable).with_name("tensorboard")
    program = from_here(program) if program.exists() else Path(program.name)
    return f"{_quoted(program)} --logdir {_quoted(directory / 'tensorboard')}"


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
