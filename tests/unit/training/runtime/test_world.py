"""The processes of a run come together, and none waits long for one that does not join."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests import warm_start

from trainyard.training.runtime.world import limit_wait

WAITING = """
import signal, sys, time
from trainyard.training.runtime import world as joining
joining._JOIN_SECONDS = float(sys.argv[1])
signal.signal(signal.SIGTERM, lambda *_: print("signal received", flush=True))
with joining.limit_wait(lambda: sys.argv[2] == "end"):
    print("waits", flush=True)
    deadline = time.monotonic() + float(sys.argv[3])
    while time.monotonic() < deadline:
        time.sleep(0.01)
print("came together")
"""


def start_waiting_process(
    folder: Path, *, grace: float, end_request: str, seconds: float
) -> "subprocess.Popen[str]":
    (folder / "waiting.py").write_text(WAITING)
    command = [sys.executable, str(folder / "waiting.py"), str(grace), end_request, str(seconds)]
    process = warm_start.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "waits\n"
    return process


def test_a_process_that_must_end_stops_waiting_for_the_others(tmp_path: Path) -> None:
    process = start_waiting_process(tmp_path, grace=0.2, end_request="", seconds=60)
    process.terminate()
    output, _ = process.communicate(timeout=50)
    assert process.returncode == 1
    assert "came together" not in output


def test_a_signal_while_the_others_come_is_for_the_steps_that_follow(tmp_path: Path) -> None:
    process = start_waiting_process(tmp_path, grace=30, end_request="", seconds=0.5)
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
    [
        ("single", "", 0, "the interpreter ends\ncleans up\n"),
        ("fsdp", "fails", 7, "cleans up\n"),
    ],
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
