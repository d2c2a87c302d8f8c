"""Run a function over a list of items on a fixed number of threads, until one of them fails."""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import TypeVar

_Item = TypeVar("_Item")
_Out = TypeVar("_Out")


class Workers:
    """A pool of at most `count` threads, started when needed."""

    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def each(self, function: Callable[[_Item], _Out], items: Sequence[_Item]) -> list[_Out]:
        """Return the result of `function` for each item, in order.

        When one call raises, or the waiting thread is interrupted, no further item starts, and all running
        ones have ended when the exception is raised here.
        """
        futures = list[Future[_Out]]()
        try:
            for item in items:
                futures.append(self._pool.submit(function, item))
            # A signal that arrives just before a wait begins is seen only when that wait ends.
            while (state := wait(futures, 0.5, FIRST_EXCEPTION)).not_done:
                if any(future.exception() for future in state.done):
                    break
        finally:
            for future in futures:
                future.cancel()
            wait(futures)
        # Items start in order, so a call that failed comes before all that were cancelled because of it.
        return [future.result() for future in futures]
