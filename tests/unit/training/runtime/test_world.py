"""How processes of a run wait for each other and end, and the messages about workers that failed."""

import atexit
import gc
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed.run
from tests import warm_start
from tests.cases import each_case
from torch.distributed.elastic.multiprocessing.api import SignalException, logger
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError, RendezvousTimeoutError

from trainyard.training.runtime.stop_signals import limit_wait
from trainyard.training.runtime.torchrun_main import FirstNodeLostError, main

ENDING = """
import atexit, os, sys, threading
from trainyard.training.runtime.world import end_if_joined, join_world
atexit.register(print, "cleans up")
if sys.argv[1] != "none":
    os.environ |= {"RANK": "0", "WORLD_SIZE": sys.argv[2], "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    try:
        with join_world("cpu", sys.argv[1]):
            if sys.argv[3] == "fails":
                raise OSError("an error of this process alone")
    except OSError:
        pass
end_if_joined(7)
os.write(1, b"the interpreter ends\\n")
"""


@pytest.mark.parametrize(
    ("strategy", "outcome", "code", "output"),
    [("single", "", 0, "the interpreter ends\ncleans up\n"), ("fsdp", "fails", 7, "cleans up\n")],
)
def test_the_interpreter_of_a_process_that_had_a_group_does_not_end(
    tmp_path: Path, strategy: str, outcome: str, code: int, output: str
) -> None:
    """Its end would now and then abort a process whose training was done."""
    (tmp_path / "ending.py").write_text(ENDING)
    command = [sys.executable, str(tmp_path / "ending.py"), strategy, "1", outcome]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = warm_start.run(command, env=environment, timeout=100)
    assert (done.returncode, done.stdout) == (code, output), done.stderr


WAITING = """
import signal, sys, time
from trainyard.training.runtime import stop_signals as joining
joining._JOIN_SECONDS = float(sys.argv[1])
signal.signal(signal.SIGTERM, lambda *_: print("signal received", flush=True))
with joining.limit_wait(lambda: sys.argv[2] == "end"):
    print("waits", flush=True)
    deadline = time.monotonic() + float(sys.argv[3])
    while time.monotonic() < deadline:
        time.sleep(0.01)
print("came together")
"""


def start_waiting_process(*, grace: float, end_request: str, seconds: float) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", WAITING, str(grace), end_request, str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "waits\n"
    return process


def test_a_process_that_must_end_stops_waiting_for_the_others() -> None:
    process = start_waiting_process(grace=0.2, end_request="", seconds=60)
    process.terminate()
    output, _ = process.communicate(timeout=50)
    assert process.returncode == 1
    assert "came together" not in output


def test_a_signal_while_the_others_come_is_for_the_steps_that_follow() -> None:
    process = start_waiting_process(grace=30, end_request="", seconds=0.5)
    process.terminate()
    output, _ = process.communicate(timeout=25)
    assert (process.returncode, output) == (0, "signal received\ncame together\n")


def test_another_thread_than_the_main_one_waits_as_it_is() -> None:
    done = []

    def wait() -> None:
        with limit_wait(lambda: True):
            done.append(True)

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(60)
    assert done == [True]


def failure(rank: int, code: int, *, after: int = 0) -> ProcessFailure:
    result = ProcessFailure(local_rank=rank, pid=100 + rank, exitcode=code, error_file="<N/A>")
    result.timestamp = 1_000 + after
    return result


def failed(*workers: ProcessFailure) -> ChildFailedError:
    return ChildFailedError("train.py", {each.local_rank: each for each in workers})


@pytest.fixture
def garbage_collection(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the garbage collector see the objects of this process again after the test, and at its end."""
    monkeypatch.setattr(atexit, "register", lambda *_: None)
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("garbage_collection")
@each_case(
    ("ends", "output"),
    [
        (None, ""),
        (failed(failure(1, -9), failure(0, 1)), "Rank 1 (pid 101) was killed by SIGKILL.\n"),
        (
            failed(failure(0, -9, after=1), failure(1, -9)),
            "Rank 0 (pid 100) was killed by SIGKILL.\nRank 1 (pid 101) was killed by SIGKILL.\n",
        ),
        (failed(failure(0, -15, after=1), failure(1, 2)), ""),
        (failed(failure(0, -9, after=30), failure(1, 2)), ""),
        (failed(failure(0, -15)), "Rank 0 (pid 100) was killed by SIGTERM.\n"),
        (SignalException("stopped", signal.SIGTERM), ""),
        (
            RendezvousTimeoutError(),
            "Not all nodes of this run joined (RendezvousTimeoutError).\nCheck that all of them "
            "run, and can reach the rendezvous address. Nothing was started.\n",
        ),
        *(
            (left, "The first node of this run is lost, so the workers of this node were ended.\n")
            for left in (FirstNodeLostError(), RendezvousConnectionError("gone"))
        ),
    ],
)
def test_only_a_worker_that_could_not_speak_is_spoken_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ends: Any, output: str
) -> None:
    def torchrun() -> None:
        monkeypatch.setattr(logger, "propagate", False)  # torch's own handlers write the line too
        logger.addHandler(handler := logging.StreamHandler(sys.stderr))
        logger.warning("Sending process %s closing signal %s", 100, "SIGTERM")
        logger.error("failed (exitcode: %s) local_rank: %s", 2, 1)
        logger.warning("Unable to shutdown process %s", 100)
        logger.removeHandler(handler)
        if ends is not None:
            raise ends

    monkeypatch.setattr(torch.distributed.run, "main", torchrun)
    first_node_gone = "The first node" in output
    assert main() == (4 if first_node_gone else 0 if ends is None else 1)
    assert capsys.readouterr().err == f"Unable to shutdown process 100\n{output}"
