"""A fixed number of threads process lists in order, and none of them is at work afterwards."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, wait
from contextlib import closing
from typing import Any

import pytest

from trainyard.artifacts.store.worker_threads import Workers


@pytest.fixture
def workers() -> Iterator[Workers]:
    with closing(Workers(2)) as found:
        yield found


@pytest.mark.parametrize("items", [0, 1, 100])
def test_every_item_is_done_once_and_the_results_are_in_order(workers: Workers, items: int) -> None:
    seen = list[int]()

    def item(number: int) -> int:
        seen.append(number)
        return number * 2

    assert workers.each(item, range(items)) == [number * 2 for number in range(items)]
    assert sorted(seen) == list(range(items))


@pytest.mark.parametrize("count", [1, 2, 8])
def test_so_many_items_are_at_work_at_once_and_no_more(count: int) -> None:
    begun, free, at_work = threading.Semaphore(0), threading.Event(), list[int]()

    def item(number: int) -> None:
        at_work.append(number)
        begun.release()
        assert free.wait(30)

    with closing(Workers(count)) as workers:
        asking = threading.Thread(target=lambda: workers.each(item, range(20)))
        asking.start()
        for _ in range(count):
            assert begun.acquire(timeout=30)
        assert not begun.acquire(timeout=0.1)
        free.set()
        asking.join(30)
    assert sorted(at_work) == list(range(20))


def test_after_a_failure_nothing_begins_and_nothing_is_at_work(workers: Workers) -> None:
    begun, ended, at_work = list[int](), list[int](), threading.Barrier(2)

    def item(number: int) -> None:
        begun.append(number)
        at_work.wait(30)
        if number == 0:
            raise OSError("the disk is full")
        threading.Event().wait(0.3)
        ended.append(number)

    with pytest.raises(OSError, match="the disk is full"):
        workers.each(item, range(9))
    assert sorted(begun) == [0, 1]
    assert ended == [1]


@pytest.mark.parametrize("files", [[0, 1], [1, 0]])
def test_a_failure_ends_the_lists_within_other_items_too(files: list[int]) -> None:
    """The failure itself is raised, not the end of the other items."""
    begun, at_work, ending = list[int](), threading.Barrier(2), threading.Event()

    def part(number: int) -> None:
        begun.append(number)
        if number == 0:
            at_work.wait(30)
        threading.Event().wait(0.1)

    def file(number: int) -> None:
        if number == 1:
            at_work.wait(30)
            raise OSError("the disk is full")
        parts.each(part, range(100))

    with (
        closing(Workers(2, ending)) as workers,
        closing(Workers(2, ending)) as parts,
        pytest.raises(OSError, match="the disk is full"),
    ):
        workers.each(file, files)
    assert len(begun) < 50


def test_whoever_is_interrupted_while_it_waits_ends_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended, ending, calls = list[int](), list[int](), threading.Event(), list[int]()

    def interrupted(futures: list[Any]) -> Any:
        if threading.current_thread() is threading.main_thread() and not calls:
            calls.append(1)
            raise KeyboardInterrupt
        return wait(futures)

    def part(number: int) -> None:
        begun.append(number)
        threading.Event().wait(0.02)
        ended.append(number)

    monkeypatch.setattr("trainyard.artifacts.store.worker_threads.wait", interrupted)
    with closing(Workers(4, ending)) as workers, closing(Workers(4, ending)) as parts:
        with pytest.raises(KeyboardInterrupt):
            workers.each(lambda _: parts.each(part, range(300)), range(24))
        assert (len(begun), begun) == (len(ended), begun)
    assert len(begun) < 100


def test_a_list_that_another_one_ended_says_so() -> None:
    ending = threading.Event()
    with closing(Workers(1, ending)) as workers:
        ending.set()
        with pytest.raises(CancelledError):
            workers.each(str, range(3))
        ending.clear()
        assert workers.each(str, range(3)) == ["0", "1", "2"]


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), KeyboardInterrupt()])
def test_an_error_while_the_threads_are_started_ends_those_that_run(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, started, done = threading.Thread.start, list[threading.Thread](), list[int]()

    def third_fails(thread: threading.Thread) -> None:
        started.append(thread)
        if len(started) == 3:
            raise error
        start(thread)

    def item(number: int) -> None:
        done.append(number)
        time.sleep(0.01)

    with closing(Workers(8)) as workers:
        monkeypatch.setattr(threading.Thread, "start", third_fails)
        with pytest.raises(type(error)):
            workers.each(item, range(200))
        count = len(done)
    assert len(done) == count < 20
