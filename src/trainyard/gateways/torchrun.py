"""Several processes on one machine: starts torchrun and gives back the code that the run ended with.

torchrun turns every exit code of a worker into 1. Every worker therefore leaves its code in a file, which is
read here. Signals are passed on; the workers get the time they need to save.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from trainyard.errors import ExitCode

EXIT_CODE_FOLDER = "TRAINYARD_EXIT_CODE_FOLDER"
_SHUTDOWN_SECONDS = "300"
"""How long torchrun waits for workers after a signal; its own 30 s would kill a large save."""


def launch(arguments: Sequence[str], processes: int, run_id: str) -> int:
    """Run a Python script in `processes` workers, which agree on one run.

    Returns the exit code of the main one; where that was ended because another had failed, that of the other.
    Raises KeyboardInterrupt when a signal ended them before there was a run to save.
    """
    with tempfile.TemporaryDirectory(prefix="trainyard-") as name:
        folder = Path(name)
        environment = {**os.environ, EXIT_CODE_FOLDER: name, "TRAINYARD_RUN_ID": run_id}
        environment.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", _SHUTDOWN_SECONDS)
        environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
        command = [sys.executable, "-m", "trainyard.training.workers", "--standalone", "--no-python"]
        # torchrun leaves its own folder behind; here it goes with ours.
        command += [f"--log-dir={name}", f"--nproc-per-node={processes}", sys.executable, *arguments]
        told = _run_passing_signals(command, environment)
        code = _code_of_all(folder, told=told)
    if code == ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    return code


def _code_of_all(folder: Path, *, told: bool) -> int:
    """What the codes that workers left in `folder` say of all; `told` when a signal was passed on to them."""
    files = sorted(folder.glob("exit-code-*"), key=lambda path: path.stat().st_mtime_ns)
    codes = {path.name.rpartition("-")[2]: int(path.read_text()) for path in files}
    main = codes.pop("0", ExitCode.INTERRUPTED if told else None)
    if main is not None and (told or main != ExitCode.INTERRUPTED):
        return main
    ended = (ExitCode.DONE, ExitCode.STOPPED, ExitCode.INTERRUPTED)
    return next((code for code in codes.values() if code not in ended), main or ExitCode.NO)


def leave_exit_code(code: int, *, output: Callable[[str, str], None]) -> int:
    """Leave `code` for the launcher if this is a worker of one; returns the status to exit with.

    The main worker, the launcher and a process alone give the `output` `exit_code`.
    All workers stop early together, which is no failure that torchrun should report.
    """
    rank, folder = os.environ.get("RANK", "0"), os.environ.get(EXIT_CODE_FOLDER)
    if rank == "0":
        output("exit_code", str(int(code)))
    if folder is None:
        return code
    Path(folder, f"exit-code-{rank}").write_text(str(int(code)))
    return 0 if code == ExitCode.STOPPED else code


def _run_passing_signals(command: Sequence[str], environment: dict[str, str]) -> bool:
    """Whether a signal was passed on."""
    # A session of its own: a Ctrl-C reaches the workers once, through torchrun, not a second time directly.
    process = subprocess.Popen(list(command), env=environment, start_new_session=True)  # noqa: S603

    told = threading.Event()

    def pass_on(_number: int, _frame: FrameType | None) -> None:
        told.set()
        process.send_signal(signal.SIGTERM)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return told.is_set()
