"""Log every 30 s what a process waits for, for how long already, and for how long at most."""

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
    seconds: float | None,
    *,
    log: Callable[[str], None] = _logger.info,
    every: float = EVERY_SECONDS,
) -> Iterator[None]:
    """Print a line every `every` seconds while the body waits for `what`, for at most `seconds` if known."""
    started, over = time.monotonic(), threading.Event()

    def log_lines() -> None:
        while not over.wait(every):
            most = "" if seconds is None else f" of at most {_minutes(seconds)}"
            log(f"waiting for {what}, for {_minutes(time.monotonic() - started)}{most}")

    thread = threading.Thread(target=log_lines, name="waiting", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _minutes(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
