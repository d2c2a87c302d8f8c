"""Threads that work off lists: in order, as many as it takes, and none of them when it is over."""

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import closing
from typing import Any

import pytest

from trainyard.artifacts.workers import Workers

SLOW, FAST = 0.1, 0.0001
"""Seconds for nothing at all."""


@pytest.fixture
def workers() -> Iterator[Workers]:
    with closing(Workers(8, 2)) as found:
        yield found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How far the time goes on between two looks at it."""
    step, now = [FAST], itertools.count()
    monkeypatch.setattr("trainyard.artifacts.workers.time.monotonic", lambda: next(now) * step[0])
    return step


def measure(workers: Workers, times: int) -> None:
    for _ in range(times):
        with workers.timed(0):
            pass


def require_at_once(workers: Workers, items: int, expected: int) -> None:
    """So many items are begun before the first one ends, and no more."""
    begun, free, at_work = threading.Semaphore(0), threading.Event(), list[int]()

    def item(number: int) -> None:
        at_work.append(number)
        begun.release()
        assert free.wait(30)

    asking = threading.Thread(target=lambda: workers.each(item, range(items)))
    asking.start()
    for _ in range(expected):
        assert begun.acquire(timeout=30)
    assert not begun.acquire(timeout=0.2)
    free.set()
    asking.join(30)
    assert sorted(at_work) == list(range(items))


@pytest.mark.parametrize("items", [0, 1, 100])
def test_every_item_is_done_once_and_the_results_are_in_order(workers: Workers, items: int) -> None:
    seen = list[int]()

    def item(number: int) -> int:
        seen.append(number)
        return number * 2

    assert workers.each(item, range(items)) == [number * 2 for number in range(items)]
    assert sorted(seen) == list(range(items))


def test_there_are_as_many_as_processors_until_an_answer_is_waited_for(
    workers: Workers, clock: list[float]
) -> None:
    require_at_once(workers, 20, 2)
    clock[0] = SLOW
    measure(workers, 4)
    require_at_once(workers, 20, 8)
    require_at_once(workers, 3, 3)
    clock[0] = FAST
    measure(workers, 200)
    require_at_once(workers, 20, 2)


def test_one_slow_answer_among_many_does_not_change_their_number(
    workers: Workers, clock: list[float]
) -> None:
    measure(workers, 20)
    clock[0] = SLOW
    measure(workers, 1)
    require_at_once(workers, 20, 2)


def test_what_a_slow_answer_is_depends_on_its_size(workers: Workers, clock: list[float]) -> None:
    clock[0] = SLOW
    for _ in range(5):
        with workers.timed(100_000_000):
            pass
    require_at_once(workers, 20, 2)


def test_they_come_and_go_while_a_list_is_worked_off(workers: Workers, clock: list[float]) -> None:
    """Four at a time meet as long as it is slow, and no more than two once it is fast again."""
    meeting, at_work, most, lock = threading.Barrier(4), 0, 0, threading.Lock()

    def item(number: int) -> None:
        nonlocal at_work, most
        if number < 2:
            clock[0] = SLOW
            measure(workers, 4)
        elif number < 10:
            meeting.wait(30)
        elif number < 40:
            clock[0] = FAST
            measure(workers, 100)
        else:
            with lock:
                at_work += 1
                most = max(most, at_work)
            threading.Event().wait(0.002)
            with lock:
                at_work -= 1

    workers.each(item, range(100))
    assert most <= 2
    assert workers._at_work == 0


def test_a_list_within_a_list_gets_those_who_have_nothing_left_to_do(workers: Workers) -> None:
    """As long as both files are at work each has one; the first part that begins after it has two."""
    is_over, together, begun = threading.Event(), threading.Barrier(2), list[int]()

    def part(number: int) -> int:
        begun.append(number)
        if number == 0:
            assert is_over.wait(30)
            while workers._at_work > 1 and begun == [0]:
                threading.Event().wait(0.01)
        else:
            together.wait(30)
        return number

    def file(number: int) -> list[int]:
        if number == 0:
            is_over.set()
            return []
        return workers.each(part, range(5))

    assert workers.each(file, range(2)) == [[], [0, 1, 2, 3, 4]]
    assert workers._at_work == 0


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
    assert workers._at_work == 0
    assert workers.each(str, range(3)) == ["0", "1", "2"]


def test_an_interruption_is_raised_where_the_list_is_from(workers: Workers) -> None:
    def item(number: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        workers.each(item, range(3))
    assert workers._at_work == 0


def test_a_failure_ends_the_lists_within_other_items_too(workers: Workers) -> None:
    """And it is what is raised, not that others were ended by it."""
    begun, at_work = list[int](), threading.Barrier(2)

    def part(number: int) -> None:
        begun.append(number)
        if number == 0:
            at_work.wait(30)
        threading.Event().wait(0.1)

    def file(number: int) -> None:
        if number == 1:
            at_work.wait(30)
            raise OSError("the disk is full")
        workers.each(part, range(100))

    for files in ([0, 1], [1, 0]):
        begun.clear()
        with pytest.raises(OSError, match="the disk is full"):
            workers.each(file, files)
        assert len(begun) < 50
        assert workers._at_work == 0


def test_whoever_is_interrupted_while_it_waits_ends_everything(
    workers: Workers, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every thread at work on parts of large files, and helpers that have not begun."""
    clock[0], begun, calls = SLOW, list[int](), itertools.count()
    measure(workers, 20)

    def interrupted(futures: list[Any]) -> Any:
        if threading.current_thread() is threading.main_thread() and next(calls) == 0:
            raise KeyboardInterrupt
        return wait(futures)

    monkeypatch.setattr("trainyard.artifacts.workers.wait", interrupted)

    def part(number: int) -> None:
        begun.append(number)
        threading.Event().wait(0.02)

    def file(number: int) -> None:
        workers.each(part, range(3 if number < 20 else 300))

    with pytest.raises(KeyboardInterrupt):
        workers.each(file, range(24))
    assert len(begun) < 1000
    assert workers._at_work == 0
    workers.close()


def test_threads_that_wait_for_each_other_are_no_slow_store(workers: Workers, clock: list[float]) -> None:
    """Eight that share one interpreter take four times as long as two, and go back to two."""
    clock[0] = 0.006
    measure(workers, 100)
    assert workers.limit == 8
    workers._at_work = 8
    measure(workers, 100)
    assert workers.limit == 2
