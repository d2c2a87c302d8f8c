"""Run several builds at a time: one thread per build, one live line for all, and one end for all.

`command.terminal` draws the live line and asks this module for its text.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Generic, TypeVar

from trainyard.image.building.build_progress import BuildProgress

Result = TypeVar("Result")
_WAIT_SECONDS = 0.5


class Fleet(Generic[Result]):
    """The builds of several images; the terminal calls `line` and `tell`."""

    def __init__(self, images: Sequence[str], clock: Callable[[], float]) -> None:
        self.progress = {image: BuildProgress(image, since=clock()) for image in images}
        self._clock = clock
        self._end = threading.Event()

    def pause(self, seconds: float) -> bool:
        """Wait; return True as soon as all builds must end."""
        return self._end.wait(seconds)

    def run(self, work: Callable[[str], Result]) -> dict[str, Result | BaseException]:
        """The results or errors of `work` for each image. An interrupt ends all builds and is raised."""
        with ThreadPoolExecutor(len(self.progress), thread_name_prefix="build") as pool:
            futures: dict[str, Future[Result]] = {name: pool.submit(work, name) for name in self.progress}
            try:
                while any(not future.done() for future in futures.values()):
                    wait(futures.values(), timeout=_WAIT_SECONDS, return_when=FIRST_EXCEPTION)
            finally:  # nothing to end where all are done
                self._end.set()
                wait(futures.values())
        return {name: future.exception() or future.result() for name, future in futures.items()}

    def line(self, width: int) -> str:
        """`fsdp BUILD 3:12 · verl QUEUED 0:40`, cut to the width."""
        now = self._clock()
        parts = [f"{one.image} {one.ended or _going(one, now)}" for one in self.progress.values()]
        text = "  " + " · ".join(parts)
        return text if len(text) <= width else text[: max(0, width - 1)] + "…"

    def tell(self) -> None:
        """In a log, each build writes its own lines."""


def _going(one: BuildProgress, now: float) -> str:
    seconds = max(0, int(now - one.since))
    again = f" (attempt {one.attempt})" if one.attempt > 1 else ""
    return f"{one.phase} {seconds // 60}:{seconds % 60:02d}{again}"
