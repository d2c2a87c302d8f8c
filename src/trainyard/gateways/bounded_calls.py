"""Calls of outside services that are bounded: in time, whatever a library or the network does, and in tries.

Pauses between attempts are random, so that clients do not retry in step.
"""

import math
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TypeVar

from trainyard.errors import ServiceTroubleError, WaitTimeoutError

FIRST_SECONDS = 1.0
_MOST_SECONDS, _MOST_REQUESTED_SECONDS = 10.0, 30.0
Answer = TypeVar("Answer")


def retry_pause(attempt: int, requested: float | None = None) -> float:
    """Return the seconds between attempt number `attempt` and the next one: up to 1, 2, 4 … 10.

    `requested` is the time that the service named, which is kept up to half a minute.
    """
    if requested is not None:
        return min(requested, _MOST_REQUESTED_SECONDS)
    return random.uniform(0.5, 1) * min(FIRST_SECONDS * 2.0 ** min(attempt - 1, 9), _MOST_SECONDS)  # noqa: S311


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


def within(seconds: float, work: Callable[[], Answer]) -> Answer:
    """Return the result of `work` or raise its error; raise WaitTimeoutError when it takes longer.

    For a request that may never be answered. A thread makes it and is abandoned at the time limit; it does
    not keep the process from ending.
    """
    answer: Future[Answer] = Future()

    def run() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            answer.set_exception(error)

    threading.Thread(target=run, name="within", daemon=True).start()
    try:
        return answer.result(seconds)
    except FutureTimeoutError as error:
        if answer.done():  # the work itself ran out of time
            raise
        raise WaitTimeoutError(f"no answer within {seconds:g} seconds") from error
