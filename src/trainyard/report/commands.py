"""The commands that only the reports propose, ready to be pasted into a shell."""

import shlex
import sys
from pathlib import Path


def prove_command(directory: Path) -> str:
    """Verify and prove the run in `directory` in the store of its configuration."""
    return f"scripts/prove_run.py --run-dir {_quoted(directory)} --run-number auto"


def tensorboard_command(directory: Path) -> str:
    """Look at the run's curves in a browser, with the TensorBoard of this environment if it has one."""
    program = Path(sys.executable).parent / "tensorboard"
    if not program.exists():
        program = Path(program.name)
    elif program.is_relative_to(Path.cwd()):
        program = program.relative_to(Path.cwd())
    return f"{_quoted(program)} --logdir {_quoted(directory / 'tensorboard')}"


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
