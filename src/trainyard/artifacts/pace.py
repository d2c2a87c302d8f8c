"""How fast bytes may be read: one rate for all threads, so that a sync leaves the trainer beside it alone.

It knows neither files nor stores; whoever reads asks before each block.
"""

import threading
import time
from collections.abc import Callable


class Pace:
    """At most `bytes_per_second` over any longer time; at most a tenth of a second is made up for."""

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
        """Wait until `count` more bytes are due."""
        with self._lock:
            now = self._clock()
            start = max(self._free_at, now - 0.1)
            self._free_at = start + count / self._rate
            wait = start - now
        if wait > 0:
            self._sleep(wait)
