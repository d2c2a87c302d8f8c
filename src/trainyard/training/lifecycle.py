"""The lifecycle of one segment of a run: resume, build, train, record the end.

    config + data --> resume point --> run.json --> state --> steps --> outcome

`pretraining` builds and trains the model. `resume` chooses the checkpoint, and `step_loop` writes the records
around each step.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from typing import Any

import torch

from trainyard.config.load import config_sha256
from trainyard.config.mesh import require_processes
from trainyard.config.registries import DEFAULT_OPTIMIZER
from trainyard.config.schema import Config
from trainyard.run.directory import RunDirectory
from trainyard.run.node_folder import mark_trained
from trainyard.training.checkpoint.checkpoint import load_checkpoint
from trainyard.training.checkpoint.failure_advice import explain_memory_errors
from trainyard.training.checkpoint.node_resume import agreed_resume_point, continue_node
from trainyard.training.checkpoint.resume import ResumePoint, find_resume_point
from trainyard.training.checkpoint.training_state import TrainingState
from trainyard.training.data.mixture import parts_of
from trainyard.training.data.preparation import plan_preparation
from trainyard.training.data.training_data import TrainingData, agreed_fingerprint, data_at_hand
from trainyard.training.model.model import parameter_count
from trainyard.training.model.optimizer import schedule_changes, schedule_of
from trainyard.training.pretraining.pretraining import PretrainingSegment
from trainyard.training.run.checkpoint_scheduler import Saver
from trainyard.training.run.hang import end_when_hung
from trainyard.training.run.network_fallback import end_on_fallback, keep_nccl_log
from trainyard.training.run.outcome import OutcomeRecorder
from trainyard.training.run.run_context import Listener, RunContext, show_work
from trainyard.training.run.run_request import Request, continue_records, earlier_outcome, open_records
from trainyard.training.run.step_loop import StepLoop
from trainyard.training.run.trackers import TrackedRun, close_trackers, hyperparameters_of, open_trackers
from trainyard.training.runtime.before_torch import resume_garbage_collection
from trainyard.training.runtime.hardware import hardware_facts, prepare_device
from trainyard.training.runtime.shared_directory import lock_run_directory, with_folders
from trainyard.training.runtime.stop_signals import StopRequest
from trainyard.training.runtime.watchdog import Watchdog
from trainyard.training.runtime.world import World, join_world
from trainyard.training.weights.weight_source import WeightSource

_LEAVING_SECONDS = 3.0
"""Seconds of a grace period that are left for the end of the process, once the trackers are closed."""


def train(
    request: Request,
    *,
    stop: StopRequest,
    listener: Listener,
    world: World | None = None,
) -> dict[str, Any]:
    """Train until done; return the outcome. Raises StoppedError after an early stop with a checkpoint.

    `world` is that of `join_processes`, if the caller has entered it; else this joins the other processes.
    """
    request = request.with_pinned_config()
    show_work(listener, "preparing the device")
    device = prepare_device(request.config)
    with ExitStack() as held:
        if world is None:
            joined = join_processes(
                request.config,
                request.directory,
                is_stopping=lambda: stop.reason is not None,
                listener=listener,
            )
            world = held.enter_context(joined)
        show_work(listener, "opening the data")
        world = with_folders(world, shared=request.config.checkpointing.shared)
        segment = held.enter_context(closing(PretrainingSegment(request, world.size)))
        lifecycle = _Lifecycle(request, segment, world, device=device, stop=stop, listener=listener)
        held.enter_context(lock_run_directory(request.directory, world))
        held.enter_context(explain_memory_errors(request.config, request.directory))
        return lifecycle.run()


@contextmanager
def join_processes(
    config: Config, directory: RunDirectory, *, is_stopping: Callable[[], bool], listener: Listener
) -> Iterator[World]:
    """Join the other processes of the run; `is_stopping` returns whether this process is to end."""
    device = prepare_device(config)
    keep_nccl_log(directory.logs)
    # A process that failed has printed why, and its launcher ends this one within seconds: print nothing.
    show_work(listener, "waiting for the other processes", quiet_seconds=10.0)
    try:
        with join_world(device.type, config.compute.strategy, is_stopping=is_stopping) as world:
            yield world
    finally:
        if not directory.run_file.exists():
            with suppress(OSError):  # a run that never started leaves nothing; folders with files stay
                directory.logs.rmdir()
                directory.path.rmdir()


class _Lifecycle:
    """One segment of a run in its world."""

    def __init__(
        self,
        request: Request,
        segment: PretrainingSegment,
        world: World,
        *,
        device: torch.device,
        stop: StopRequest,
        listener: Listener,
    ) -> None:
        self._request, self._segment = request, segment
        self._world, self._device = world, device
        self._stop, self._listener = stop, listener
        self._fits = _values_to_fit(request, segment, agreed_fingerprint(request.data, world))

    def run(self) -> dict[str, Any]:
        request, world, segment = self._request, self._world, self._segment
        show_work(self._listener, "finding the checkpoint")
        point = agreed_resume_point(self._resume_point, request.directory, world)
        done = world.run_on_main(lambda: earlier_outcome(request, segment.length, point))
        if done is not None:
            self._listener.on_event("finished_before", {"step": done["steps"]})
            if world.is_main:
                request.on_outcome(done)
            return done
        show_work(self._listener, "building the model")
        weights = segment.starting_weights(point)
        state = segment.build(weights, world=world, device=self._device, resumes=point is not None)
        run_id = world.run_on_main(lambda: open_records(request, point, self._facts(state, weights)))
        context = self._context(run_id, state)
        # The trackers are closed last: W&B may wait a minute for its upload, longer than a grace period.
        with ExitStack() as last:
            with OutcomeRecorder(context, request.on_outcome) as recorder:
                self._continue_from(point, context)
                tracked = last.enter_context(self._open_trackers(context))
                self._report_start(tracked)
                with end_when_hung(tracked, recorder, leave=request.leave):
                    with end_on_fallback(tracked, recorder, leave=request.leave):
                        self._train(tracked)
                    with tracked.watchdog.slow_work(), tracked.show_current_work("writing a sample"):
                        recorder.sample = segment.sample(tracked)
            self._leave_after_outcome()
        return recorder.outcome

    def _leave_after_outcome(self) -> None:
        """Let no process end well before the outcome is on record, and mark the folder of each machine.

        A main process that starts again alone, because the others have ended, then knows that all is done.
        """
        self._world.wait_for_main()
        if self._world.owns_folder:
            mark_trained(self._request.directory, config_sha256(self._request.config))

    def _resume_point(self) -> ResumePoint | None:
        request = self._request
        return find_resume_point(request.directory, request.resume, self._fits)

    def _continue_from(self, point: ResumePoint | None, context: RunContext) -> None:
        """Set state and records to the resume point, or to step 0."""
        directory, state, world = context.directory, context.state, context.world
        show_work(self._listener, f"loading {point.path.name}" if point else "opening the records")
        if point is not None:
            load_checkpoint(point.path, state, world)
        world.run_on_main(lambda: continue_records(directory, state, point))
        config, run_id = context.config, context.run_id
        world.run_on_owners(lambda: continue_node(directory, run_id, state.step, config=config, world=world))
        self._segment.start_from_state(state)
        self._follow_schedule(context)

    def _follow_schedule(self, context: RunContext) -> None:
        """Set the schedule of the steps; report how it differs from the one before the checkpoint."""
        state, before = context.state, context.state.schedule
        training, length = context.config.training, context.length
        state.schedule = schedule_of(training, length.steps, length.samples_per_step, before)
        if before is not None and (changes := schedule_changes(state.step, before, state.schedule)):
            context.record_event("settings_changed", step=state.step, changes=changes)

    def _report_start(self, context: RunContext) -> None:
        facts = {"step": context.state.step, "steps": context.length.steps, "run_id": context.run_id}
        context.listener.on_event("started", facts | {"compiles": context.config.compute.compile})
        resume_garbage_collection()

    def _train(self, context: RunContext) -> None:
        with ExitStack() as held:
            explained = explain_memory_errors(
                context.config, context.directory, step=lambda: context.state.step + 1
            )
            held.enter_context(explained)
            saver = held.enter_context(Saver(context))
            loop = held.enter_context(closing(StepLoop(context, saver)))
            saver.remove_old()
            self._segment.train(context, loop)
            saver.save(wait=True)

    def _context(self, run_id: str, state: TrainingState) -> RunContext:
        return RunContext(
            config=self._request.config,
            directory=self._request.directory,
            run_id=run_id,
            length=self._segment.length,
            fits=self._fits,
            state=state,
            device=self._device,
            world=self._world,
            trackers=(),
            stop=self._stop,
            listener=self._listener,
            gpu_facts=self._request.gpu_facts,
            watchdog=Watchdog(self._request.config.monitoring),
            mfu=self._mfu(),
            network=self._request.network,
        )

    @contextmanager
    def _open_trackers(self, context: RunContext) -> Iterator[RunContext]:
        """`context` with its trackers, opened on the main process once the step to resume from is known."""
        run = TrackedRun(
            context.config.monitoring,
            context.directory,
            context.run_id,
            resumed_at=context.state.step,
            hyperparameters=hyperparameters_of(context.config),
        )
        trackers = open_trackers(run) if self._world.is_main else []
        try:
            yield replace(context, trackers=trackers)
        finally:
            if trackers:
                close_trackers(trackers, seconds=context.stop.seconds_left() - _LEAVING_SECONDS)

    def _facts(self, state: TrainingState, weights: WeightSource | None) -> dict[str, Any]:
        """The facts for `run.json` beside the request: recipe, plan, hardware, starting weights."""
        config, peak = self._request.config, self._peak_flops()
        plan: dict[str, Any] = {"parameters": parameter_count(state.model), **self._segment.plan_facts()}
        if self._request.flops_per_token is not None:
            plan["flops_per_token"] = self._request.flops_per_token
        return {
            "plan": self._segment.length.to_json() | plan,
            "hardware": hardware_facts(self._device, self._world.size, compiled=config.compute.compile)
            | ({"peak_flops": peak} if peak else {}),
            # Random weights follow from the seed.
            "model": {"path": config.model.path, "sha256": weights.digest()} if weights else None,
        }

    def _peak_flops(self) -> float | None:
        """The peak of one device, by its name; None when the caller knows none."""
        on_gpu = self._device.type == "cuda"
        return self._request.peak_flops(torch.cuda.get_device_name(self._device) if on_gpu else "cpu")

    def _mfu(self) -> Callable[[float], float | None]:
        """Converts tokens per second to the share of the peak of all devices; None when it is not known.

        A share above 1 shows that the peak is wrong, so it is not known either.
        """
        each, peak = self._request.flops_per_token, self._peak_flops()
        if each is None or peak is None:
            return lambda _speed: None
        scale = each / (self._world.size * peak)
        return lambda speed: speed * scale if speed * scale <= 1 else None


def rehearse(
    config: Config, request_for: Callable[[TrainingData], Request], *, processes: int | None = None
) -> dict[str, Any]:
    """Describe what `processes` processes would train, without changing anything, for `--dry-run`.

    Data that is not prepared stays unprepared. The length of the run is then unknown, so the description says
    under `prepares` what would be prepared first. The default for `processes` is the number that torchrun has
    started, or 1.
    """
    count = processes or int(os.environ.get("WORLD_SIZE", "1"))
    require_processes(config, count)
    data = data_at_hand(config.data, config.model)
    if data is not None:
        return describe(request_for(data), processes=count)
    plans = [plan_preparation(each, config.model).to_json() for each in parts_of(config.data).values()]
    return {"prepares": {"parts": plans} if plans else plan_preparation(config.data, config.model).to_json()}


def describe(request: Request, *, processes: int = 1) -> dict[str, Any]:
    """Describe what `train` would do: the length of the run and the checkpoint it would resume from."""
    request = request.with_pinned_config()
    with closing(PretrainingSegment(request, processes)) as segment:
        fits = _values_to_fit(request, segment, request.data.fingerprint)
        point = find_resume_point(request.directory, request.resume, fits, record=False)
        segment.starting_weights(point)  # refuses weights that do not fit
        return {
            "run_dir": str(request.directory.path),
            "resumes": str(point.path) if point else None,
            "starts_from": None if point else request.config.model.path,
            "plan": segment.length.to_json(),
            "data": request.data.to_json(),
        }


def _values_to_fit(request: Request, segment: PretrainingSegment, fingerprint: str) -> dict[str, Any]:
    """The values of the segment, and the optimizer if it is not the default: its state fits no other."""
    optimizer = request.config.training.optimizer
    chosen = {} if optimizer == DEFAULT_OPTIMIZER else {"training.optimizer": optimizer}
    return segment.fits(fingerprint) | chosen
