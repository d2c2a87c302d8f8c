"""A process waits long for the others of a run only while nobody has asked it to stop."""

import subprocess
import sys
import threading

from trainyard.training.runtime.stop_signals import limit_wait

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
