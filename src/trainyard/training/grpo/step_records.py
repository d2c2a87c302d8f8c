"""Around each step of GRPO: set its learning rate, check its gradients, and hand its row to the step loop.

    sample, reward, gradients (trainer) -> finite? -> learning rate -> weights -> row -> step loop

It knows neither TRL nor transformers: `trainer` calls it and passes it what was logged.
"""

import math
import time
from collections.abc import Mapping
from typing import Any

import torch

from trainyard.training.grpo.policy_state import PolicyState
from trainyard.training.model.optimizer import learning_rate, set_learning_rate
from trainyard.training.run.run_context import RunContext
from trainyard.training.run.step_loop import StepLoop
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

    def __init__(self, context: RunContext, state: PolicyState, loop: StepLoop) -> None:
        self._context, self._state, self._loop = context, state, loop
        self._clock = step_clock(context.device)
        self._started = 0.0
        self._seen = 0

    def begin(self) -> None:
        self._started = time.perf_counter()
        self._clock.begin()
        self._context.watchdog.beat()

    def lap(self, part: str) -> None:
        """Count the time since the last call as `part` of the step; `data` is the sampling of answers."""
        self._clock.lap(part)

    def prepare_update(self) -> None:
        """Set the learning rate, and wait until the weights may change.

        Raises TrainingFailedError, the weights unchanged, for gradients that are not finite.
        """
        state = self._state
        named = state.model.named_parameters()
        bad = next((n for n, p in named if p.grad is not None and not torch.isfinite(p.grad).all()), None)
        if bad is not None:
            self._loop.saver.finish_before_failure()
            raise self._context.not_finite_error(
                state.step + 1,
                f"Step {state.step + 1}: the gradient of {bad} is not finite. The weights were not changed "
                "by it.",
            )
        set_learning_rate(state.optimizer, self._learning_rate())
        self._loop.saver.wait_until_staged()
        self._context.watchdog.beat()

    def finish(self, logged: Mapping[str, Any]) -> None:
        """Record the step that TRL has `logged`; save if it is due.

        Raises StoppedError after an early stop with a good checkpoint.
        """
        seconds = time.perf_counter() - self._started
        self._require_finite(float(logged["loss"]))
        rate, state, length = self._learning_rate(), self._state, self._context.length
        state.step += 1
        state.counted += int(logged["num_tokens"]) - self._seen
        self._seen = int(logged["num_tokens"])
        figures = {name: logged.get(source) for name, source in _FIGURES.items()}
        position = {"step": state.step, "epoch": length.epoch_of(state.step - 1)}
        self._loop.finish(position | figures | {"learning_rate": rate} | self._clock.read(), seconds)
        if state.step < length.steps:
            self._loop.stop_if_requested()
        else:  # before TRL ends and draws random numbers
            self._loop.saver.save(wait=True)

    def _learning_rate(self) -> float:
        return learning_rate(self._state.step, self._context.length.steps, self._context.config.training)

    def _require_finite(self, loss: float) -> None:
        if not math.isfinite(loss):
            step = self._state.step + 1
            raise self._context.not_finite_error(step, f"Step {step}: loss {loss} is not finite.")
