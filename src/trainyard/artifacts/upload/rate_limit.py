"""Limit the read rate of all threads together, so that a sync does not slow the trainer beside it.

The module knows neither files nor stores; every reader calls the limiter before each block.
"""

import threading
import time
from collections.abc import Callable


class RateLimit:
    """Allows at most `bytes_per_second` on average; it catches up on at most a tenth of a second."""

    def __init__(
        self,
        bytes_per_second: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate, self._clock, self._sleep = bytes_per_second, clock, sleep
        self._lock = threading.Lock()
        self._free_at = clock()

    def __call__(self, count: int) -> None:
        """Wait until `count` more bytes may be read."""
        with self._lock:
            now = self._clock()
            start = max(self._free_at, now - 0.1)
            self._free_at = start + count / self._rate
            wait = start - now
        if wait > 0:
            self._sleep(wait)
