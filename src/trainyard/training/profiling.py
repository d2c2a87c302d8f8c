"""A trace of chosen steps by torch's profiler, of each process, as a Chrome trace for ui.perfetto.dev.

The steps that are recorded take longer and compute the same numbers.
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
    """Records from the first of `steps` (counted from 1) to the last, then writes the trace."""

    def __init__(self, steps: range, folder: Path, rank: int) -> None:
        self._steps = steps
        self._folder, self._rank = folder, rank
        self._profiler: profile | None = None
        self._done = 0

    @contextmanager
    def around(self, step: int) -> Iterator[None]:
        """The work of one step, recorded if it was chosen."""
        if step not in self._steps:
            yield
            return
        if self._profiler is None:
            self._profiler = profile(activities=_activities())
            self._profiler.start()
        with record_function(f"step {step}"):
            yield
        self._done = step

    def finished(self) -> bool:
        """Whether the last chosen step was recorded and its trace waits to be written."""
        return self._profiler is not None and self._done == self._steps[-1]

    def write(self) -> range | None:
        """Write the trace of what was recorded; returns its steps, None when no step was or none could be."""
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
        except (OSError, RuntimeError) as error:  # a trace is not worth a run
            _logger.warning("%s could not be written (%s); training goes on", file, error)
            return None
        return taken


def trace_name(steps: range, rank: int) -> str:
    """`profile-steps-10-12-rank-0.json.gz`."""
    return f"profile-steps-{steps[0]}-{steps[-1]}-rank-{rank}.json.gz"


def steps_ahead(steps: range, *, done: int, last: int) -> range:
    """Those of `steps` that are left for a segment from step `done` + 1 on, which traces the rest.

    Raises ConfigError when the run, which ends with step `last`, has not all of them.
    """
    if steps and steps[-1] > last:
        raise ConfigError(
            f"--profile {steps[0]}-{steps[-1]}: this run trains the steps 1 to {last}. "
            "Choose some of these; the first ones are slow and tell little. Nothing was started."
        )
    ahead = range(max(steps.start, done + 1), steps.stop)
    if steps and not ahead:
        _logger.warning("--profile %d-%d: these steps were trained before", steps[0], steps[-1])
    return ahead


def _activities() -> list[ProfilerActivity]:
    gpu = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
    return [ProfilerActivity.CPU, *gpu]
