"""The command lines that are proposed to people, ready to be pasted into a shell.

Only their text, written here once: whoever proposes one takes it from here. Nothing is run.
"""

import os
import re
import shlex
import sys
from pathlib import Path

_COMMAND = re.compile(r"(?:('?)[^']*python[\d.]*\1 )?scripts/\w+\.py(?: |$)")


def script_command(name: str) -> str:
    """How to call the script `name` (`train.py`) so that it finds the packages that this process has.

    A script starts the python3 of the shell. Where that is not this interpreter, because the virtual
    environment is not active, the interpreter is named.
    """
    script, active = f"scripts/{name}", os.environ.get("VIRTUAL_ENV")
    if sys.prefix == sys.base_prefix or (active and Path(active).resolve() == Path(sys.prefix).resolve()):
        return script
    return f"{shlex.quote(str(from_here(Path(sys.executable))))} {script}"


def is_command(text: str) -> bool:
    """Whether `text` is the call of a script, and not a sentence."""
    return _COMMAND.match(text) is not None


def resume_command(directory: Path, *, checkpoint: Path | None = None) -> str:
    """Go on with the run in `directory` from `checkpoint`, else from the newest one that verifies."""
    point = "auto" if checkpoint is None else shlex.quote(str(checkpoint))
    return f"{again_command(directory)} --run-dir {shlex.quote(str(directory))} --resume {point}"


def again_command(directory: Path) -> str:
    """Train the configuration of the run in `directory` once more, as a new run."""
    return f"{script_command('train.py')} --config {shlex.quote(str(directory / 'config.yaml'))}"


def sync_command(directory: Path | str, *, store: str, run_number: int | None) -> str:
    """Store the run in `directory` as `run_number`; None is the number it has, else a free one."""
    flags = f"--run-dir {shlex.quote(str(directory))} --store {shlex.quote(store)}"
    return f"{script_command('training_artifact_sync.py')} {flags} --run-number {run_number or 'auto'} --once"


def from_here(path: Path) -> Path:
    """`path` relative to the working directory where it lies inside."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
