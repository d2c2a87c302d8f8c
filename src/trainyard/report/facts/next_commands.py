"""The shell commands that only the reports suggest, quoted for pasting."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from trainyard.run.suggested_commands import from_here, trainyard_command


def prove_command(directory: Path) -> str:
    """Verify and prove the run in `directory` in the store of its configuration."""
    return trainyard_command(f"prove --run-dir {shlex.quote(str(directory))} --run-number auto")


def restore_command(*, store: str, run_number: int, step: int) -> str:
    """Restore a stored checkpoint on any machine."""
    what = f"--store {shlex.quote(store)} --run-number {run_number} --step {step}"
    return trainyard_command(f"store restore {what} --to runs/restored-{run_number}")


def tensorboard_command(directory: Path, *, run_id: str) -> str:
    """Show the curves in a browser, with the TensorBoard of this environment if it has one.

    A run whose directory is named after its id, as in `runs/`, is shown together with its neighbours.
    """
    among_others = directory.resolve().name == run_id
    logs = directory.parent if among_others else directory / "tensorboard"
    return shlex.join([str(_program("tensorboard")), "--logdir", str(logs)])


def wandb_command(folders: Sequence[Path]) -> str:
    """Upload W&B's offline records; the segments of a resumed run are appended to one run."""
    append = ["--append"] if len(folders) > 1 else []
    return shlex.join([str(_program("wandb")), "sync", *append, *map(str, folders)])


def _program(name: str) -> Path:
    """The path of a program of this environment; only its name where the environment does not have it."""
    program = Path(sys.executable).with_name(name)
    return from_here(program) if program.exists() else Path(name)
