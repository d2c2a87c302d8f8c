"""Notices when training stands still: a thread that looks for signs of life and calls out when none come.

What is done then is `hang`'s. The time that counts is the time in which this process could run: a laptop that
slept and a process that was stopped (SIGSTOP, a debugger) did not hang.
"""

import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from trainyard.config.schema import MonitoringConfig

_SLOW_FACTOR = 10
"""What is slow by nature gets so many times the patience: the first step, compiling, saving."""
_REMEMBERED = 64
_LOST_SECONDS = 15.0
"""Patience where another process has ended: for saying so, and for a save that can be ended alone."""
_LONGEST_LOOK = 1.0
_LOOKS = 20
"""How often at least it looks within the time it has patience for."""


@dataclass(frozen=True)
class Standstill:
    """How long nothing moved, and for how long nothing may move at most, in seconds."""

    seconds: float
    limit: float
    lost: tuple[int, ...] = ()
    """The ranks that have ended."""


class Watchdog:
    """Patience for the steps of one process. `beat` is cheap enough for the inside of a step."""

    def __init__(self, config: MonitoringConfig) -> None:
        self._factor, self._floor = config.hang_factor, config.hang_seconds
        self._beats = 0
        self._steps: tuple[float, ...] = ()
        self._slow = 0
        self._lock = threading.Lock()
        self._over = threading.Event()

    def beat(self) -> None:
        """Something moved."""
        self._beats += 1

    def step_done(self, seconds: float) -> None:
        """A step took so long; what is usual is the median of the last ones."""
        self._steps = (*self._steps[1 - _REMEMBERED :], seconds)
        self.beat()

    @contextmanager
    def slow_work(self) -> Iterator[None]:
        """Around what may take much longer than a step."""
        self.slow_begins()
        try:
            yield
        finally:
            self.slow_ends()

    def slow_begins(self, _what: object = None) -> None:
        with self._lock:
            self._slow += 1
        self.beat()

    def slow_ends(self, _what: object = None) -> None:
        with self._lock:
            self._slow -= 1
        self.beat()

    def limit(self) -> float:
        """Seconds without a sign of life that are too many now."""
        usual = statistics.median(self._steps) if self._steps else 0.0
        limit = max(self._floor, (self._factor or 0.0) * usual)
        return limit * _SLOW_FACTOR if self._slow or not self._steps else limit

    @contextmanager
    def watching(
        self,
        alarm: Callable[[Standstill], None],
        *,
        called: Callable[[], bool] = lambda: False,
        lost: Callable[[], tuple[int, ...]] = tuple,
    ) -> Iterator[None]:
        """Watch what is done inside, and call `alarm` from another thread when it stands still.

        So it does when `called` says that another process has noticed, and sooner when `lost` names ranks
        that have ended. The alarm is expected to end the process: until it returns, nobody leaves this one.
        """
        if self._factor is None:
            yield
            return
        watch = partial(self._watch, alarm, called, lost)
        thread = threading.Thread(target=watch, name="watchdog", daemon=True)
        thread.start()
        try:
            yield
        finally:
            with self._lock:
                self._over.set()
            thread.join()

    def _watch(
        self,
        alarm: Callable[[Standstill], None],
        called: Callable[[], bool],
        lost: Callable[[], tuple[int, ...]],
    ) -> None:
        # Signals are for the main thread, which they wake.
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
        look = min(_LONGEST_LOOK, self._floor / _LOOKS)
        last, still, beats = time.monotonic(), 0.0, self._beats
        while not self._over.wait(look):
            now = time.monotonic()
            still, last = still + min(now - last, 2 * look), now
            if beats != self._beats:
                still, beats = 0.0, self._beats
            limit, gone = self.limit(), lost()
            if gone:
                limit = min(limit, _LOST_SECONDS)
            if still < limit and not called():
                continue
            with self._lock:
                if self._over.is_set():
                    return
            alarm(Standstill(still, limit, gone))
            return


@contextmanager
def compiling_is_slow(watchdog: Watchdog) -> Iterator[None]:
    """Give torch.compile, which starts at any new shape, the patience of slow work."""
    from torch._dynamo.callback import callback_handler

    callback_handler.register_start_callback(watchdog.slow_begins)
    callback_handler.register_end_callback(watchdog.slow_ends)
    try:
        yield
    finally:
        callback_handler.remove_start_callback(watchdog.slow_begins)
        callback_handler.remove_end_callback(watchdog.slow_ends)
