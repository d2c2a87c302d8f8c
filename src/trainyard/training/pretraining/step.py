"""One optimizer step: forward and backward passes × accumulation, clipping, finite check, AdamW.

    batch(step) -> this rank's sequences -> loss / all tokens -> gradients -> clip -> finite? -> weights

It writes nothing. The loop completes and records the row that it returns.
"""

import math
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trainyard.run.records import Row
from trainyard.training.data.training_data import Batches
from trainyard.training.model.loss import compiled_kernels, summed_loss
from trainyard.training.model.optimizer import learning_rate, set_learning_rate
from trainyard.training.model.parallel import Parallel
from trainyard.training.model.tensor_parallel import clip_gradients
from trainyard.training.run.checkpoint_scheduler import Saver
from trainyard.training.run.run_context import RunContext
from trainyard.training.runtime.stop_signals import shield_children
from trainyard.training.runtime.timing import step_clock
from trainyard.training.runtime.world import explain_lost_peers


@dataclass(frozen=True)
class _OwnBatch:
    """This process's part of a step's batch."""

    step: int
    tokens: int
    """Targets that count in the loss, over all processes."""
    sequences: list[Tensor]
    """`[batch, seq + 1]` tokens on the device, one per forward pass."""


class TrainStep:
    """The step from `state.step` to the next."""

    def __init__(self, context: RunContext, saver: Saver, *, parallel: Parallel, batches: Batches) -> None:
        self._context, self._saver = context, saver
        self._parallel, self._batches = parallel, batches
        self._state = context.state
        self._device = context.device
        self._clock = step_clock(context.device)
        self._next: _OwnBatch | None = None
        bfloat16 = context.config.model.dtype == "bfloat16" and parallel.autocast
        self._autocast = torch.autocast(self._device.type, torch.bfloat16, enabled=bfloat16)
        on_gpu = context.config.compute.compile and context.device.type == "cuda"
        self._loss_kernels = compiled_kernels() if on_gpu else None
        # torch.compile may start a compiler at any new shape; a Ctrl-C must not kill it.
        self._shield = shield_children if context.config.compute.compile else nullcontext

    def warm_up_reducer(self) -> None:
        """Run one dummy backward pass so that DDP's buckets are final before the first real step.

        Otherwise a resumed run sums gradients in another order than an uninterrupted one.
        """
        if not self._parallel.has_unsettled_buckets:
            return
        config = self._context.config
        shape = (config.training.batch_size, config.data.sequence_length + 1)
        with self._shield(), explain_lost_peers():
            tokens = torch.zeros(shape, dtype=torch.int64, device=self._device)
            loss = self._loss(tokens)
            loss.backward()  # type: ignore[no-untyped-call]
        self._state.optimizer.zero_grad(set_to_none=True)

    def run(self) -> Row:
        """Train one step.

        Raises TrainingFailedError when the loss or the gradient norm is not finite, or with `skip_bad_steps`
        when too many updates in a row would be skipped; the weights are then unchanged.
        """
        self._clock.begin()
        with self._shield(), explain_lost_peers():
            own_loss = self._forward_backward()
            loss, grad_norm = self._read(own_loss, self._clip())
        self._clock.lap("backward")
        problem = self._problem(loss, grad_norm)
        schedule = self._state.schedule
        steps = schedule["schedule_steps"] if schedule else self._context.length.steps
        rate = learning_rate(self._state.step, steps, self._context.config.training)
        if problem is None:
            self._update(rate)
            self._record_loss(loss)
        else:
            self._skip(problem, loss, grad_norm)
        self._state.optimizer.zero_grad(set_to_none=True)
        self._clock.lap("optimizer")
        self._state.step += 1
        self._state.data_position = self._batches.position(self._state.step)
        return {
            "step": self._state.step,
            "epoch": self._context.length.epoch_of(self._state.step - 1),
            "loss": _finite(loss),
            "learning_rate": rate,
            "grad_norm": _finite(grad_norm),
            "skipped": None if problem is None else True,
            **self._clock.read(),
        }

    def forward(self, tokens: Tensor) -> Tensor:
        """Compute the logits of validation tokens in the same way as in training."""
        self._context.watchdog.beat()
        with self._shield(), self._autocast:
            logits: Tensor = self._parallel.forward(tokens.to(self._device))
        return logits

    def _forward_backward(self) -> Tensor:
        """Compute the gradients of the mean loss over all targets of the step; return this process's part.

        The gradients do not depend on the number of forward passes that the step is divided into.
        """
        parallel = self._parallel
        batch = self._own_batch(self._state.step)
        total = torch.zeros((), device=self._device)
        self._clock.lap("data")
        for number, sequences in enumerate(batch.sequences, start=1):
            with parallel.accumulate(last=number == len(batch.sequences)):
                loss = self._loss(sequences) / batch.tokens
                self._clock.lap("forward")
                (loss * parallel.loss_scale).backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
            self._context.watchdog.beat()
            self._clock.lap("backward")
        if parallel.compressed:
            parallel.compressed.exchange()
        return total

    def _read(self, own_loss: Tensor, grad_norm: Tensor) -> tuple[float, float]:
        """Read the step's loss and gradient norm: the only time in a step that the host waits for a GPU.

        While the GPU computes, the batch of the next step is put on it.
        """
        if self._device.type == "cuda":
            self._prefetch()
        loss, norm = torch.stack((own_loss, grad_norm.to(own_loss.device))).tolist()
        return self._parallel.share.total(loss), norm

    def _prefetch(self) -> None:
        """Prepare the next batch, if there is one. A stream is left out, because it reads ahead itself."""
        step = self._state.step + 1
        if self._batches.steps_per_epoch is not None and step < self._context.length.steps:
            self._next = self._draw_batch(step)

    def _own_batch(self, step: int) -> _OwnBatch:
        ready, self._next = self._next, None
        return ready if ready is not None and ready.step == step else self._draw_batch(step)

    def _draw_batch(self, step: int) -> _OwnBatch:
        """This process's part of the global batch of `step`, on its device."""
        batches, size = self._batches, self._context.config.training.batch_size
        # A stream may wait for the network, so it counts as slow work.
        with self._context.watchdog.slow_work() if batches.steps_per_epoch is None else nullcontext():
            own, targets = batches.share(step, self._parallel.share, size=size)
        return _OwnBatch(step, max(1, targets), [self._on_device(part) for part in own])

    def _on_device(self, sequences: np.ndarray) -> Tensor:
        tokens = torch.from_numpy(sequences)
        if self._device.type != "cuda":
            return tokens.to(self._device)
        # From memory that is not pinned, the host would wait for the copy.
        return tokens.pin_memory().to(self._device, non_blocking=True)

    def _loss(self, sequences: Tensor) -> Tensor:
        """The summed loss of `[batch, seq + 1]` tokens.

        The logits are passed on as a temporary, so that no name keeps them alive in the backward pass.
        """
        with self._autocast:
            logits = self._parallel.forward(sequences[:, :-1])
        return summed_loss(logits, sequences[:, 1:], self._loss_kernels)

    def _clip(self) -> Tensor:
        limit = self._context.config.training.max_grad_norm or math.inf
        return clip_gradients(self._state.model, limit)

    def _problem(self, loss: float, grad_norm: float) -> str | None:
        """Return the reason not to apply the update; None if there is none. All processes return the same."""
        skips, losses = self._context.config.training.skip_bad_steps, self._state.losses
        problem = None
        if not math.isfinite(loss):
            problem = f"loss {loss} is not finite"
        elif not math.isfinite(grad_norm):
            problem = f"gradient norm {grad_norm} is not finite"
        elif skips and losses.is_spike(loss):
            problem = f"loss {loss:.4g} is far above the usual {losses.usual:.4g}"
        return self._context.world.first_reason(problem) if skips else problem

    def _update(self, rate: float) -> None:
        optimizer = self._state.optimizer
        set_learning_rate(optimizer, rate)
        self._saver.wait_until_staged()
        if self._parallel.compressed:
            self._parallel.compressed.commit()
        with explain_lost_peers():
            optimizer.step()

    def _record_loss(self, loss: float) -> None:
        """Record the loss, and an event if it spikes or has risen."""
        self._state.losses.skipped_in_row = 0
        if found := self._state.losses.add(loss):
            event, compared = found
            self._context.record_event(event, step=self._state.step + 1, loss=loss, compared_with=compared)

    def _skip(self, problem: str, loss: float, grad_norm: float) -> None:
        """Record that the update is skipped. Raises TrainingFailedError when that is not allowed."""
        losses, step = self._state.losses, self._state.step
        if losses.skipped_in_row >= self._context.config.training.skip_bad_steps:
            self._saver.finish_before_failure()
            before = (
                f" {losses.skipped_in_row} in a row were skipped before." if losses.skipped_in_row else ""
            )
            raise self._context.not_finite_error(
                step + 1,
                f"Step {step + 1}: {problem} in {self._context.length.place_of(step)}. "
                f"The weights are unchanged.{before}",
            )
        losses.skipped_in_row += 1
        figures = {"loss": _finite(loss), "grad_norm": _finite(grad_norm)}
        self._context.record_event("step_skipped", step=step + 1, reason=problem, **figures)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
