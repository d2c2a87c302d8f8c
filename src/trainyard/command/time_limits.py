"""Limits on time: how long the CI job has run, and an answer that must come within some seconds.

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
    """How long the job of CI that this process belongs to has been going; 0 outside one.

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
    """What `work` gives or raises. Raises WaitTimeoutError when it takes longer; it is then left behind.

    For a question whose answer may never come: a thread asks it, which does not keep the process from ending.
    """
    answer: Future[Answer] = Future()

    def ask() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            answer.set_exception(error)

    threading.Thread(target=ask, name="within", daemon=True).start()
    try:
        return answer.result(seconds)
    except FutureTimeoutError as error:
        if answer.done():  # the work itself ran out of time
            raise
        raise WaitTimeoutError(f"no answer within {seconds:g} seconds") from error
