"""Run functions over lists of items on a fixed number of threads.

    files.each(download, files) → parts.each(fetch, parts of a large file) → the results, in order

A list inside an item of another list needs its own threads. After one item fails, or the waiting thread is
interrupted, no further item starts in that list or in any other list that shares its `ending`.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
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
        self._pool, self._ending = ThreadPoolExecutor(count), ending

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def each(self, function: Callable[[_Item], _Out], items: Sequence[_Item]) -> list[_Out]:
        """Return the result of `function` for each item, in order.

        When one call raises, no further item starts, and all running ones have ended when the exception is
        raised here. Raises CancelledError when another list failed.
        """
        ending, futures = self._ending or threading.Event(), list[Future[_Out]]()

        def work(item: _Item) -> _Out:
            if ending.is_set():
                raise CancelledError
            try:
                return function(item)
            except BaseException:
                ending.set()
                raise

        try:
            for item in items:
                futures.append(self._pool.submit(work, item))
            wait(futures)
        except BaseException:
            ending.set()
            raise
        finally:
            wait(futures)
        failures = [failure for future in futures if (failure := future.exception()) is not None]
        for failure in sorted(failures, key=lambda each: isinstance(each, CancelledError)):
            raise failure
        return [future.result() for future in futures]
