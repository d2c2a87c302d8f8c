"""One segment of a run: resume if asked, build the parts, train, record how it ended.

    config + data --> resume point --> run.json --> parts --> loop --> outcome

The steps themselves are `loop`'s, the choice of a checkpoint is `resume`'s.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from trainyard.config.mesh import mesh_shape
from trainyard.config.schema import Config
from trainyard.run.directory import RunDirectory
from trainyard.training.checkpoint.checkpoint import load_checkpoint
from trainyard.training.checkpoint.node_resume import agreed_resume_point, continue_node
from trainyard.training.checkpoint.remedies import memory_explained, memory_kind, step_out_of_memory
from trainyard.training.checkpoint.resume import ResumePoint, find_resume_point, what_must_fit
from trainyard.training.checkpoint.state import TrainingState
from trainyard.training.data.training_data import Batches, agreed_fingerprint
from trainyard.training.data.vocabulary import load_vocabulary
from trainyard.training.model.model import parameter_count
from trainyard.training.model.optimizer import build_optimizer
from trainyard.training.model.parallel import Parallel, put_on_devices
from trainyard.training.run.hang import ended_when_hung
from trainyard.training.run.length import RunLength, global_batch, plan_length
from trainyard.training.run.loop import Loop
from trainyard.training.run.network_fallback import keep_nccl_log
from trainyard.training.run.outcome import OutcomeRecorder
from trainyard.training.run.profiling import StepProfile, steps_ahead
from trainyard.training.run.run_context import Listener, PretrainingContext, show_work
from trainyard.training.run.run_request import Request, continue_records, finished_before, open_records
from trainyard.training.run.sample import write_sample
from trainyard.training.run.trackers import close_trackers, hyperparameters_of, open_trackers, show_sample
from trainyard.training.run.validation import Validation
from trainyard.training.runtime.before_torch import started
from trainyard.training.runtime.hardware import Peak, cpu_peak_flops, hardware_facts, prepare_device
from trainyard.training.runtime.shared_directory import opened, with_folders
from trainyard.training.runtime.stop_signals import StopRequest
from trainyard.training.runtime.watchdog import Watchdog
from trainyard.training.runtime.world import World, joined
from trainyard.training.weights.starting_weights import load_weights, open_starting_weights
from trainyard.training.weights.weight_source import WeightSource

_PROMPT_TOKENS = 16
_LEAVING_SECONDS = 3.0
"""What is left of a grace period for the end of the process, once the trackers are closed."""


def train(
    request: Request, *, stop: StopRequest, listener: Listener, world: World | None = None
) -> dict[str, Any]:
    """Train until done; returns the outcome. Raises StoppedError after an early stop with a checkpoint.

    `world` is that of `together`, if the caller has entered it; otherwise this joins the other processes.
    """
    request = request.pinned()
    show_work(listener, "preparing the device")
    device = prepare_device(request.config)
    with ExitStack() as held:
        if world is None:
            asked = partial(together, request.config, request.directory, told=lambda: stop.reason is not None)
            world = held.enter_context(asked(listener=listener))
        show_work(listener, "opening the data")
        world = with_folders(world, shared=request.config.checkpointing.shared)
        session = _Session(request, world, device)
        held.enter_context(opened(request.directory, world))
        with closing(session.batches), memory_explained(request.config, request.directory):
            return session.train(stop, listener)


@contextmanager
def together(
    config: Config, directory: RunDirectory, *, told: Callable[[], bool], listener: Listener
) -> Iterator[World]:
    """Join the other processes of the run; `told` says whether this process was asked to end."""
    device = prepare_device(config)
    keep_nccl_log(directory.logs, device.type)
    # One that failed has said why, and its launcher ends this one within seconds: nothing is said after it.
    show_work(listener, "waiting for the other processes", quiet_seconds=10.0)
    with joined(device.type, config.compute.strategy, told_to_end=told) as world:
        yield world


class _Session:
    """A segment of a run in its world: what is the same for all of its steps."""

    def __init__(self, request: Request, world: World, device: torch.device) -> None:
        self._request, self._world, self._device = request, world, device
        self._profiled = request.profile
        groups = mesh_shape(request.config.compute, world.size).data
        self.batches = _training_batches(request, groups)
        self._length = _length(request, self.batches, groups)
        fingerprint = agreed_fingerprint(request.data, world)
        self._fits = what_must_fit(request.config, fingerprint, self._length.samples_per_step)

    def train(self, stop: StopRequest, listener: Listener) -> dict[str, Any]:
        request, world = self._request, self._world
        directory, config = request.directory, request.config
        show_work(listener, "looking for a checkpoint")
        point = agreed_resume_point(self._resume_point, directory, world)
        done = world.on_main(lambda: finished_before(request, self._length, point))
        if done is not None:
            listener.on_event("finished_before", {"step": done["steps"]})
            if world.is_main:
                request.on_outcome(done)
            return done
        self._profiled = steps_ahead(
            request.profile, done=point.step if point else 0, last=self._length.steps
        )
        show_work(listener, "building the model")
        weights = None if point else _starting_weights(config)
        parallel, state = self._new_state(weights, resumes=point is not None)
        run_id = world.on_main(lambda: open_records(request, point, self._found(parallel, weights)))
        parts = self._parts(run_id, parallel, state, watchers=(stop, listener))
        recorded = OutcomeRecorder(
            directory, state, self._length, tell=request.on_outcome, stop=stop, is_main=world.is_main
        )
        # The trackers are closed last: W&B may wait a minute for its upload, longer than a grace period.
        with ExitStack() as last, recorded as recorder:
            show_work(listener, f"loading {point.path.name}" if point else "opening the records")
            _resume(parts, point)
            if state.data_position is not None:
                self.batches.restore(state.data_position)
            tracked = last.enter_context(self._tracked(parts))
            facts = {"step": state.step, "steps": self._length.steps, "run_id": run_id}
            facts["compiles"] = config.compute.compile
            listener.on_event("started", facts)
            started()
            with ended_when_hung(tracked, recorder, leave=request.leave):
                _run(tracked)
                with tracked.watchdog.slow_work(), tracked.working("writing a sample"):
                    recorder.sample = _sample(request, parallel.model, self._device)
                    show_sample(tracked.trackers, recorder.sample, state.step)
        return recorder.outcome

    def _resume_point(self) -> ResumePoint | None:
        asked = self._request
        return find_resume_point(asked.directory, asked.resume, self._fits, digest_of=asked.digest_of)

    def _parts(
        self, run_id: str, parallel: Parallel, state: TrainingState, *, watchers: tuple[StopRequest, Listener]
    ) -> PretrainingContext:
        stop, listener = watchers
        return PretrainingContext(
            config=self._request.config,
            directory=self._request.directory,
            run_id=run_id,
            length=self._length,
            fits=self._fits,
            state=state,
            device=self._device,
            parallel=parallel,
            world=self._world,
            batches=self.batches,
            validation=_validation(self._request, self._length.samples_per_step),
            trackers=(),
            stop=stop,
            listener=listener,
            gpu_facts=self._request.gpu_facts,
            mfu=self._mfu(),
            profile=StepProfile(self._profiled, self._request.directory.logs, self._world.rank),
            watchdog=Watchdog(self._request.config.monitoring),
        )

    @contextmanager
    def _tracked(self, parts: PretrainingContext) -> Iterator[PretrainingContext]:
        """`parts` with their trackers, opened on the main process once the step to go on from is known."""
        if not self._world.is_main:
            yield parts
            return
        resumed_at, monitoring = parts.state.step, parts.config.monitoring
        trackers = open_trackers(
            monitoring,
            parts.directory,
            run_id=parts.run_id,
            resumed_at=resumed_at,
            hyperparameters=hyperparameters_of(parts.config),
        )
        try:
            yield replace(parts, trackers=trackers)
        finally:
            close_trackers(trackers, seconds=parts.stop.seconds_left() - _LEAVING_SECONDS)

    def _new_state(self, weights: WeightSource | None, *, resumes: bool) -> tuple[Parallel, TrainingState]:
        parallel = put_on_devices(self._request.config, self._world, self._device, draw=not resumes)
        parallel.model.model.separates_documents = self._request.config.data.packing == "separate"
        if weights:
            load_weights(parallel.model, weights)
        optimizer = build_optimizer(parallel.model, self._request.config.training)
        exchange = parallel.compressed.tensors if parallel.compressed else None
        return parallel, TrainingState(parallel.model, optimizer, exchange=exchange)

    def _found(self, parallel: Parallel, weights: WeightSource | None) -> dict[str, Any]:
        """What `run.json` says beside the request: plan, hardware, where the weights come from."""
        model, compiled = self._request.config.model, self._request.config.compute.compile
        counted: dict[str, Any] = {"parameters": parameter_count(parallel.model)}
        if parallel.compressed:
            counted["gradient_compression"] = asdict(parallel.compressed.compression)
        if self._request.flops_per_token is not None:
            counted["flops_per_token"] = self._request.flops_per_token
        peak = self._peak_flops()
        return {
            "plan": self._length.to_json() | counted,
            "hardware": hardware_facts(self._device, self._world.size, compiled=compiled)
            | ({"peak_flops": peak} if peak else {}),
            # Random weights follow from the seed.
            "model": {"path": model.path, "sha256": weights.digest()} if weights else None,
        }

    def _peak_flops(self) -> float | None:
        """Of one device, by its name; None when the caller knows no peak of it."""
        on_gpu = self._device.type == "cuda"
        return self._request.peak_flops(torch.cuda.get_device_name(self._device) if on_gpu else "cpu")

    def _mfu(self) -> Callable[[float], float | None]:
        """The share of the peak of all devices that a speed in tokens per second is; None when not known."""
        each, size, known = self._request.flops_per_token, self._world.size, self._peak_flops()
        dtype = getattr(torch, self._request.config.model.dtype)
        measured = known is None and self._device.type == "cpu"
        peak = Peak(known and size * known, (lambda: size * cpu_peak_flops(dtype)) if measured else None)
        return lambda speed: None if each is None else peak.share(speed * each)


def describe(request: Request, world_size: int = 1) -> dict[str, Any]:
    """What `train` would do: the length of the run and the checkpoint it would go on from."""
    request = request.pinned()
    config = request.config
    groups = mesh_shape(config.compute, world_size).data
    with closing(_training_batches(request, groups)) as batches:
        length = _length(request, batches, groups)
    fits = what_must_fit(config, request.data.fingerprint, length.samples_per_step)
    point = find_resume_point(request.directory, request.resume, fits, record=False)
    steps_ahead(request.profile, done=point.step if point else 0, last=length.steps)
    if point is None:
        _starting_weights(config)  # refuses what does not fit
    return {
        "run_dir": str(request.directory.path),
        "resumes": str(point.path) if point else None,
        "starts_from": None if point else config.model.path,
        "plan": length.to_json(),
        "data": request.data.to_json(),
    }


def _run(parts: PretrainingContext) -> None:
    try:
        Loop(parts).run()
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        kind = memory_kind(error)
        if kind is None:
            raise
        step, config, directory = parts.state.step + 1, parts.config, parts.directory
        raise step_out_of_memory(error, kind, step, config=config, directory=directory) from error


def _length(request: Request, batches: Batches, groups: int) -> RunLength:
    config, steps = request.config, batches.steps_per_epoch
    return plan_length(config.training, config.data, steps_per_epoch=steps, groups=groups)


def _training_batches(request: Request, groups: int) -> Batches:
    data, training = request.config.data, request.config.training
    return request.data.batches(
        sequence_length=data.sequence_length,
        batch_size=global_batch(training, groups),
        seed=training.seed,
    )


def _starting_weights(config: Config) -> WeightSource | None:
    return open_starting_weights(config.model, tile_bytes=config.kernel_optimization.tile_bytes)


def _resume(parts: PretrainingContext, point: ResumePoint | None) -> None:
    """Bring state and records to the resume point, or to step 0."""
    directory, state, world = parts.directory, parts.state, parts.world
    run_id, config = parts.run_id, parts.config
    if point is not None:
        load_checkpoint(point.path, state, world)
    world.on_main(lambda: continue_records(directory, state, point))
    world.on_owners(lambda: continue_node(directory, run_id, state.step, config=config, world=world))


def _validation(request: Request, samples_per_step: int) -> Validation | None:
    """None when the validation tokens do not fill one sequence."""
    config = request.config
    size = config.training.batch_size
    count = samples_per_step * config.training.validation_batches
    windows = request.data.validation_windows(length=config.data.sequence_length, count=count)
    if not len(windows):
        return None
    batches = [windows[i : i + size] for i in range(0, len(windows), size)]
    return Validation(batches, text_bytes=load_vocabulary(config.model).text_bytes)


def _sample(request: Request, model: nn.Module, device: torch.device) -> str:
    """What the model writes after the first tokens of the validation data."""
    config = request.config
    return write_sample(
        model,
        load_vocabulary(config.model),
        device=device,
        prompt=request.data.prompt(_PROMPT_TOKENS),
        context=config.data.sequence_length,
        seed=config.training.seed,
    )
