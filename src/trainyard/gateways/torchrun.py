"""Several processes on one machine: starts torchrun and gives back the code that the run ended with.

torchrun turns every exit code of a worker into 1. The main worker therefore leaves its code in a file, which
is read here. Signals are passed on; the workers get the time they need to save.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from trainyard.errors import ExitCode

EXIT_CODE_FILE = "TRAINYARD_EXIT_CODE_FILE"
_SHUTDOWN_SECONDS = "300"
"""How long torchrun waits for workers after a signal; its own 30 s would kill a large save."""


def launch(arguments: Sequence[str], *, processes: int, run_id: str) -> int:
    """Run a Python script in `processes` workers, which agree on one run.

    Returns the exit code of the main one, 1 without one.
    """
    with tempfile.TemporaryDirectory(prefix="trainyard-") as folder:
        answer = Path(folder) / "exit-code"
        environment = {**os.environ, EXIT_CODE_FILE: str(answer), "TRAINYARD_RUN_ID": run_id}
        environment.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", _SHUTDOWN_SECONDS)
        environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
        command = [sys.executable, "-m", "trainyard.training.workers", "--standalone", "--no-python"]
        # torchrun leaves its own folder behind; here it goes with ours.
        command += [f"--log-dir={folder}", f"--nproc-per-node={processes}", sys.executable, *arguments]
        _run_passing_signals(command, environment)
        return int(answer.read_text()) if answer.exists() else 1


def leave_exit_code(code: int) -> int:
    """Leave `code` for the launcher if this is the main worker of one; returns the status to exit with.

    All workers stop early together, which is no failure that torchrun should report.
    """
    path = os.environ.get(EXIT_CODE_FILE)
    if path is None:
        return code
    if os.environ.get("RANK", "0") == "0":
        Path(path).write_text(str(int(code)))
    return 0 if code == ExitCode.STOPPED else code


def _run_passing_signals(command: Sequence[str], environment: dict[str, str]) -> None:
    # A session of its own: a Ctrl-C reaches the workers once, through torchrun, not a second time directly.
    process = subprocess.Popen(list(command), env=environment, start_new_session=True)  # noqa: S603

    def pass_on(_number: int, _frame: FrameType | None) -> None:
        process.send_signal(signal.SIGTERM)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
