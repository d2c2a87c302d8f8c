"""Decide when to stop early: signals and the deadline are checked between steps.

A signal never interrupts a step or a save; it sets a flag. Only a second Ctrl-C ends the program at once, and
a signal while the processes of a run still join each other (`limit_wait`).
"""

import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from trainyard.errors import ExitCode

_logger = logging.getLogger(__name__)
# The reason of a stop after which the run is not continued automatically.
COST_LIMIT = "limits.cost_usd is reached"
INTERRUPT = "SIGINT received"  # the reason of a stop by Ctrl-C, after which the exit code is 130
_ALWAYS = (signal.SIGTERM, signal.SIGINT)
# All but the first two stay ignored if they were at the start, as SIGHUP is under nohup.
STOP_SIGNALS = (*_ALWAYS, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
# A terminal's Ctrl-C and the same signal passed on by a parent arrive together and count as one.
_SAME_SIGNAL_SECONDS = 2.0
# The others still have this long to join the run after a stop of this process was requested.
_JOIN_SECONDS = 5.0


class StopRequest:
    """The request to save and stop, with its reason.

    `deadline` and `cost_deadline` are in seconds of the monotonic clock. `grace` is the number of seconds
    from a signal until its sender kills the process.
    """

    def __init__(
        self, deadline: float | None = None, grace: float = math.inf, cost_deadline: float | None = None
    ) -> None:
        self.reason: str | None = None
        self.grace = grace
        self.needed: float | None = None
        """Seconds that the slowest process needs from a signal to its end; None until a save was measured."""
        self._deadlines = {"the deadline is near": deadline, COST_LIMIT: cost_deadline}
        self._interrupted: float | None = None
        self._at_hangup: Callable[[], None] = lambda: None
        self._signalled: float | None = None

    @classmethod
    def after(
        cls, seconds: float | None, *, gone: float, grace: float, paid_seconds: float | None = None
    ) -> "StopRequest":
        """Return a request with a deadline `seconds` after a start that was `gone` seconds ago.

        None means no deadline. The limit of the cost is reached `paid_seconds` from now.
        """
        now = time.monotonic()
        deadline = None if seconds is None else now - gone + seconds
        return cls(deadline, grace, None if paid_seconds is None else now + paid_seconds)

    def listen(
        self,
        earlier_signal: Callable[[], str | None] = lambda: None,
        at_hangup: Callable[[], None] = lambda: None,
    ) -> None:
        """Handle signals from now on, and the earlier one that `earlier_signal` returns.

        `at_hangup` is called after SIGHUP.
        """
        self._at_hangup = at_hangup
        for number in STOP_SIGNALS:
            if number in _ALWAYS or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._on_signal)
        if name := earlier_signal():
            self._signalled, self.reason = time.monotonic(), f"{name} received"

    def seconds_left(self) -> float:
        """Seconds left of the grace period; infinite without a signal."""
        if self._signalled is None:
            return math.inf
        return self.grace - (time.monotonic() - self._signalled)

    def since_signal(self) -> float | None:
        """Seconds since the signal; None without one."""
        return None if self._signalled is None else time.monotonic() - self._signalled

    def adopt_signal(self, seconds: float) -> None:
        """Adopt a signal that another process of the run received, so that this one stops as soon."""
        if self._signalled is None:
            self._signalled = time.monotonic() - seconds

    def stop_before_deadline(self, seconds: float) -> None:
        """Request a stop if fewer than `seconds` (a step and a save) are left before a deadline."""
        for reason, deadline in self._deadlines.items():
            if deadline is not None and time.monotonic() + seconds >= deadline and not self.reason:
                self.reason = reason

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        now = time.monotonic()
        if number == signal.SIGINT:
            if self._interrupted is not None and now - self._interrupted > _SAME_SIGNAL_SECONDS:
                raise KeyboardInterrupt
            self._interrupted = self._interrupted or now
        if self._signalled is None:
            self._signalled = now
        if self.reason is None:
            self.reason = f"{name} received"
            _logger.warning("%s: stopping with a checkpoint once this step is done", name)
        if number == signal.SIGHUP:
            self._at_hangup()


@contextmanager
def shield_children() -> Iterator[None]:
    """Keep these signals from children started in the body, such as a compiler that Ctrl-C would kill.

    A blocked signal is inherited as blocked. Ours stays pending, or reaches another thread, until then.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def limit_wait(is_stopping: Callable[[], bool]) -> Iterator[None]:
    """End the process if the body still runs some seconds after SIGTERM, or after `is_stopping` was true.

    torchrun sends SIGTERM to all processes when one fails. A process that waits for the failed one in native
    code would run no Python signal handler, and would be killed after half a minute. This process prints
    nothing, because the failed process has printed its message.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    done = threading.Event()

    def watch() -> None:
        os.read(reader, 1)
        if not done.wait(_JOIN_SECONDS):
            os._exit(ExitCode.NO)

    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    if is_stopping():
        os.write(writer, b"\0")
    watcher = threading.Thread(target=watch, name="join limit", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        signal.set_wakeup_fd(before)
        os.write(writer, b"\0")
        watcher.join()
        os.close(reader)
        os.close(writer)
