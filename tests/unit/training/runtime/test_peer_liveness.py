"""The other processes of a run: which have ended, and that nobody waits long for one that does not come."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from trainyard.training.runtime.peer_liveness import watch_peers
from trainyard.training.runtime.rendezvous import no_long_wait
from trainyard.training.runtime.world import ALONE, World

WAITING = """
import signal, sys, time
from trainyard.training.runtime import rendezvous as joining
joining._GRACE_SECONDS = float(sys.argv[1])
signal.signal(signal.SIGTERM, lambda *_: print("heard", flush=True))
with joining.no_long_wait(lambda: sys.argv[2] == "told"):
    print("waits", flush=True)
    deadline = time.monotonic() + float(sys.argv[3])
    while time.monotonic() < deadline:
        time.sleep(0.01)
print("came together")
"""


class Gathered(World):
    """One of two processes, which are at `places`."""

    places: tuple[tuple[str, int], ...] = ()

    def gather(self, value: Any) -> list[Any]:
        return [value, *((place or value[0], pid) for place, pid in self.places)]


@pytest.fixture
def other() -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def beside(pid: int, *, machine: str = "") -> World:
    world = Gathered(**vars(replace(ALONE, size=2)))
    object.__setattr__(world, "places", ((machine, pid),))
    return world


def test_a_process_that_ends_is_known_by_its_rank(other: "subprocess.Popen[bytes]") -> None:
    with watch_peers(beside(other.pid)) as ended:
        assert ended() == ()
        other.kill()
        deadline = time.monotonic() + 60
        while not ended() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert ended() == (1,), "it is known before anybody has waited for it"
        assert ended() == (1,)
    other.wait()
    with watch_peers(beside(other.pid)) as ended:
        assert ended() == (1,), "it had ended before"


def test_nothing_is_known_of_another_machine(other: "subprocess.Popen[bytes]") -> None:
    with watch_peers(beside(other.pid, machine="elsewhere")) as ended:
        other.kill()
        other.wait()
        assert ended() == ()


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
