"""A fixed number of threads that work off lists of what is to be fetched.

    files.each(land, files) → parts.each(fetch, parts of a large one) → what each gave, in order

A list within an item of another list needs threads of its own. Once one item fails, or whoever waits is
interrupted, nothing begins any more in that list, nor in any other that shares its `ending`.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

_Item = TypeVar("_Item")
_Out = TypeVar("_Out")


class Workers:
    """At most `count` threads for all lists together, which start when they are needed.

    Who shares an `ending` clears it before the next list.
    """

    def __init__(self, count: int, ending: threading.Event | None = None) -> None:
        self.here = threading.local()
        """What each thread keeps for itself."""
        self._pool, self._ending = ThreadPoolExecutor(count), ending

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def each(self, function: Callable[[_Item], _Out], items: Sequence[_Item]) -> list[_Out]:
        """What `function` gives for each item, in their order.

        When one raises, no other begins, and none is at work any more when it is raised here. Raises
        CancelledError where it was another list that failed.
        """
        ending = self._ending or threading.Event()

        def work(item: _Item) -> _Out:
            if ending.is_set():
                raise CancelledError
            with _ends(ending):
                return function(item)

        futures = [self._pool.submit(work, item) for item in items]
        try:
            with _ends(ending):
                wait(futures)
        finally:
            wait(futures)
        failures = [failure for future in futures if (failure := future.exception()) is not None]
        for failure in sorted(failures, key=lambda each: isinstance(each, CancelledError)):
            raise failure
        return [future.result() for future in futures]


@contextmanager
def _ends(ending: threading.Event) -> Iterator[None]:
    """Set `ending` unless all goes well."""
    is_well = False
    try:
        yield
        is_well = True
    finally:
        if not is_well:
            ending.set()
