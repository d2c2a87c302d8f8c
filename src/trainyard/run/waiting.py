"""Say every 30 s what a process waits for, for how long already, and until when."""

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
    tell: Callable[[str], None] = _logger.info,
    every: float = EVERY_SECONDS,
) -> Iterator[None]:
    """Print a line every `every` seconds while the body waits for `what`, for at most `seconds` if known."""
    began, clock = time.monotonic(), time.time()
    over = threading.Event()

    def say() -> None:
        while not over.wait(every):
            tell(wait_line(what, time.monotonic() - began, seconds, began=clock))

    talking = threading.Thread(target=say, name="waiting", daemon=True)
    talking.start()
    try:
        yield
    finally:
        over.set()
        talking.join()


def wait_line(what: str, passed: float, seconds: float | None, *, began: float) -> str:
    """Return the line: what is waited for since the Unix time `began`, for how long, and until when."""
    line = f"waiting for {what}, for {_minutes(passed)} so far"
    if seconds is None:
        return line
    end = time.strftime("%H:%M:%S", time.localtime(began + seconds))
    return f"{line}, until {end} at most ({_minutes(seconds)} in all)"


def _minutes(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
