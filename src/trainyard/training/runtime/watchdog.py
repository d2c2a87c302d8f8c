"""Detect a hang: a thread waits for signs of progress and calls an alarm when none come in time.

`hang` handles the alarm. Only time in which this process could run counts: a laptop that slept and a process
that was stopped (SIGSTOP, a debugger) did not hang.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from trainyard.config.schema import MonitoringConfig
from trainyard.run.usual_value import longest_pause
from trainyard.training.runtime.stop_signals import STOP_SIGNALS

_SLOW_FACTOR = 10  # the limit is multiplied by this for slow work: the first step, compiling, saving
_REMEMBERED = 64
# The limit after another rank ended: time to report that and to finish a save without other ranks.
_LOST_SECONDS = 15.0
_LONGEST_POLL = 1.0
_POLLS = 20  # the thread checks at least this many times within the limit


@dataclass(frozen=True)
class Standstill:
    """The time without progress and the limit for it, in seconds."""

    seconds: float
    limit: float
    lost: tuple[int, ...] = ()
    """The ranks that have ended."""


class Watchdog:
    """Watches the steps of one process. `beat` is cheap enough to be called inside a step."""

    def __init__(self, config: MonitoringConfig) -> None:
        self._factor, self._floor = config.hang_factor, config.hang_seconds
        self._beats = 0
        self._steps: tuple[float, ...] = ()
        self._slow = 0
        self._lock = threading.Lock()
        self._over = threading.Event()

    def beat(self) -> None:
        """Record progress."""
        self._beats += 1

    def record_step(self, seconds: float) -> None:
        """Record the duration of a step. The median of the last steps is the usual duration."""
        self._steps = (*self._steps[1 - _REMEMBERED :], seconds)
        self.beat()

    @contextmanager
    def slow_work(self) -> Iterator[None]:
        """Raise the limit for the body, which may take much longer than a step."""
        self.begin_slow_work()
        try:
            yield
        finally:
            self.end_slow_work()

    def begin_slow_work(self, _what: object = None) -> None:
        with self._lock:
            self._slow += 1
        self.beat()

    def end_slow_work(self, _what: object = None) -> None:
        with self._lock:
            self._slow -= 1
        self.beat()

    def limit(self) -> float:
        """The seconds without progress after which the alarm is called, as of now."""
        limit = longest_pause(self._steps, factor=self._factor or 0.0, least=self._floor)
        return limit * _SLOW_FACTOR if self._slow or not self._steps else limit

    @contextmanager
    def watch(
        self,
        alarm: Callable[[Standstill], None],
        *,
        is_raised: Callable[[], bool] = lambda: False,
        lost: Callable[[], tuple[int, ...]] = tuple,
    ) -> Iterator[None]:
        """Watch the body, and call `alarm` from another thread when the body makes no progress.

        The alarm is also called when `is_raised` reports that another process has noticed a hang, and sooner
        than usual when `lost` names ranks that have ended. The alarm is expected to end the process: the
        body cannot be left until the alarm returns.
        """
        if self._factor is None:
            yield
            return
        watch = partial(self._watch, alarm, is_raised, lost)
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
        is_raised: Callable[[], bool],
        lost: Callable[[], tuple[int, ...]],
    ) -> None:
        # The main thread must receive the signals, because they wake it.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        poll = min(_LONGEST_POLL, self._floor / _POLLS)
        last, still, beats = time.monotonic(), 0.0, self._beats
        while not self._over.wait(poll):
            now = time.monotonic()
            still, last = still + min(now - last, 2 * poll), now
            if beats != self._beats:
                still, beats = 0.0, self._beats
            limit, gone = self.limit(), lost()
            if gone:
                limit = min(limit, _LOST_SECONDS)
            if still < limit and not is_raised():
                continue
            with self._lock:
                if self._over.is_set():
                    return
            alarm(Standstill(still, limit, gone))
            return


@contextmanager
def allow_slow_compilation(watchdog: Watchdog) -> Iterator[None]:
    """Treat torch.compile as slow work. It starts at any new shape."""
    from torch._dynamo.callback import callback_handler

    callback_handler.register_start_callback(watchdog.begin_slow_work)
    callback_handler.register_end_callback(watchdog.end_slow_work)
    try:
        yield
    finally:
        callback_handler.remove_start_callback(watchdog.begin_slow_work)
        callback_handler.remove_end_callback(watchdog.end_slow_work)
