"""Run a function over a list of items on the threads of a pool."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from typing import TypeVar

_Item = TypeVar("_Item")
_Out = TypeVar("_Out")


def map_items(
    pool: ThreadPoolExecutor, function: Callable[[_Item], _Out], items: Sequence[_Item]
) -> list[_Out]:
    """Return the result of `function` for each item, in order.

    When a call raises, or the waiting thread is interrupted, no further item starts, and all running calls
    have ended when the exception is raised here: the caller may then undo what they did.
    """
    futures = list[Future[_Out]]()
    try:
        for item in items:
            futures.append(pool.submit(function, item))
        for future in as_completed(futures):
            future.result()
    finally:
        for future in futures:
            future.cancel()
        wait(futures)
    return [future.result() for future in futures]
