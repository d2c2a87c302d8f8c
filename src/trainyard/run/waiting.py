"""Log every 30 s what a process waits for, for how long already, and until when."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

EVERY_SECONDS = 30.0
_logger = logging.getLogger(__name__)


@contextmanager
def describe_wait(
    what: str,
    seconds: float | None = None,
    *,
    log: Callable[[str], None] = _logger.info,
    every: float = EVERY_SECONDS,
) -> Iterator[None]:
    """Print a line every `every` seconds while the body waits for `what`, for at most `seconds` if known."""
    started, clock = time.monotonic(), time.time()
    over = threading.Event()

    def log_line() -> None:
        while not over.wait(every):
            log(wait_line(what, time.monotonic() - started, seconds, started=clock))

    logging_thread = threading.Thread(target=log_line, name="waiting", daemon=True)
    logging_thread.start()
    try:
        yield
    finally:
        over.set()
        logging_thread.join()


def wait_line(what: str, passed: float, seconds: float | None, *, started: float) -> str:
    """Return the line: what is waited for since the Unix time `started`, for how long, and until when."""
    line = f"waiting for {what}, for {_minutes(passed)} so far"
    if seconds is None:
        return line
    end = time.strftime("%H:%M:%S", time.localtime(started + seconds))
    return f"{line}, until {end} at most ({_minutes(seconds)} in all)"


def _minutes(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
