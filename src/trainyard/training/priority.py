"""How much work behind training may take from it: little, until training waits for the work.

    pieces ---> a thread that has stepped back ---hurried---> the thread that asked

It has the time it needs, and training has none to spare. Nobody may take back what a thread gave up without
being privileged, so that a second thread, which never stepped back, does the rest of what is waited for.
"""

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


class GivesWay:
    """Does one piece of work after the other in a thread that has stepped back, as long as nobody waits."""

    def __init__(self, hurried: Callable[[], bool]) -> None:
        """`hurried()` says whether training waits."""
        self._hurried = hurried
        self._behind = ThreadPoolExecutor(1, "checkpoint-behind", initializer=step_back)
        self.seconds = 0.0
        """What the last work took, without the time that it waited for a processor."""

    def run(self, pieces: Pieces[Result]) -> Result:
        """What the work gives. Raises what it raises."""
        start = time.perf_counter()
        ended, gave_way = self._behind.submit(self._until_hurried, pieces).result()
        result = ended[0] if ended else rest_of(pieces)
        self.seconds = max(0.0, time.perf_counter() - start - gave_way)
        return result

    def close(self) -> None:
        """Let the thread go, once its work is done."""
        self._behind.shutdown()

    def _until_hurried(self, pieces: Pieces[Result]) -> tuple[tuple[Result] | None, float]:
        """What the work gave, if it came to its end, and how long it gave way."""
        before = seconds_given_way()
        while not self._hurried():
            try:
                next(pieces)
            except StopIteration as end:
                return (end.value,), seconds_given_way() - before
        return None, seconds_given_way() - before


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
