"""What surrounds each step of GRPO: its learning rate, a look at its gradients, its row, save and stop.

    sample, reward, gradients (trainer) -> finite? -> learning rate -> weights -> row -> checkpoint -> stop?

It knows neither TRL nor transformers: `trainer` calls it and hands it what was logged.
"""

import math
import time
from collections.abc import Mapping
from typing import Any

import torch

from trainyard.run.records import RecordWriter, Row
from trainyard.training.checkpoint.remedies import failed, not_finite
from trainyard.training.grpo.policy_state import PolicyState
from trainyard.training.model.optimizer import learning_rate, set_learning_rate
from trainyard.training.run.checkpoint_scheduler import Saver
from trainyard.training.run.run_context import RunContext
from trainyard.training.runtime.hardware import memory_facts
from trainyard.training.runtime.timing import step_clock

_FIGURES = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "reward": "reward",
    "reward_std": "reward_std",
    "accuracy": "accuracy",
    "kl": "kl",
    "entropy": "entropy",
    "completion_length": "completions/mean_length",
}
"""Figures of a row by what TRL calls them."""


class Steps:
    """The steps of one segment, from `state.step` on."""

    def __init__(self, segment: RunContext, state: PolicyState, saver: Saver) -> None:
        self._segment, self._state, self._saver = segment, state, saver
        self._metrics = RecordWriter(segment.directory.metrics_file)
        self._clock = step_clock(segment.device)
        self._slowest_step = 0.0
        self._started = 0.0
        self._seen = 0

    def close(self) -> None:
        self._metrics.close()

    def begin(self) -> None:
        self._started = time.perf_counter()
        self._clock.begin()
        self._segment.watchdog.beat()

    def lap(self, part: str) -> None:
        """Since the last call, `part` of the step was at work; its `data` are the answers, sampled."""
        self._clock.lap(part)

    def before_update(self) -> None:
        """Set the learning rate, and wait until the weights may change.

        Raises TrainingFailedError, the weights unchanged, for bad gradients.
        """
        state, segment = self._state, self._segment
        named = state.model.named_parameters()
        bad = next((n for n, p in named if p.grad is not None and not torch.isfinite(p.grad).all()), None)
        if bad is not None:
            self._saver.warm_up_reducer()
            raise failed(
                f"Step {state.step + 1}: the gradient of {bad} is not finite. The weights were not changed "
                "by it.",
                not_finite(state.step + 1, segment.config, segment.directory),
                segment.directory,
            )
        set_learning_rate(state.optimizer, self._learning_rate())
        self._saver.staged()
        segment.watchdog.beat()

    def finish(self, logged: Mapping[str, Any]) -> None:
        """Record the step that TRL has `logged`; save if it is due.

        Raises StoppedError after an early stop with a good checkpoint.
        """
        seconds = time.perf_counter() - self._started
        self._require_finite(float(logged["loss"]))
        rate = self._learning_rate()
        tokens, self._seen = int(logged["num_tokens"]) - self._seen, int(logged["num_tokens"])
        self._state.step += 1
        self._state.seconds += seconds
        self._state.counted += tokens
        self._slowest_step = max(self._slowest_step, seconds)
        self._segment.watchdog.step_done(seconds)
        parts = self._clock.read()
        if self._is_due(self._segment.config.monitoring.log_steps):
            figures = {name: logged.get(source) for name, source in _FIGURES.items()}
            row = self._position() | figures | {"learning_rate": rate} | self._speed(tokens, seconds)
            self._write(row | parts)
        self._saver.poll()
        if self._is_due(self._segment.config.checkpointing.save_steps):
            self._saver.save()
        self._saver.tell_grace(self._slowest_step)
        if self._state.step < self._segment.length.steps:
            self._stop_if_asked()

    def _learning_rate(self) -> float:
        return learning_rate(self._state.step, self._segment.length.steps, self._segment.config.training)

    def _is_due(self, every: int) -> bool:
        """Whether this step is one of each `every`; the last one always is."""
        return self._state.step >= self._segment.length.steps or self._state.step % every == 0

    def _position(self) -> Row:
        step, length = self._state.step, self._segment.length
        return {
            "step": step,
            "epoch": length.epoch_of(step - 1),
            "tokens": int(self._state.counted),
            "samples": step * length.samples_per_step,
        }

    def _speed(self, tokens: int, seconds: float) -> Row:
        samples = self._segment.length.samples_per_step
        return {
            "tokens_per_second": tokens / seconds,
            "samples_per_second": samples / seconds,
            "step_seconds": seconds,
        }

    def _require_finite(self, loss: float) -> None:
        if not math.isfinite(loss):
            step, segment = self._state.step + 1, self._segment
            failure = not_finite(step, segment.config, segment.directory)
            raise failed(f"Step {step}: loss {loss} is not finite.", failure, segment.directory)

    def _write(self, row: Row) -> None:
        row = row | {"checkpoint_seconds": self._saver.held_up()} | memory_facts(self._segment.device)
        row = row | self._segment.gpu_facts() | {"time": time.time()}
        row = {key: value for key, value in row.items() if value is not None}
        self._metrics.write(row)
        for tracker in self._segment.trackers:
            tracker.write(row)
        self._segment.listener.on_row(row)

    def _stop_if_asked(self) -> None:
        stop = self._segment.stop
        stop.before_deadline(1.5 * (self._slowest_step + self._saver.seconds))
        if stop.reason is None:
            return
        raise self._saver.stop()
