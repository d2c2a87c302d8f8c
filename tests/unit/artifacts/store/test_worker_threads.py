"""A fixed number of threads process lists in order, and none of them is at work afterwards."""

import threading
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import closing
from typing import Any

import pytest

from trainyard.artifacts.store.worker_threads import Workers


@pytest.fixture
def workers() -> Iterator[Workers]:
    with closing(Workers(2)) as found:
        yield found


def test_every_item_is_done_once_and_the_results_are_in_order(workers: Workers) -> None:
    seen = list[int]()

    def item(number: int) -> int:
        seen.append(number)
        return number * 2

    assert workers.each(item, []) == []
    assert workers.each(item, range(100)) == [number * 2 for number in range(100)]
    assert sorted(seen) == list(range(100))


def test_after_a_failure_nothing_begins_and_nothing_is_at_work(workers: Workers) -> None:
    begun, ended, at_work = list[int](), list[int](), threading.Barrier(2)

    def item(number: int) -> None:
        begun.append(number)
        if number < 2:
            at_work.wait(30)
        if number == 1:
            raise OSError("the disk is full")
        threading.Event().wait(0.3)
        ended.append(number)

    with pytest.raises(OSError, match="the disk is full"):
        workers.each(item, range(9))
    assert len(begun) <= 3  # the thread that failed may take one more
    assert sorted([*ended, 1]) == sorted(begun)


def test_an_interrupted_wait_ends_everything(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended, calls = list[int](), list[int](), list[int]()

    def interrupted(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return wait(*arguments, **options)

    def item(number: int) -> None:
        begun.append(number)
        threading.Event().wait(0.02)
        ended.append(number)

    monkeypatch.setattr("trainyard.artifacts.store.worker_threads.wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        workers.each(item, range(300))
    assert sorted(begun) == sorted(ended)
    assert len(begun) < 100
