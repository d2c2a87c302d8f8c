"""The processes of a run come together, and nobody waits long for one that does not come."""

import subprocess
import sys
import threading

import pytest

from trainyard.training.runtime.world import no_long_wait

WAITING = """
import signal, sys, time
from trainyard.training.runtime import world as joining
joining._TOLD_SECONDS = float(sys.argv[1])
signal.signal(signal.SIGTERM, lambda *_: print("heard", flush=True))
with joining.no_long_wait(lambda: sys.argv[2] == "told"):
    print("waits", flush=True)
    deadline = time.monotonic() + float(sys.argv[3])
    while time.monotonic() < deadline:
        time.sleep(0.01)
print("came together")
"""


def waiting(*, grace: float, told: str, seconds: float) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", WAITING, str(grace), told, str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "waits\n"
    return process


@pytest.mark.parametrize("told", ["", "told"])
def test_a_process_that_is_told_to_end_waits_for_the_others_no_longer(told: str) -> None:
    process = waiting(grace=0.2, told=told, seconds=60)
    if not told:
        process.terminate()
    said, _ = process.communicate(timeout=50)
    assert process.returncode == 1
    assert "came together" not in said


def test_a_signal_while_the_others_come_is_for_the_steps_that_follow() -> None:
    process = waiting(grace=30, told="", seconds=0.5)
    process.terminate()
    said, _ = process.communicate(timeout=25)
    assert (process.returncode, said) == (0, "heard\ncame together\n")


def test_another_thread_than_the_main_one_waits_as_it_is() -> None:
    done = []

    def wait() -> None:
        with no_long_wait(lambda: True):
            done.append(True)

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(60)
    assert done == [True]
