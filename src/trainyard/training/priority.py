"""How much work behind training may take from it: what is idle, until that lasts too long or training waits.

    pieces ---> a thread of idle time ---starved---> one of the lowest share ---hurried---> the one that asked

It has the time it needs, and training has none to spare. Nobody may take back what a thread gave up without
being privileged, so that another thread, which gave up less, does the rest.
"""

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

Result = TypeVar("Result")
Pieces = Generator[None, None, Result]
"""Work that takes milliseconds from one `yield` to the next."""
_NICENESS = 19
"""The most there is. Where nothing leaves a processor idle, the thread still gets about 1.5 % of one."""
_PATIENCE = 40.0
"""Seconds that each of the works of a save waits for idle time in all. Beside a step on both of two
processors, 30 to 200 MB/s were hashed: a gigabyte waits 4 to 40. Where other programs leave nothing idle, it
would wait forever."""


class GivesWay:
    """Does one piece of work after the other in a thread that has stepped back, as long as nobody waits."""

    def __init__(self, hurried: Callable[[], bool]) -> None:
        """`hurried()` says whether training waits."""
        self._hurried = hurried
        self._idle = ThreadPoolExecutor(1, "checkpoint-idle", initializer=take_idle_time)
        self._behind = ThreadPoolExecutor(1, "checkpoint-behind", initializer=step_back)
        self.seconds = 0.0
        """What the last work took, without the time that it waited for a processor."""

    def run(self, pieces: Pieces[Result]) -> Result:
        """What the work gives. Raises what it raises."""
        start, waited = time.perf_counter(), 0.0
        ended: tuple[Result] | None = None
        for thread, patience in ((self._idle, _PATIENCE), (self._behind, math.inf)):
            if ended is None:
                ended, gave_way = thread.submit(self._some, pieces, patience).result()
                waited += gave_way
        result = ended[0] if ended else rest_of(pieces)
        self.seconds = max(0.0, time.perf_counter() - start - waited)
        return result

    def close(self) -> None:
        """Let the threads go, once their work is done."""
        self._idle.shutdown()
        self._behind.shutdown()

    def _some(self, pieces: Pieces[Result], patience: float) -> tuple[tuple[Result] | None, float]:
        """What the work gave, if it came to its end before `patience` did, and how long it gave way."""
        before, waited = seconds_given_way(), 0.0
        while not self._hurried() and waited < patience:
            try:
                next(pieces)
            except StopIteration as end:
                return (end.value,), seconds_given_way() - before
            waited = seconds_given_way() - before
        return None, waited


def rest_of(pieces: Pieces[Result]) -> Result:
    """Do all that is left of some work."""
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            result: Result = end.value
            return result


def in_one_piece(work: Callable[[], Result]) -> Pieces[Result]:
    """Work that cannot be divided."""
    yield
    return work()


def take_idle_time() -> None:
    """Let the calling thread run only while a processor has nothing else to do; on Linux, as `step_back`.

    Any other thread that wakes up takes its place at once. One that only has the lowest share is left to the
    end of its turn, milliseconds for which the threads of a step wait (sched(7), SCHED_IDLE).
    """
    step_back()
    if sys.platform.startswith("linux"):
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def step_back() -> None:
    """Let other threads go first. On Linux this is the calling thread alone; elsewhere nothing happens."""
    if not hasattr(os, "setpriority") or not sys.platform.startswith("linux"):
        return
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


def seconds_given_way() -> float:
    """How long the calling thread has waited for a processor so far; 0 where Linux does not say.

    The kernel's Documentation/scheduler/sched-stats: nanoseconds, second in `/proc/thread-self/schedstat`.
    """
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/thread-self/schedstat").read_bytes().split()[1]) / 1e9
    return 0.0
