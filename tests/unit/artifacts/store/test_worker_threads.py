"""A pool processes lists in order, and none of its threads is at work after a failure."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from trainyard.artifacts.store.worker_threads import map_items


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as found:
        yield found


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_after_a_failure_nothing_begins_and_nothing_is_at_work(
    pool: ThreadPoolExecutor, error: type[BaseException]
) -> None:
    begun, ended, at_work = list[int](), list[int](), threading.Barrier(2)

    def item(number: int) -> None:
        begun.append(number)
        if number < 2:
            at_work.wait(30)
        if number == 0:
            raise error
        threading.Event().wait(0.3)
        ended.append(number)

    with pytest.raises(error):
        map_items(pool, item, range(9))
    assert len(begun) <= 3  # the thread that failed may take one more
    assert sorted([*ended, 0]) == sorted(begun)
