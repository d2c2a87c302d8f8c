"""Where the time of a step goes: laps on the host's clock, or on the GPU's own.

A CPU has done what it was told when a call returns. A GPU is told ahead of time, so its laps are CUDA events,
which are read once they have passed and never waited for.
"""

import time
from collections import deque
from typing import Protocol

import torch

Seconds = dict[str, float]


class StepClock(Protocol):
    """Laps of a step, each ended by naming the part it was spent on; a part may have several."""

    def begin(self) -> None:
        """What was before belongs to no part."""

    def lap(self, part: str) -> None:
        """Since the last mark, `part` was at work."""

    def read(self) -> Seconds:
        """`<part>_seconds` of the laps since the last reading."""


class HostClock:
    """Laps as the host sees them."""

    def __init__(self) -> None:
        self._at = time.perf_counter()
        self._seconds: Seconds = {}

    def begin(self) -> None:
        self._at = time.perf_counter()

    def lap(self, part: str) -> None:
        now = time.perf_counter()
        name = f"{part}_seconds"
        self._seconds[name] = self._seconds.get(name, 0.0) + now - self._at
        self._at = now

    def read(self) -> Seconds:
        seconds, self._seconds = self._seconds, {}
        return seconds


class GpuClock:
    """Laps as the GPU sees them: `data` is what it waited for data, not what the host spent on it.

    The laps that the GPU has not come to when it is read, the update of the weights, are part of the next
    reading: it is the next step that waits for them.
    """

    def __init__(self) -> None:
        self._marks: deque[tuple[str | None, torch.cuda.Event]] = deque()

    def begin(self) -> None:
        self._mark(None)

    def lap(self, part: str) -> None:
        self._mark(part)

    def read(self) -> Seconds:
        seconds: Seconds = {}
        while len(self._marks) > 1 and self._marks[1][1].query():  # type: ignore[no-untyped-call]
            _, start = self._marks.popleft()
            part, end = self._marks[0]
            if part is not None:
                name = f"{part}_seconds"
                seconds[name] = seconds.get(name, 0.0) + start.elapsed_time(end) / 1e3
        return seconds

    def _mark(self, part: str | None) -> None:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self._marks.append((part, event))


def step_clock(device: torch.device) -> StepClock:
    """The clock of what computes there."""
    return GpuClock() if device.type == "cuda" else HostClock()
