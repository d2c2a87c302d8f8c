"""Repeat calls a bounded number of times, after random pauses, so that clients do not retry in step."""

import math
import random
import time
from collections.abc import Callable
from typing import TypeVar

from trainyard.errors import ServiceTroubleError

FIRST_SECONDS = 1.0
_MOST_SECONDS, _MOST_REQUESTED_SECONDS = 10.0, 30.0
Answer = TypeVar("Answer")


def retry_pause(attempt: int, requested: float | None = None) -> float:
    """Return the seconds between attempt number `attempt` and the next one: up to 1, 2, 4 … 10.

    `requested` is the time that the service named, which is kept up to half a minute.
    """
    if requested is not None:
        return min(requested, _MOST_REQUESTED_SECONDS)
    return random.uniform(0.5, 1) * min(FIRST_SECONDS * 2.0 ** (attempt - 1), _MOST_SECONDS)  # noqa: S311


def wait_before_retry(attempt: int, requested: float | None = None) -> None:
    """Wait for `retry_pause`."""
    time.sleep(retry_pause(attempt, requested))


def call_again(work: Callable[[], Answer], *, attempts: int, seconds: float = math.inf) -> Answer:
    """Return the result of `work`, called up to `attempts` times while it raises ServiceTroubleError.

    No attempt starts later than `seconds` after the first one.
    """
    end = time.monotonic() + seconds
    for attempt in range(1, attempts):
        try:
            return work()
        except ServiceTroubleError:
            pause = retry_pause(attempt)
            if time.monotonic() + pause > end:
                raise
            time.sleep(pause)
    return work()
