"""The trainer: one segment of a run, from its checkpoint or step 0 to the end, a stop or a failure.

    train()    resume point -> model, optimizer, data -> steps -> a sample of text -> outcome
    Trainer    data -> forward -> backward -> finite? -> optimizer -> row, validation -> checkpoint -> stop?

A row is written before the checkpoint of its step: resuming from a checkpoint finds all rows up to it.
"""

import gc
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainyard.config.load import config_sha256
from trainyard.config.mesh import mesh_shape, require_processes
from trainyard.config.schema import Config
from trainyard.errors import CheckpointError, RecordError
from trainyard.run.directory import RunDirectory
from trainyard.run.node_folder import mark_trained
from trainyard.run.rank_times import write_rank_time
from trainyard.run.records import RecordWriter, Row
from trainyard.training.checkpoint.checkpoint import load_checkpoint
from trainyard.training.checkpoint.failure_advice import explain_memory_errors
from trainyard.training.checkpoint.resume import (
    agreed_resume_point,
    continue_node,
    find_resume_point,
    values_to_fit,
)
from trainyard.training.checkpoint.stored_index import ResumePoint
from trainyard.training.checkpoint.training_state import TrainingState
from trainyard.training.data.preparation import plan_preparation
from trainyard.training.data.training_data import Batches, TrainingData, agreed_fingerprint, data_at_hand
from trainyard.training.data.vocabulary import load_vocabulary
from trainyard.training.model.loss import compiled_kernels, summed_loss
from trainyard.training.model.optimizer import build_optimizer, learning_rate
from trainyard.training.model.parallel import Parallel, clip_gradients, put_on_devices
from trainyard.training.run.checkpoint_scheduler import Saver
from trainyard.training.run.hang import end_when_hung
from trainyard.training.run.network_fallback import keep_nccl_log, record_network
from trainyard.training.run.outcome import OutcomeRecorder
from trainyard.training.run.run_context import (
    Listener,
    Request,
    RunContext,
    RunLength,
    continue_records,
    earlier_outcome,
    open_records,
    plan_length,
    recorded_id,
    show_work,
)
from trainyard.training.run.trackers import Trackers, use_trackers
from trainyard.training.run.validation import Validation, open_validation, write_sample
from trainyard.training.runtime.hardware import memory_facts, prepare_device
from trainyard.training.runtime.shared_directory import lock_run_directory, with_folders
from trainyard.training.runtime.stop_signals import StopRequest, shield_children
from trainyard.training.runtime.timing import GpuClock, HostClock
from trainyard.training.runtime.watchdog import Watchdog
from trainyard.training.runtime.world import World, explain_lost_peers, join_world
from trainyard.training.weights.starting_weights import load_weights, open_starting_weights

_PROMPT_TOKENS = 16
# The numbers of new objects, and of searches, after which Python 3.11 searches for garbage by default.
_NEW_OBJECTS = (700, 10, 10)


def train(
    request: Request, *, stop: StopRequest, listener: Listener, world: World | None = None
) -> dict[str, Any]:
    """Train until done; return the outcome. Raises StoppedError after an early stop with a checkpoint.

    `world` is that of `join_processes`, if the caller has entered it; else this joins the other processes.
    """
    request = request.with_pinned_config()
    config, directory = request.config, request.directory
    show_work(listener, "preparing the device")
    device = prepare_device(config)
    with ExitStack() as held:
        if world is None:
            joined = join_processes(
                config, directory, is_stopping=lambda: stop.reason is not None, listener=listener
            )
            world = held.enter_context(joined)
        show_work(listener, "opening the data")
        world = with_folders(world, shared=config.checkpointing.shared)
        batches, length = open_batches(request, world.size)
        held.enter_context(closing(batches))
        fits = values_to_fit(config, agreed_fingerprint(request.data, world), length.samples_per_step)
        held.enter_context(lock_run_directory(directory, world))
        held.enter_context(explain_memory_errors(config, directory))

        show_work(listener, "finding the checkpoint")
        point = agreed_resume_point(
            lambda: find_resume_point(directory, request.resume, fits), directory, world
        )
        done = world.run_on_main(lambda: earlier_outcome(request, length, point))
        if done is not None:
            listener.on_event("finished_before", {"step": done["steps"]})
            if world.is_main:
                request.on_outcome(done)
            return done

        show_work(listener, "building the model")
        # The checkpoint to resume from replaces all values, so then none are drawn or read.
        weights = None
        if point is None:
            tile_bytes = config.kernel_optimization.tile_bytes
            weights = open_starting_weights(config.model, tile_bytes=tile_bytes)
        parallel = put_on_devices(config, world, device, draw=point is None)
        if weights:
            load_weights(parallel.model, weights)
        exchange = parallel.compressed.tensors if parallel.compressed else None
        optimizer = build_optimizer(parallel.model, config.training)
        state = TrainingState(parallel.model, optimizer, exchange=exchange)
        context = RunContext(
            request=request,
            run_id=world.run_on_main(lambda: recorded_id(request)),
            length=length,
            fits=fits,
            state=state,
            device=device,
            world=world,
            stop=stop,
            listener=listener,
            watchdog=Watchdog(config.monitoring),
        )
        world.run_on_main(lambda: open_records(context, point, parallel, weights))
        return _train_segment(context, point, parallel=parallel, batches=batches)


def _train_segment(
    context: RunContext, point: ResumePoint | None, *, parallel: Parallel, batches: Batches
) -> dict[str, Any]:
    """Train the steps, write a sample and record the outcome, whatever happens."""
    request, config, world, state = context.request, context.config, context.world, context.state
    # The trackers are closed last: W&B may wait a minute for its upload, longer than a grace period.
    with ExitStack() as last:
        with OutcomeRecorder(context, request.on_outcome) as recorder:
            _start_from(point, context, batches)
            trackers = last.enter_context(use_trackers(context))
            facts = {"step": state.step, "steps": context.length.steps, "run_id": context.run_id}
            context.listener.on_event("started", facts | {"compiles": config.compute.compile})
            # Commands search for garbage rarely. Here a few objects may hold gigabytes on a device.
            gc.set_threshold(*_NEW_OBJECTS)
            with end_when_hung(context, recorder, leave=request.leave):
                with (
                    explain_memory_errors(config, context.directory, step=lambda: state.step + 1),
                    Saver(context) as saver,
                    closing(Trainer(context, saver, parallel, batches, trackers=trackers)) as trainer,
                ):
                    trainer.train(open_validation(config, request.data, context.length.samples_per_step))
                    saver.save(wait=True)
                with context.watchdog.slow_work(), context.show_current_work("writing a sample"):
                    recorder.sample = write_sample(
                        parallel.model,
                        load_vocabulary(config.model),
                        device=context.device,
                        prompt=request.data.prompt(_PROMPT_TOKENS),
                        context=config.data.sequence_length,
                        seed=config.training.seed,
                    )
        # No process ends well before the outcome is on record: a main process that starts again alone,
        # because the others have ended, then knows that all is done.
        world.wait_for_main()
        if world.owns_folder:
            mark_trained(context.directory, config_sha256(config))
    return recorder.outcome


def _start_from(point: ResumePoint | None, context: RunContext, batches: Batches) -> None:
    """Set state, records and data to the resume point, or to step 0."""
    directory, state, world, length = context.directory, context.state, context.world, context.length
    show_work(context.listener, f"loading {point.path.name}" if point else "opening the records")
    if point is not None:
        load_checkpoint(point.path, state, world)
    world.run_on_main(lambda: continue_records(directory, state, point))
    world.run_on_owners(
        lambda: continue_node(directory, context.run_id, state.step, config=context.config, world=world)
    )
    if state.restored_positions:
        batches.restore(state.restored_positions)
        state.data_position = batches.position(state.step)
    if context.config.training.schedule_on_extension == "stretch" or state.schedule_steps is None:
        state.schedule_steps = length.steps


@dataclass(frozen=True)
class _OwnBatch:
    """This process's part of a step's batch."""

    step: int
    tokens: int
    """Targets that count in the loss, over all processes."""
    sequences: list[Tensor]
    """`[batch, seq + 1]` tokens on the device, one per forward pass."""


class Trainer:
    """The steps of one segment, from `state.step` to the end or to a stop.

    `train` is the loop and `step` one optimizer step; the methods below them are in the order of a step.
    """

    def __init__(
        self, context: RunContext, saver: Saver, parallel: Parallel, batches: Batches, *, trackers: Trackers
    ) -> None:
        compiles, device = context.config.compute.compile, context.device
        self._context, self._saver, self._parallel, self._batches = context, saver, parallel, batches
        self._state, self._device, self._trackers = context.state, device, trackers
        self._metrics = RecordWriter(context.directory.metrics_file) if context.world.is_main else None
        self._clock = GpuClock() if device.type == "cuda" else HostClock()
        bfloat16 = context.config.model.dtype == "bfloat16" and parallel.autocast
        self._autocast = torch.autocast(device.type, torch.bfloat16, enabled=bfloat16)
        self._loss_kernels = compiled_kernels() if compiles and device.type == "cuda" else None
        # torch.compile may start a compiler at any new shape; a Ctrl-C must not kill it.
        self._shield = shield_children if compiles else nullcontext
        self._next: _OwnBatch | None = None
        self._slowest_step = 0.0
        self._slowest_usual = 0.0
        """Without the first step, which compiles and opens channels."""

    def close(self) -> None:
        if self._metrics is not None:
            self._metrics.close()

    def train(self, validation: Validation | None) -> None:
        """Train to the end. Raises StoppedError after an early stop with a good checkpoint."""
        state, saver = self._state, self._saver
        state.model.train()
        self._settle_buckets()
        if validation and state.step == 0 and self._context.config.model.path:
            self._validate_given_weights(validation)
        if state.pending_row is not None:  # a stop has postponed the validation of this step
            self._log(state.pending_row, validation)
        first = state.step
        network: dict[str, Any] | None = None
        while state.step < self._context.length.steps:
            self._stop_if_requested()
            start = time.perf_counter()
            row = self.step()
            row |= self._measure_speed(time.perf_counter() - start)
            if state.step == first + 1:  # this step has opened the channels between the machines
                network = record_network(self._context)
            self._log(row, validation)
            saver.poll()
            if state.step % self._context.config.checkpointing.save_steps == 0:
                saver.save()
            if self._slowest_usual:
                saver.report_grace(self._slowest_usual)
        if state.step > first:  # some processes open further channels later, as for a validation
            record_network(self._context, network)

    def step(self) -> Row:
        """Train one step, and return its row without speed, memory and validation.

        Raises TrainingFailedError when the loss or the gradient norm is not finite, or with `skip_bad_steps`
        when too many updates in a row would be skipped; the weights are then unchanged.
        """
        state, training = self._state, self._context.config.training
        self._clock.begin()
        with self._shield(), explain_lost_peers():
            batch = self._own_batch(state.step)
            self._clock.lap("data")
            own_loss = self._forward_backward(batch)
            norm = clip_gradients(state.model, training.max_grad_norm or math.inf)
            # So far a GPU only has the work in its queue. The next line waits until it is done.
            loss, grad_norm = self._read_figures(own_loss, norm)
        self._clock.lap("backward")
        # The check comes before the optimizer, so that a bad step leaves the weights as they are.
        problem = self._problem_of(loss, grad_norm)
        rate = learning_rate(state.step, state.schedule_steps or self._context.length.steps, training)
        if problem is None:
            for group in state.optimizer.param_groups:
                group["lr"] = rate
            self._saver.wait_until_staged()  # the copy of the last checkpoint still reads the weights
            if self._parallel.compressed:
                self._parallel.compressed.commit()
            with explain_lost_peers():
                state.optimizer.step()
            self._record_loss(loss)
        else:
            self._skip_update(problem, loss, grad_norm)
        state.optimizer.zero_grad(set_to_none=True)
        self._clock.lap("optimizer")
        state.step += 1
        state.data_position = self._batches.position(state.step)
        return {
            "step": state.step,
            "epoch": self._context.length.epoch_of(state.step - 1),
            "loss": _finite(loss),
            "learning_rate": rate,
            "grad_norm": _finite(grad_norm),
            "skipped": None if problem is None else True,
            **self._clock.read(),
        }

    # Data

    def _own_batch(self, step: int) -> _OwnBatch:
        ready, self._next = self._next, None
        return ready if ready is not None and ready.step == step else self._draw_batch(step)

    def _prefetch(self) -> None:
        """Prepare the next batch, if there is one. A stream is left out, because it reads ahead itself."""
        step = self._state.step + 1
        if self._batches.steps_per_epoch is not None and step < self._context.length.steps:
            self._next = self._draw_batch(step)

    def _draw_batch(self, step: int) -> _OwnBatch:
        """This process's part of the global batch of `step`, on its device."""
        batches, size = self._batches, self._context.config.training.batch_size
        # A stream may wait for the network, so it counts as slow work.
        with self._context.watchdog.slow_work() if batches.steps_per_epoch is None else nullcontext():
            own, targets = batches.share(step, self._parallel.share, size=size)
        parts = [torch.from_numpy(part) for part in own]
        if self._device.type == "cuda":
            # From memory that is not pinned, the host would wait for the copy.
            parts = [part.pin_memory() for part in parts]
        return _OwnBatch(step, max(1, targets), [part.to(self._device, non_blocking=True) for part in parts])

    # Forward and backward

    def _forward_backward(self, batch: _OwnBatch) -> Tensor:
        """Compute the gradients of the mean loss over all targets of the step; return this process's part.

        The gradients do not depend on the number of forward passes that the step is divided into.
        """
        parallel = self._parallel
        total = torch.zeros((), device=self._device)
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

    def _loss(self, sequences: Tensor) -> Tensor:
        """The summed loss of `[batch, seq + 1]` tokens.

        The logits are passed on as a temporary, so that no name keeps them alive in the backward pass.
        """
        with self._autocast:
            logits = self._parallel.forward(sequences[:, :-1])
        return summed_loss(logits, sequences[:, 1:], self._loss_kernels)

    def forward(self, tokens: Tensor) -> Tensor:
        """Compute the logits of validation tokens in the same way as in training."""
        self._context.watchdog.beat()
        with self._shield(), self._autocast:
            logits: Tensor = self._parallel.forward(tokens.to(self._device))
        return logits

    def _settle_buckets(self) -> None:
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

    # Finite?

    def _read_figures(self, own_loss: Tensor, grad_norm: Tensor) -> tuple[float, float]:
        """Read the step's loss and gradient norm: the only time in a step that the host waits for a GPU.

        While the GPU computes, the batch of the next step is put on it.
        """
        if self._device.type == "cuda":
            self._prefetch()
        loss, norm = torch.stack((own_loss, grad_norm.to(own_loss.device))).tolist()
        return self._parallel.share.total(loss), norm

    def _problem_of(self, loss: float, grad_norm: float) -> str | None:
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

    def _skip_update(self, problem: str, loss: float, grad_norm: float) -> None:
        """Record that the update is skipped. Raises TrainingFailedError when that is not allowed."""
        losses, step, skipped = self._state.losses, self._state.step, self._state.losses.skipped_in_row
        if skipped >= self._context.config.training.skip_bad_steps:
            before = f" {skipped} in a row were skipped before." if skipped else ""
            place = self._context.length.place_of(step)
            self._fail(step + 1, f"{problem} in {place}. The weights are unchanged.{before}")
        losses.skipped_in_row = skipped + 1
        figures = {"loss": _finite(loss), "grad_norm": _finite(grad_norm)}
        self._context.record_event("step_skipped", step=step + 1, reason=problem, **figures)

    def _fail(self, step: int, problem: str) -> None:
        """Raise TrainingFailedError for a `step` with a value that is not finite."""
        # A value to save that is not finite is the cause, and raises; another failure to save stays silent.
        with suppress(CheckpointError, RecordError):
            self._saver.finish()
        raise self._context.not_finite_error(step, f"Step {step}: {problem}")

    # Log

    def _record_loss(self, loss: float) -> None:
        """Record the loss, and an event when it begins to spike."""
        losses, step = self._state.losses, self._state.step + 1
        losses.skipped_in_row = 0
        if losses.add(loss):
            self._context.record_event("loss_spike", step=step, loss=loss, compared_with=losses.usual)

    def _measure_speed(self, seconds: float) -> Row:
        """Note how long the step took that has just ended, and return the figures of its speed."""
        context, length = self._context, self._context.length
        context.watchdog.record_step(seconds)
        if self._slowest_step:
            self._slowest_usual = max(self._slowest_usual, seconds)
        self._slowest_step = max(self._slowest_step, seconds)
        self._state.seconds += seconds
        speed = length.tokens_per_step / seconds
        return {
            "tokens": self._state.step * length.tokens_per_step,
            "samples": self._state.step * length.samples_per_step,
            "tokens_per_second": speed,
            "samples_per_second": length.samples_per_step / seconds,
            "mfu": context.mfu(speed),
            "step_seconds": seconds,
        }

    def _log(self, row: Row, validation: Validation | None) -> None:
        """Validate if it is time, then write the row; a stop during validation saves first and is raised."""
        state, context = self._state, self._context
        if validation and self._is_due(context.config.training.validation_steps):
            with context.show_current_work(f"validating step {state.step}"):
                result = validation.run(self.forward, self._stop_reason, self._parallel.share)
            if result is None:
                state.pending_row = row
                self._stop_if_requested()
            else:
                if not math.isfinite(loss := result["val_loss"]):
                    self._fail(state.step, f"the validation loss, {loss}, is not finite.")
                row |= result
        state.pending_row = None
        if "val_loss" in row or self._is_due(context.config.monitoring.log_steps):
            self._write(row)

    def _validate_given_weights(self, validation: Validation) -> None:
        """Record the validation loss of the given weights; the run must not end above it."""
        context = self._context
        with context.show_current_work("validating the given weights"), context.watchdog.slow_work():
            result = validation.run(self.forward, self._stop_reason, self._parallel.share)
        if result is not None and math.isfinite(result["val_loss"]):
            context.record_event("validated", step=0, **result)

    def _is_due(self, every: int | None) -> bool:
        """Return whether this step is a multiple of `every`, or the last one."""
        step = self._state.step
        return step >= self._context.length.steps or (every is not None and step % every == 0)

    def _write(self, row: Row) -> None:
        context = self._context
        row |= {"checkpoint_seconds": self._saver.take_held_up_seconds()} | memory_facts(self._device)
        row |= context.request.gpu_facts()
        row = {key: value for key, value in row.items() if value is not None} | {"time": time.time()}
        if context.world.size > 1:
            write_rank_time(context.directory.logs, context.world.rank, row)
        if self._metrics is None:
            return
        self._metrics.write(row)
        self._trackers.write(row)
        context.listener.on_row(row)

    # Stop?

    def _stop_if_requested(self) -> None:
        """Raise StoppedError, after a save, if a stop of a process was requested."""
        if self._stop_reason():
            raise self._saver.stop()

    def _stop_reason(self) -> str | None:
        """Return the reason to stop, on which all processes agree: a signal to one of them is enough.

        The deadline is not checked before the first step, so that every segment trains at least one step.
        """
        stop = self._context.stop
        if self._slowest_step:
            stop.stop_before_deadline(1.5 * (self._slowest_step + self._saver.seconds))
        agreed = self._context.world.first_reason(stop.reason)
        if agreed is not None:  # a signal that arrives during the vote is handled at the next step
            stop.reason = agreed
        return agreed


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def open_batches(request: Request, processes: int) -> tuple[Batches, RunLength]:
    """Return the batches of a run by so many processes, and its planned length."""
    training, length = request.config.training, request.config.data.sequence_length
    groups = mesh_shape(request.config.compute, processes).data
    samples = training.batch_size * training.gradient_accumulation_steps * groups
    batches = request.data.batches(sequence_length=length, batch_size=samples, seed=training.seed)
    return batches, plan_length(training, samples, length, steps_per_epoch=batches.steps_per_epoch)


@contextmanager
def join_processes(
    config: Config, directory: RunDirectory, *, is_stopping: Callable[[], bool], listener: Listener
) -> Iterator[World]:
    """Join the other processes of the run; `is_stopping` returns whether this process is to end."""
    device = prepare_device(config)
    keep_nccl_log(directory.logs)
    show_work(listener, "waiting for the other processes")
    try:
        with join_world(device.type, config.compute.strategy, is_stopping=is_stopping) as world:
            yield world
    finally:
        if not directory.run_file.exists():
            with suppress(OSError):  # a run that never started leaves nothing; folders with files stay
                directory.logs.rmdir()
                directory.path.rmdir()


def rehearse(
    config: Config, request_for: Callable[[TrainingData], Request], *, processes: int | None = None
) -> dict[str, Any]:
    """Describe what `train` by `processes` processes would do, without changing anything, for `--dry-run`.

    That is the length of the run and the checkpoint it would resume from. Data that is not prepared stays
    unprepared; the length is then unknown, and `prepares` says what would be prepared first. The default for
    `processes` is the number that torchrun has started, or 1.
    """
    count = processes or int(os.environ.get("WORLD_SIZE", "1"))
    require_processes(config, count)
    data = data_at_hand(config.data, config.model)
    if data is None:
        return {"prepares": plan_preparation(config.data, config.model).to_json()}
    request = request_for(data).with_pinned_config()
    config = request.config
    batches, length = open_batches(request, count)
    with closing(batches):
        fits = values_to_fit(config, data.fingerprint, length.samples_per_step)
        point = find_resume_point(request.directory, request.resume, fits, record=False)
        if point is None:
            open_starting_weights(config.model)  # refuses weights that do not fit
    return {
        "run_dir": str(request.directory.path),
        "resumes": str(point.path) if point else None,
        "starts_from": None if point else config.model.path,
        "plan": length.to_json(),
        "data": data.to_json(),
    }
