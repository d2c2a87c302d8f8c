"""Start the workers of this machine by torchrun or another agent; return the run's exit code.

torchrun turns every exit code of a worker into 1. Each worker therefore writes its code to a file, which is
read here. Signals are passed on, and the workers get the time they need to save.
"""

import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from trainyard.errors import ExitCode
from trainyard.gateways.process import SignalForwarder, environment_without, wait_awake

EXIT_CODE_FOLDER = "TRAINYARD_EXIT_CODE_FOLDER"
_logger = logging.getLogger(__name__)


def launch(
    arguments: Sequence[str],
    processes: int,
    run_id: str,
    *,
    options: Sequence[str],
    grace_seconds: int,
    agent: str | None = None,
    without: Collection[str] = (),
    on_answer: Callable[[str], object] | None = None,
) -> int:
    """Run a Python script in `processes` workers on this machine, which train one run together.

    `options` are torchrun's, or those of the program `agent`. Workers have `grace_seconds` from a signal to
    their end. They get this environment without the variables `without`, which describe this process.
    `on_answer` gets what they have written to stdout, at the end; without it stdout is this process's.

    Returns the exit code of this machine's first worker, or that of the worker whose failure ended it; NO if
    the first worker completed and another one died, even after the last step.
    Raises KeyboardInterrupt when a signal ended them before there was a run to save.
    """
    with tempfile.TemporaryDirectory(prefix="trainyard-") as name:
        folder = Path(name)
        environment = environment_without(without) | {EXIT_CODE_FOLDER: name, "TRAINYARD_RUN_ID": run_id}
        environment.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(grace_seconds))
        environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
        # torchrun does not remove its log folder; inside ours, it is removed too.
        program = [agent] if agent else [sys.executable, "-m", "trainyard.training.runtime.torchrun_main"]
        command = [*program, *options, "--no-python", f"--log-dir={name}", sys.executable, *arguments]
        with SignalForwarder(launches=True) as signals, (folder / "answer").open("w+b") as answer:
            # In its own session, so that Ctrl-C reaches the workers only once, through torchrun.
            process = subprocess.Popen(  # noqa: S603
                command,
                env=environment,
                start_new_session=True,
                stdout=None if on_answer is None else answer,
            )
            signals.pass_to(process)
            wait_awake(process)
            answer.seek(0)
            text = answer.read().decode(errors="replace")
        if on_answer is not None and text:
            on_answer(text)
        code = _code_of_all(folder, signalled=bool(signals.passed))
    if code == ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    if code == ExitCode.DONE and process.returncode == ExitCode.NO and not signals.passed:
        _logger.error(
            "A worker died after the last step; the message above names it. The run has its last checkpoint: "
            "start it again, and it confirms that nothing remains to do."
        )
        return ExitCode.NO
    return code


def _code_of_all(folder: Path, *, signalled: bool) -> int:
    """Return the run's exit code from the codes of this machine's workers, by local rank, in `folder`.

    `signalled` states that a signal was passed on to them.
    """
    files = sorted(folder.glob("exit-code-*"), key=lambda path: path.stat().st_mtime_ns)
    codes = {path.name.rpartition("-")[2]: int(path.read_text()) for path in files}
    main = codes.pop("0", ExitCode.INTERRUPTED if signalled else None)
    if main is not None and (signalled or main != ExitCode.INTERRUPTED):
        return main
    ended = (ExitCode.DONE, ExitCode.STOPPED, ExitCode.INTERRUPTED)
    return next((code for code in codes.values() if code not in ended), main or ExitCode.NO)


def write_exit_code(code: int, *, output: Callable[[str, str], None]) -> int:
    """Write `code` to a file for the launcher, if there is one; return the status to exit with.

    The main worker, the launcher and a single process set the `output` `exit_code`. A worker that stopped
    early exits with 0, because all workers stop together and torchrun must not report a failure.
    """
    rank, folder = os.environ.get("RANK", "0"), os.environ.get(EXIT_CODE_FOLDER)
    if rank == "0":
        output("exit_code", str(int(code)))
    if folder is None:
        return code
    Path(folder, f"exit-code-{os.environ.get('LOCAL_RANK', rank)}").write_text(str(int(code)))
    return 0 if code == ExitCode.STOPPED else code
