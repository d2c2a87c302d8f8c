"""Trace chosen steps of each process with torch's profiler, as a Chrome trace for ui.perfetto.dev.

Recorded steps take longer but compute the same numbers.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from trainyard.errors import ConfigError

_logger = logging.getLogger(__name__)


class StepProfile:
    """Records the `steps` (counted from 1), then writes the trace."""

    def __init__(self, steps: range, folder: Path, rank: int) -> None:
        self._steps = steps
        self._folder, self._rank = folder, rank
        self._profiler: profile | None = None
        self._done = 0

    @contextmanager
    def record_step(self, step: int) -> Iterator[None]:
        """Record the body, which is one step, if the step was chosen."""
        if step not in self._steps:
            yield
            return
        if self._profiler is None:
            gpu = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
            self._profiler = profile(activities=[ProfilerActivity.CPU, *gpu])
            self._profiler.start()
        with record_function(f"step {step}"):
            yield
        self._done = step

    def has_trace_to_write(self) -> bool:
        """Return whether the last chosen step was recorded and the trace is not written yet."""
        return self._profiler is not None and self._done == self._steps[-1]

    def write(self) -> range | None:
        """Write the trace and return its steps; None when no step was recorded or writing failed."""
        if self._profiler is None:
            return None
        self._profiler.stop()
        taken, profiler = range(self._steps[0], self._done + 1), self._profiler
        self._profiler, self._steps = None, range(0)
        if not taken:
            return None
        file = self._folder / trace_name(taken, self._rank)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            profiler.export_chrome_trace(str(file))
        except (OSError, RuntimeError) as error:  # a failed trace must not end the run
            _logger.warning("%s could not be written (%s); training continues", file, error)
            return None
        return taken


def trace_name(steps: range, rank: int) -> str:
    """The file name of a trace, such as `profile-steps-10-12-rank-0.json.gz`."""
    return f"profile-steps-{steps[0]}-{steps[-1]}-rank-{rank}.json.gz"


def steps_ahead(steps: range, *, done: int, last: int) -> range:
    """Those of `steps` that a segment starting at step `done` + 1 still has to trace.

    Raises ConfigError when the run ends before the last of `steps`; `last` is the last step of the run.
    """
    if steps and steps[-1] > last:
        raise ConfigError(
            f"--profile {steps[0]}-{steps[-1]}: this run trains the steps 1 to {last}. "
            "Choose some of these; the first ones are slow and not typical. Nothing was started."
        )
    ahead = range(max(steps.start, done + 1), steps.stop)
    if steps and not ahead:
        _logger.warning("--profile %d-%d: these steps were trained before", steps[0], steps[-1])
    return ahead
