"""Measure the time of the parts of a step, on the host's clock or on the GPU's own.

On a CPU, the work is done when a call returns. A GPU works asynchronously, so its laps are CUDA events, which
are read when they have completed and never waited for.
"""

import time
from collections import deque

import torch

Seconds = dict[str, float]


class HostClock:
    """Laps of a step on the host's clock. The end of each lap names its part; a part may have several."""

    def __init__(self) -> None:
        self._at = time.perf_counter()
        self._seconds: Seconds = {}

    def begin(self) -> None:
        """Start a new lap; the time before it belongs to no part."""
        self._at = time.perf_counter()

    def lap(self, part: str) -> None:
        """End the lap and assign its time to `part`."""
        now = time.perf_counter()
        name = f"{part}_seconds"
        self._seconds[name] = self._seconds.get(name, 0.0) + now - self._at
        self._at = now

    def read(self) -> Seconds:
        """Return `<part>_seconds` of the laps since the last reading."""
        seconds, self._seconds = self._seconds, {}
        return seconds


class GpuClock:
    """Laps on the GPU's clock: `data` is the time that the GPU waited for data, not the host's time for it.

    Laps that the GPU has not completed at a reading (the update of the weights) count in the next reading,
    because the next step waits for them.
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
