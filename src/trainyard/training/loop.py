"""The training loop: step, validate, record, save, stop. It is handed its parts and owns only their order.

    batch(step) -> forward, backward × accumulation -> finite? -> clip -> AdamW -> row -> checkpoint -> stop?

A row is written before the checkpoint of its step: resuming from a checkpoint finds all rows up to it.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from trainyard.config.schema import Config
from trainyard.errors import CheckpointError, RecordError, StoppedError, TrainingFailedError
from trainyard.run.commands import resume_command
from trainyard.run.directory import RunDirectory
from trainyard.run.records import RecordWriter, Row, append_event
from trainyard.training.checkpoint import SaveOrigin, remove_old_checkpoints, save_checkpoint, whole_steps
from trainyard.training.length import RunLength
from trainyard.training.loss import summed_loss
from trainyard.training.optimizer import learning_rate, set_learning_rate
from trainyard.training.parallel import Parallel
from trainyard.training.placement import own_part, whole
from trainyard.training.state import TrainingState
from trainyard.training.stop import StopRequest, children_shielded
from trainyard.training.trackers import Tracker
from trainyard.training.validation import Validation
from trainyard.training.world import World, peers_expected

_SAVE_GUESS_SECONDS = 5.0
"""What a save is assumed to take before the first one was measured."""


class Batches(Protocol):
    """Training samples as a pure function of the step."""

    def batch(self, step: int) -> np.ndarray: ...


class Listener(Protocol):
    """Whoever shows the run to people while it goes on."""

    def on_row(self, row: Row) -> None: ...

    def on_event(self, event: str, fields: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class Parts:
    """What the loop works with."""

    config: Config
    directory: RunDirectory
    run_id: str
    length: RunLength
    fits: dict[str, Any]
    """What a later configuration must agree with to resume."""
    state: TrainingState
    device: torch.device
    parallel: Parallel
    """The state's model on the devices of the world."""
    world: World
    batches: Batches
    validation: Validation | None
    trackers: Sequence[Tracker]
    stop: StopRequest
    listener: Listener
    gpu_facts: Callable[[], dict[str, float]]
    """Utilization and temperature as metrics; empty when unknown."""


class Loop:
    """One segment of a run, from `state.step` to the end or to a stop."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._state = parts.state
        self._go_on = resume_command(parts.directory.path)
        self._device = parts.device
        bfloat16 = parts.config.model.dtype == "bfloat16" and parts.parallel.autocast
        self._autocast = torch.autocast(self._device.type, torch.bfloat16, enabled=bfloat16)
        self._metrics = RecordWriter(parts.directory.metrics_file) if parts.world.is_main else None
        self._saved_step = parts.state.step if parts.state.step else None
        self._save_seconds = _SAVE_GUESS_SECONDS
        self._slowest_step = 0.0
        # torch.compile may start a compiler at any new shape; a Ctrl-C must not kill it.
        self._shield = children_shielded if parts.config.compute.compile else nullcontext

    def run(self) -> None:
        """Train to the end. Raises StoppedError after an early stop with a good checkpoint."""
        try:
            self._parts.state.model.train()
            if self._parts.world.is_main:
                self._remove_old()  # what a kill between saving and removing left
            if self._state.pending_row is not None:
                self._finish_row(self._state.pending_row)
            while self._state.step < self._parts.length.steps:
                self._stop_if_asked()
                self._advance()
            self._save_unless_saved()
        finally:
            if self._metrics is not None:
                self._metrics.close()

    def _advance(self) -> None:
        start = time.perf_counter()
        row = self._train_step()
        seconds = time.perf_counter() - start
        self._slowest_step = max(self._slowest_step, seconds)
        self._state.seconds += seconds
        self._finish_row(row | self._speed(seconds))
        if self._state.step % self._parts.config.checkpointing.save_steps == 0:
            self._save_unless_saved()

    def _train_step(self) -> Row:
        with self._shield(), peers_expected():
            loss = self._forward_backward()
            grad_norm = self._clip()
        self._require_finite(loss, grad_norm)
        config, optimizer = self._parts.config.training, self._state.optimizer
        rate = learning_rate(self._state.step, self._parts.length.steps, config)
        set_learning_rate(optimizer, rate)
        with peers_expected():
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        self._state.step += 1
        return {
            "step": self._state.step,
            "epoch": (self._state.step - 1) // self._parts.length.steps_per_epoch + 1,
            "loss": loss,
            "learning_rate": rate,
            "grad_norm": grad_norm,
        }

    def _forward_backward(self) -> float:
        """Gradients of the mean loss over all tokens of the step, however it is cut into forward passes."""
        parallel, world = self._parts.parallel, self._parts.world
        batch = torch.from_numpy(self._parts.batches.batch(self._state.step))
        tokens = batch.shape[0] * (batch.shape[1] - 1)
        # Forward pass by forward pass, the processes share the batch in order of rank.
        own = torch.split(batch, self._parts.config.training.batch_size)[world.rank :: world.size]
        total = torch.zeros((), device=self._device)
        for number, sequences in enumerate(own, start=1):
            micro = sequences.to(self._device)
            with parallel.accumulating(last=number == len(own)):
                with self._autocast:
                    logits = parallel.forward(micro[:, :-1])
                loss = summed_loss(logits, micro[:, 1:]) / tokens
                (loss * parallel.loss_scale).backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        return world.total(total.item())

    def _forward(self, tokens: Tensor) -> Tensor:
        """Logits of validation tokens, computed as those of training are."""
        with self._shield(), self._autocast:
            logits: Tensor = self._parts.parallel.forward(tokens.to(self._device))
        return logits

    def _clip(self) -> float:
        limit = self._parts.config.training.max_grad_norm or math.inf
        return whole(nn.utils.clip_grad_norm_(self._state.model.parameters(), limit)).item()

    def _require_finite(self, loss: float, grad_norm: float) -> None:
        if math.isfinite(loss) and math.isfinite(grad_norm):
            return
        step = self._state.step
        what = f"loss {loss}" if not math.isfinite(loss) else f"gradient norm {grad_norm}"
        epoch, batch = divmod(step, self._parts.length.steps_per_epoch)
        raise TrainingFailedError(
            f"Step {step + 1}: {what} is not finite in batch {batch} of epoch {epoch + 1}. "
            "The weights were not changed by it.\n"
            "Lower training.learning_rate or training.max_grad_norm, or look at that batch. "
            f"{self._where_to_go_on()}"
        )

    def _where_to_go_on(self) -> str:
        if whole_steps(self._parts.directory):
            return f"From the last checkpoint: {self._go_on}"
        return f"There is no checkpoint yet; once mended, from the start: {self._go_on}"

    def _speed(self, seconds: float) -> Row:
        length = self._parts.length
        row: Row = {
            "tokens": self._state.step * length.tokens_per_step,
            "samples": self._state.step * length.samples_per_step,
            "tokens_per_second": length.tokens_per_step / seconds,
            "samples_per_second": length.samples_per_step / seconds,
            "step_seconds": seconds,
        }
        return row

    def _finish_row(self, row: Row) -> None:
        """Validate if it is time, then write the row; a stop during validation saves first and is raised."""
        if self._is_due(self._parts.config.training.validation_steps) and self._parts.validation:
            result = self._parts.validation.run(self._forward, self._stop_reason, self._parts.world)
            if result is None:
                self._state.pending_row = row
                self._stop_if_asked()
            elif not math.isfinite(result.loss):
                raise TrainingFailedError(
                    f"Step {self._state.step}: the validation loss, {result.loss}, is not finite.\n"
                    f"Lower training.learning_rate. {self._where_to_go_on()}"
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
        row |= self._memory() | self._parts.gpu_facts()
        row = {key: value for key, value in row.items() if value is not None} | {"time": time.time()}
        if self._metrics is None:
            return
        self._metrics.write(row)
        for tracker in self._parts.trackers:
            tracker.write(row)
        self._parts.listener.on_row(row)

    def _memory(self) -> Row:
        if self._device.type != "cuda":
            return {}
        free, total = torch.cuda.mem_get_info(self._device)
        return {"gpu_memory_bytes": total - free, "gpu_memory_total_bytes": total}

    def _stop_reason(self) -> str | None:
        """Why to stop, as all processes agree on it: a signal to one of them is enough.

        The deadline counts from the first step on, so that every segment moves on.
        """
        if self._slowest_step:
            self._parts.stop.before_deadline(1.5 * (self._slowest_step + self._save_seconds))
        self._parts.stop.reason = self._parts.world.first_reason(self._parts.stop.reason)
        return self._parts.stop.reason

    def _stop_if_asked(self) -> None:
        if not self._stop_reason():
            return
        self._save_unless_saved()
        step, steps, directory = self._state.step, self._parts.length.steps, self._parts.directory
        raise StoppedError(
            f"Stopped at step {step} of {steps}: {self._parts.stop.reason}. "
            f"{directory.checkpoint(step)} is whole.\nTo go on: {self._go_on}"
        )

    def _save_unless_saved(self) -> None:
        if self._saved_step == self._state.step:
            return
        parts, step = self._parts, self._state.step
        self._require_finite_weights()
        try:
            origin = SaveOrigin(parts.run_id, parts.fits)
            saved = save_checkpoint(parts.directory, self._state, origin=origin, world=parts.world)
        except CheckpointError as error:
            with suppress(RecordError):
                self._event("checkpoint_failed", step=step, reason=str(error))
            raise
        self._saved_step, self._save_seconds = step, max(saved.seconds, 0.1)
        if not parts.world.is_main:
            return
        self._event(
            "checkpoint_saved",
            step=step,
            bytes=saved.size,
            seconds=round(saved.seconds, 4),
            manifest_sha256=saved.manifest_sha256,
        )
        self._remove_old()

    def _remove_old(self) -> None:
        keep = self._parts.config.checkpointing.keep_last
        for old in remove_old_checkpoints(self._parts.directory, keep, newest=self._state.step):
            self._event("checkpoint_removed", step=old, keep_last=keep)

    def _require_finite_weights(self) -> None:
        """A state that cannot be trained from must not replace one that can."""
        named = self._state.model.named_parameters()
        bad = next((name for name, values in named if not torch.isfinite(own_part(values)).all()), None)
        if (bad := self._parts.world.first_reason(bad)) is not None:
            raise TrainingFailedError(
                f"Step {self._state.step}: {bad} is not finite after the optimizer step; it is not saved.\n"
                f"Lower training.learning_rate. {self._where_to_go_on()}"
            )

    def _event(self, event: str, **fields: Any) -> None:
        if not self._parts.world.is_main:
            return
        append_event(self._parts.directory.events_file, event, **fields)
        self._parts.listener.on_event(event, fields)
