"""Calls that must return within some seconds, whatever their library or the network does."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TypeVar

from trainyard.errors import WaitTimeoutError

Answer = TypeVar("Answer")


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
