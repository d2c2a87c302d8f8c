"""Run functions over lists of items on a fixed number of threads.

    files.each(download, files) → parts.each(fetch, parts of a large file) → the results, in order

A list inside an item of another list needs its own threads. After one item fails, or the waiting thread is
interrupted, no further item starts in that list or in any other list that shares its `ending`.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

_Item = TypeVar("_Item")
_Out = TypeVar("_Out")


class Workers:
    """A pool of at most `count` threads for all lists together, started when needed.

    Callers that share an `ending` clear it before the next list.
    """

    def __init__(self, count: int, ending: threading.Event | None = None) -> None:
        self.here = threading.local()
        """Thread-local data."""
        self._pool, self._count, self._ending = ThreadPoolExecutor(count), count, ending

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def each(self, function: Callable[[_Item], _Out], items: Sequence[_Item]) -> list[_Out]:
        """Return the result of `function` for each item, in order.

        When one call raises, no further item starts, and all running ones have ended when the exception is
        raised here. Raises CancelledError when another list failed.
        """
        ending, results = self._ending or threading.Event(), dict[int, _Out]()
        left, futures = enumerate(items), list[Future[None]]()  # each thread takes the next item

        def work() -> None:
            with _ends(ending):
                for index, item in left:
                    if ending.is_set():
                        raise CancelledError
                    results[index] = function(item)

        try:
            with _ends(ending):
                for _ in range(min(self._count, len(items))):
                    futures.append(self._pool.submit(work))
                wait(futures)
        finally:
            wait(futures)
        failures = [failure for future in futures if (failure := future.exception()) is not None]
        for failure in sorted(failures, key=lambda each: isinstance(each, CancelledError)):
            raise failure
        return [results[index] for index in range(len(items))]


@contextmanager
def _ends(ending: threading.Event) -> Iterator[None]:
    """Set `ending` if the body raises."""
    is_well = False
    try:
        yield
        is_well = True
    finally:
        if not is_well:
            ending.set()
