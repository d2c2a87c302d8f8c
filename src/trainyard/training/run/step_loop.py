"""Record, validate, save and stop around each step of a segment; every recipe trains by the same rules.

    step -> row -> validation -> checkpoint -> stop?

A row is written before the checkpoint of its step: resuming from a checkpoint finds all rows up to it.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainyard.run.rank_times import write_rank_time
from trainyard.run.records import RecordWriter, Row
from trainyard.training.run.checkpoint_scheduler import Saver
from trainyard.training.run.network_fallback import record_network
from trainyard.training.run.run_context import RunContext
from trainyard.training.runtime.hardware import memory_facts


@dataclass(frozen=True)
class ValidationResult:
    """The result of one validation."""

    loss: float
    """The mean cross-entropy in nats per token."""
    bits_per_byte: float | None
    """None when the bytes of the tokens are not known."""


Validate = Callable[[Callable[[], str | None]], ValidationResult | None]
"""Validates once; calls its argument for a reason to stop, and returns None when there is one."""


class StepLoop:
    """The steps of one segment, from `state.step` to the end or to a stop."""

    def __init__(self, context: RunContext, saver: Saver) -> None:
        self.saver = saver
        self._context, self._state = context, context.state
        self._metrics = RecordWriter(context.directory.metrics_file) if context.world.is_main else None
        self._tokens = self._tokens_seen()
        self._slowest_step = 0.0
        self._slowest_usual = 0.0
        """Without the first step, which compiles and opens channels."""
        self._validate: Validate | None = None
        self._network: dict[str, Any] | None = None
        """The event that says which network joined the machines."""

    def run(self, step: Callable[[], Row], *, validate: Validate | None = None) -> None:
        """Train to the end. `step` trains one step and returns its row.

        Raises StoppedError after an early stop with a good checkpoint.
        """
        self._validate = validate
        if validate and self._state.step == 0 and self._context.config.model.path:
            self._validate_weights(validate)
        if self._state.pending_row is not None:
            self._finish_row(self._state.pending_row)
        while self._state.step < self._context.length.steps:
            self._stop_if_requested()
            start = time.perf_counter()
            row = step()
            self._finish(row, time.perf_counter() - start)
        if self._slowest_step:  # some processes open further channels later, as for a validation
            record_network(self._context, self._network)

    def _validate_weights(self, validate: Validate) -> None:
        """Record the validation loss of the given weights; the run must not end above it."""
        with (
            self._context.show_current_work("validating the given weights"),
            self._context.watchdog.slow_work(),
        ):
            result = validate(self._stop_reason)
        if result is not None and math.isfinite(result.loss):
            figures = {"val_loss": result.loss, "val_bits_per_byte": result.bits_per_byte}
            self._context.record_event("validated", step=0, **figures)

    def _finish(self, row: Row, seconds: float) -> None:
        """Record the step that has just ended, `state.step`, and save if it is due.

        `row` is completed by speed, memory and validation.
        """
        self._context.watchdog.record_step(seconds)
        if not self._slowest_step:  # the first one opened the channels
            self._network = record_network(self._context)
        else:
            self._slowest_usual = max(self._slowest_usual, seconds)
        self._slowest_step = max(self._slowest_step, seconds)
        self._state.seconds += seconds
        self._finish_row(row | self._speed(seconds))
        self.saver.poll()
        if self._state.step % self._context.config.checkpointing.save_steps == 0:
            self.saver.save()
        if self._slowest_usual:
            self.saver.report_grace(self._slowest_usual)

    def _stop_if_requested(self) -> None:
        """Raise StoppedError, after a save, if a stop of a process was requested."""
        if self._stop_reason():
            raise self.saver.stop()

    def close(self) -> None:
        if self._metrics is not None:
            self._metrics.close()

    def _tokens_seen(self) -> int:
        return self._state.tokens_seen(self._context.length.tokens_per_step)

    def _speed(self, seconds: float) -> Row:
        samples, before = self._context.length.samples_per_step, self._tokens
        self._tokens = self._tokens_seen()
        speed = (self._tokens - before) / seconds
        return {
            "tokens": self._tokens,
            "samples": self._state.step * samples,
            "tokens_per_second": speed,
            "samples_per_second": samples / seconds,
            "mfu": self._context.mfu(speed),
            "step_seconds": seconds,
        }

    def _finish_row(self, row: Row) -> None:
        """Validate if it is time, then write the row; a stop during validation saves first and is raised."""
        if self._validate and self._is_due(self._context.config.training.validation_steps):
            with self._context.show_current_work(f"validating step {self._state.step}"):
                result = self._validate(self._stop_reason)
            if result is None:
                self._state.pending_row = row
                self._stop_if_requested()
            else:
                self._require_finite(result.loss)
                row |= {"val_loss": result.loss, "val_bits_per_byte": result.bits_per_byte}
        self._state.pending_row = None
        if "val_loss" in row or self._is_due(self._context.config.monitoring.log_steps):
            self._write(row)

    def _require_finite(self, loss: float) -> None:
        if math.isfinite(loss):
            return
        self.saver.finish_before_failure()
        step = self._state.step
        raise self._context.not_finite_error(
            step, f"Step {step}: the validation loss, {loss}, is not finite."
        )

    def _is_due(self, every: int | None) -> bool:
        """Return whether this step is a multiple of `every`, or the last one."""
        step = self._state.step
        return step >= self._context.length.steps or (every is not None and step % every == 0)

    def _write(self, row: Row) -> None:
        row |= {"checkpoint_seconds": self.saver.take_held_up_seconds()} | memory_facts(self._context.device)
        row |= self._context.gpu_facts()
        row = {key: value for key, value in row.items() if value is not None} | {"time": time.time()}
        if self._context.world.size > 1:
            write_rank_time(self._context.directory.logs, self._context.world.rank, row)
        if self._metrics is None:
            return
        self._metrics.write(row)
        for tracker in self._context.trackers:
            tracker.write(row)
        self._context.listener.on_row(row)

    def _stop_reason(self) -> str | None:
        """Return the reason to stop, on which all processes agree: a signal to one of them is enough.

        The deadline is not checked before the first step, so that every segment trains at least one step.
        """
        stop = self._context.stop
        if self._slowest_step:
            stop.stop_before_deadline(1.5 * (self._slowest_step + self.saver.seconds))
        agreed = self._context.world.first_reason(stop.reason)
        if agreed is not None:  # a signal that arrives during the vote is handled at the next step
            stop.reason = agreed
        return agreed
