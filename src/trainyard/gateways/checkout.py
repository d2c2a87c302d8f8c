"""Run scripts of another checkout of this repository, with its own code in its own environment.

They get only a few harmless variables of this process, because that code may not be reviewed yet: it must not
find secrets, and must not write to the files of the workflow step that runs it.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from trainyard.gateways.process import MeasuredRun, run_measured

_HARMLESS = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "OMP_NUM_THREADS", "OMP_WAIT_POLICY")


def run_script(directory: Path, script: str, arguments: Sequence[str], *, seconds: float) -> MeasuredRun:
    """Run `scripts/SCRIPT` of the checkout, with its `.venv` if it has one, else with this Python."""
    own = directory / ".venv" / "bin" / "python"
    python = own if own.is_file() else Path(sys.executable)
    environment = {name: os.environ[name] for name in _HARMLESS if name in os.environ}
    environment["PYTHONPATH"] = str(directory / "src")
    line = [str(python), str(directory / "scripts" / script), *arguments]
    return run_measured(line, seconds=seconds, cwd=directory, environment=environment)
