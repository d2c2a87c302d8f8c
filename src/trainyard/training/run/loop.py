"""The training loop: step, validate, record, save, stop. It is handed its parts and owns only their order.

    step -> row -> validation -> checkpoint -> stop?

A row is written before the checkpoint of its step: resuming from a checkpoint finds all rows up to it.
"""

import math
import time

from trainyard.run.records import RecordWriter, Row
from trainyard.training.checkpoint.remedies import failed, not_finite
from trainyard.training.run.checkpoint_scheduler import Saver
from trainyard.training.run.network_fallback import record_fallback
from trainyard.training.run.profiling import trace_name
from trainyard.training.run.run_context import PretrainingContext
from trainyard.training.run.step import TrainStep
from trainyard.training.runtime.hardware import memory_facts


class Loop:
    """One segment of a run, from `state.step` to the end or to a stop."""

    def __init__(self, parts: PretrainingContext) -> None:
        self._parts = parts
        self._state = parts.state
        self._saver = Saver(parts)
        self._step = TrainStep(parts, self._saver)
        self._metrics = RecordWriter(parts.directory.metrics_file) if parts.world.is_main else None
        self._slowest_step = 0.0
        self._slowest_usual = 0.0
        """Without the first step, which compiles and opens channels."""

    def run(self) -> None:
        """Train to the end. Raises StoppedError after an early stop with a good checkpoint."""
        try:
            with self._saver:
                self._parts.state.model.train()
                self._step.warm_up_reducer()
                self._saver.remove_old()
                if self._state.pending_row is not None:
                    self._finish_row(self._state.pending_row)
                while self._state.step < self._parts.length.steps:
                    self._stop_if_asked()
                    self._advance()
                self._saver.save(wait=True)
        finally:
            self._write_profile()
            if self._metrics is not None:
                self._metrics.close()

    def _advance(self) -> None:
        start = time.perf_counter()
        with self._parts.profile.around(self._state.step + 1):
            row = self._step.run()
        seconds = time.perf_counter() - start
        self._parts.watchdog.step_done(seconds)
        if not self._slowest_step:  # the first one opened the channels
            record_fallback(self._parts)
        else:
            self._slowest_usual = max(self._slowest_usual, seconds)
        self._slowest_step = max(self._slowest_step, seconds)
        self._state.seconds += seconds
        self._finish_row(row | self._speed(seconds))
        self._saver.poll()
        if self._parts.profile.finished():
            self._write_profile()
        if self._state.step % self._parts.config.checkpointing.save_steps == 0:
            self._saver.save()
        self._saver.tell_grace(self._slowest_usual)

    def _write_profile(self) -> None:
        if self._parts.stop.since_signal() is not None:  # the grace period is for the checkpoint
            return
        with self._parts.watchdog.slow_work():
            steps = self._parts.profile.write()
        if steps is not None:
            files = [trace_name(steps, rank) for rank in range(self._parts.world.size)]
            self._parts.event("profiled", step=steps[-1], files=files)

    def _speed(self, seconds: float) -> Row:
        length = self._parts.length
        speed = length.tokens_per_step / seconds
        row: Row = {
            "tokens": self._state.step * length.tokens_per_step,
            "samples": self._state.step * length.samples_per_step,
            "tokens_per_second": speed,
            "samples_per_second": length.samples_per_step / seconds,
            "mfu": self._parts.mfu(speed),
            "step_seconds": seconds,
        }
        return row

    def _finish_row(self, row: Row) -> None:
        """Validate if it is time, then write the row; a stop during validation saves first and is raised."""
        if self._is_due(self._parts.config.training.validation_steps) and self._parts.validation:
            with self._parts.working(f"validating step {self._state.step}"):
                result = self._parts.validation.run(
                    self._step.forward, self._stop_reason, self._parts.parallel.share
                )
            if result is None:
                self._state.pending_row = row
                self._stop_if_asked()
            elif not math.isfinite(result.loss):
                self._saver.warm_up_reducer()
                directory, step = self._parts.directory, self._state.step
                raise failed(
                    f"Step {step}: the validation loss, {result.loss}, is not finite.",
                    not_finite(step, self._parts.config, directory),
                    directory,
                )
            else:
                row |= {"val_loss": result.loss, "val_bits_per_byte": result.bits_per_byte}
        self._state.pending_row = None
        if "val_loss" in row or self._is_due(self._parts.config.monitoring.log_steps):
            self._write(row)

    def _is_due(self, every: int | None) -> bool:
        """Whether this step is one of each `every`; the last one always is."""
        step = self._state.step
        return step >= self._parts.length.steps or (every is not None and step % every == 0)

    def _write(self, row: Row) -> None:
        row |= {"checkpoint_seconds": self._saver.held_up()} | memory_facts(self._parts.device)
        row |= self._parts.gpu_facts()
        row = {key: value for key, value in row.items() if value is not None} | {"time": time.time()}
        if self._metrics is None:
            return
        self._metrics.write(row)
        for tracker in self._parts.trackers:
            tracker.write(row)
        self._parts.listener.on_row(row)

    def _stop_reason(self) -> str | None:
        """Why to stop, as all processes agree on it: a signal to one of them is enough.

        The deadline counts from the first step on, so that every segment moves on.
        """
        if self._slowest_step:
            self._parts.stop.before_deadline(1.5 * (self._slowest_step + self._saver.seconds))
        agreed = self._parts.world.first_reason(self._parts.stop.reason)
        if agreed is not None:  # a signal that came while they agreed is for the next edge
            self._parts.stop.reason = agreed
        return agreed

    def _stop_if_asked(self) -> None:
        if not self._stop_reason():
            return
        raise self._saver.stop()
