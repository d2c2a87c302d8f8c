"""The command lines that go on with a run or train it once more, ready to be pasted into a shell.

Only their text, written here once: whoever proposes one takes it from here. Nothing is run.
"""

import shlex
from pathlib import Path


def resume_command(directory: Path, *, checkpoint: Path | None = None) -> str:
    """Go on with the run in `directory` from `checkpoint`, else from the newest one that verifies."""
    point = "auto" if checkpoint is None else shlex.quote(str(checkpoint))
    return f"{again_command(directory)} --run-dir {shlex.quote(str(directory))} --resume {point}"


def again_command(directory: Path) -> str:
    """Train the configuration of the run in `directory` once more, as a new run."""
    return f"scripts/train.py --config {shlex.quote(str(directory / 'config.yaml'))}"
