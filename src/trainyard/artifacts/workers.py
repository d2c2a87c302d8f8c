"""Threads that work off lists of what is to be fetched: few where it comes at once, many where they wait.

    workers.each(land, files) → workers.each(fetch, parts of a large one) → what each gave, in order

Where a store answers at once, threads beyond the processors only stand in each other's way: Python runs one
at a time, and so do those who write into one file. Where it is far away, each waits most of its time.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from typing import Generic, TypeVar

_FAST_BYTES = 200e6
"""A second: one connection to S3 gives half of it, whatever the line."""
_FAST_SECONDS = 0.002
"""For an answer, and a disk to say that it has it: S3 takes ten times as long."""
_REMEMBERED = 0.9
"""Of what was measured before, each time."""
_SLOWEST = 3.0
"""Times as long as it may take, which is all that one measure counts: there are hiccups."""
_Item = TypeVar("_Item")
_Out = TypeVar("_Out")


class Workers:
    """At most `most` threads for all lists together; whoever has a list works along.

    Of a list within an item of another: whoever has nothing left to do there helps with the last ones here.
    Once one item raises, or whoever waits is interrupted, nothing begins any more in any list.
    """

    def __init__(self, most: int, processors: int) -> None:
        self.here = threading.local()
        """What each thread keeps for itself."""
        self._most, self._few = most, min(most, processors)
        self._at_work, self._slowness = 0, 0.0
        self._changing, self._ending = threading.Lock(), threading.Event()
        self._pool = ThreadPoolExecutor(most)

    def close(self) -> None:
        self._ending.set()
        self._pool.shutdown(cancel_futures=True)

    def each(self, function: Callable[[_Item], _Out], items: Sequence[_Item]) -> list[_Out]:
        """What `function` gives for each item, in their order.

        When one raises, no other begins, and none is at work any more when it is raised here.
        """
        works, is_over = getattr(self.here, "works", False), False
        if not works:
            self._ending.clear()
            self._count(1)
        work = _List(function, items, self._ending)
        self.here.works = True
        try:
            with suppress(CancelledError):  # somebody else's failure
                self._work(work)
            self._wait_for(work.helpers)
            is_over = True
        finally:
            if not is_over:
                self._ending.set()
                self._wait_for(work.helpers)
            self.here.works = works
            if not works:
                self._count(-1)
        return work.results()

    @contextmanager
    def timed(self, size: int) -> Iterator[None]:
        """While `size` bytes are fetched: how long it takes tells how many are to be at work."""
        started = time.monotonic()
        yield
        crowd = max(1.0, self._at_work / self._few)  # who wait for each other
        slowness = (time.monotonic() - started) / (_FAST_SECONDS * crowd + size / _FAST_BYTES)
        self._slowness = _REMEMBERED * self._slowness + (1 - _REMEMBERED) * min(slowness, _SLOWEST)

    @property
    def limit(self) -> int:
        """How many are at work at once, as it stands."""
        return self._few if self._slowness < 1 else self._most

    def _work(self, work: "_List[_Item, _Out]", *, helps: bool = False) -> None:
        while not (helps and self._at_work > self.limit):
            self._recruit(work)
            if not work.does_one():
                return

    def _recruit(self, work: "_List[_Item, _Out]") -> None:
        """As many as may be at work, and have something to do."""
        with self._changing:
            for _ in range(min(self.limit - self._at_work, work.left - 1)):
                work.helpers.append(self._pool.submit(self._help, work))
                self._at_work += 1

    def _help(self, work: "_List[_Item, _Out]") -> None:
        self.here.works = True
        try:
            self._work(work, helps=True)
        finally:
            self.here.works = False
            self._count(-1)

    def _wait_for(self, helpers: Sequence[Future[None]]) -> None:
        """Until none is at work; somebody else may be meanwhile, in place of the one that waits."""
        self._count(-1)
        try:
            for helper in helpers:
                if not helper.cancelled() and helper.cancel():  # it has not begun
                    self._count(-1)
            wait([helper for helper in helpers if not helper.cancelled()])
        finally:
            self._count(1)

    def _count(self, by: int) -> None:
        with self._changing:
            self._at_work += by


class _List(Generic[_Item, _Out]):
    """Of things to do, by any number of threads, until `ending`."""

    def __init__(
        self, function: Callable[[_Item], _Out], items: Sequence[_Item], ending: threading.Event
    ) -> None:
        self.helpers: list[Future[None]] = []
        self._function, self._items, self._ending = function, items, ending
        self._results: dict[int, _Out] = {}
        self._next, self._taking = 0, threading.Lock()

    @property
    def left(self) -> int:
        """Items that nobody has begun with."""
        return 0 if self._ending.is_set() else len(self._items) - self._next

    def does_one(self) -> bool:
        """Whether there was one left to do."""
        with self._taking:
            if not self.left:
                return False
            number, self._next = self._next, self._next + 1
        try:
            self._results[number] = self._function(self._items[number])
        finally:
            if number not in self._results:
                self._ending.set()
        return True

    def results(self) -> list[_Out]:
        """Raises what a helper raised; CancelledError where it was another list that came to an early end."""
        raised = [helper.exception() for helper in self.helpers if not helper.cancelled()]
        failures = [failure for failure in raised if failure is not None]
        for failure in sorted(failures, key=lambda each: isinstance(each, CancelledError)):
            raise failure
        if len(self._results) < len(self._items):
            raise CancelledError
        return [self._results[number] for number in range(len(self._items))]
