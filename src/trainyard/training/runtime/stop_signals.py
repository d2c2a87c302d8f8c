"""Decide when to stop early: SIGTERM, SIGINT and the deadline are checked between steps.

A signal never interrupts a step or a save; it sets a flag. Only a second Ctrl-C ends the program at once.
"""

import logging
import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_logger = logging.getLogger(__name__)
COST_LIMIT = "limits.cost_usd is reached"
"""The reason of a stop after which the run is not continued automatically."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


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
        self._interrupts = 0
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

    def listen(self, earlier_signal: Callable[[], str | None] = lambda: None) -> None:
        """Handle SIGTERM and SIGINT from now on, and the earlier signal that `earlier_signal` returns."""
        for number in _SIGNALS:
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
        self._interrupts += number == signal.SIGINT
        if self._interrupts > 1:
            raise KeyboardInterrupt
        if self._signalled is None:
            self._signalled = time.monotonic()
        if self.reason is None:
            self.reason = f"{name} received"
            _logger.warning("%s: stopping with a checkpoint once this step is done", name)


@contextmanager
def shield_children() -> Iterator[None]:
    """Keep SIGTERM and SIGINT from children started in the body, such as a compiler that Ctrl-C would kill.

    A blocked signal is inherited as blocked. Ours stays pending, or reaches another thread, until then.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
