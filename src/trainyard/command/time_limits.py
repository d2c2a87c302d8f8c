"""Time limits: how long the CI job has run, and calls that must return within some seconds.

A job's start is read from the environment variable TRAINYARD_JOB_STARTED.
"""

import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TypeVar

from trainyard.errors import ConfigError, WaitTimeoutError

Answer = TypeVar("Answer")


def job_seconds(environment: Mapping[str, str] = os.environ) -> float:
    """The seconds since the start of this process's CI job; 0 outside one.

    `TRAINYARD_JOB_STARTED` holds its start in Unix seconds; a start in the future counts as now.
    """
    started = environment.get("TRAINYARD_JOB_STARTED")
    if not started:
        return 0.0
    if not re.fullmatch(r"\d+(\.\d+)?", started, re.ASCII):
        raise ConfigError(
            f"TRAINYARD_JOB_STARTED: {started!r} is not a time in Unix seconds, as date +%s prints"
        )
    return max(0.0, time.time() - float(started))


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
