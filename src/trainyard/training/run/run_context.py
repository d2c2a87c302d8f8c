"""A segment of a run: its request, its planned length, the objects that it works with, its first records.

    Request --> RunLength, resume point, model --open_records, continue_records--> RunContext

This module writes the run's identity and configuration, and removes the records of steps that are trained
again. `loop` trains.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import torch

from trainyard.config.load import computation_sha256, config_sha256, dump_yaml
from trainyard.config.schema import Config, TrainingConfig
from trainyard.errors import ConfigError, TrainingFailedError
from trainyard.run.atomic_files import write_bytes_atomically
from trainyard.run.checkpoint_retention import remove_leftovers, set_aside_after
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import history_of, read_run, write_identity
from trainyard.run.records import Row, append_event, keep_rows_up_to
from trainyard.run.run_advice import other_inputs
from trainyard.run.situation import recorded_run
from trainyard.training.checkpoint.failure_advice import build_error, not_finite_failure
from trainyard.training.checkpoint.stored_index import ResumePoint, belongs_to
from trainyard.training.checkpoint.training_state import TrainingState
from trainyard.training.data.config_of_run import differences_from_run
from trainyard.training.data.training_data import TrainingData
from trainyard.training.model.model import parameter_count
from trainyard.training.model.parallel import Parallel
from trainyard.training.runtime.hardware import hardware_facts
from trainyard.training.runtime.stop_signals import StopRequest
from trainyard.training.runtime.watchdog import Watchdog
from trainyard.training.runtime.world import World
from trainyard.training.weights.weight_fit import WeightSource

if TYPE_CHECKING:
    from trainyard.watch.network_record import NetworkWatch


@dataclass(frozen=True)
class Request:
    """A request to train: the configuration, the data and the run directory."""

    config: Config
    directory: RunDirectory
    data: TrainingData
    resume: str
    """`none`, `auto` or a checkpoint's directory."""
    run_id: str
    """The identity of a new run; a resumed run keeps its own."""
    provenance: Mapping[str, Any]
    """Facts for `run.json` that only the caller knows: version, git, lock, CI, image."""
    gpu_facts: Callable[[], dict[str, float]] = dict
    """Returns GPU utilization and temperature; called at each logged step."""
    flops_per_token: int | None = None
    """The model's floating-point operations to train on one token; None leaves `mfu` out of the metrics."""
    peak_flops: Callable[[str], float | None] = lambda _name: None
    """The peak FLOP/s of a device in the run's precision, by name: `cpu`, or a GPU's name in its driver."""
    on_outcome: Callable[[Mapping[str, Any]], None] = lambda _outcome: None
    """The main process calls it with the outcome when that is recorded, however the run ended."""
    leave: Callable[[int], None] = os._exit
    """Ends a hanging process from another thread with the given exit code; does not return."""
    network: "NetworkWatch | None" = None
    """Reads and judges the logs of NCCL; None leaves the network off the record."""

    def with_pinned_config(self) -> "Request":
        """The request with the exact data in its configuration, which is recorded."""
        return replace(self, config=self.data.pinned_config(self.config))


@dataclass(frozen=True)
class RunLength:
    """The planned length of a run."""

    steps: int
    """Optimizer steps."""
    steps_per_epoch: int | None
    """None when the length of the data is not known."""
    epochs: float | None
    """Passes over the training data in `steps`; None when the length of the data is not known."""
    samples_per_step: int
    """Sequences per optimizer step: the global batch."""
    tokens_per_step: int

    def epoch_of(self, step: int) -> int | None:
        """The epoch of a step, from 1; None when it is not known."""
        return None if self.steps_per_epoch is None else step // self.steps_per_epoch + 1

    def place_of(self, step: int) -> str:
        """The position of the batch after `step` steps in the data, counted from 1, as text for people."""
        if self.steps_per_epoch is None:
            return f"batch {step + 1} of the stream"
        return f"batch {step % self.steps_per_epoch + 1} of epoch {self.epoch_of(step)}"

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


def plan_length(
    training: TrainingConfig, samples: int, sequence_length: int, *, steps_per_epoch: int | None
) -> RunLength:
    """Plan the length: the run ends at `max_steps` or after `epochs`, whichever comes first.

    `samples` are the sequences of an optimizer step over all processes: the global batch. When the number of
    steps per epoch is not known, only `max_steps` counts.
    """
    limits = [training.max_steps]
    if training.epochs is not None and steps_per_epoch is not None:
        limits.append(training.epochs * steps_per_epoch)
    steps = min(limit for limit in limits if limit is not None)
    return RunLength(
        steps=steps,
        steps_per_epoch=steps_per_epoch,
        epochs=None if steps_per_epoch is None else round(steps / steps_per_epoch, 4),
        samples_per_step=samples,
        tokens_per_step=samples * sequence_length,
    )


class Listener(Protocol):
    """Shows the run to people while it trains."""

    def on_row(self, row: Row) -> None: ...

    def on_event(self, event: str, fields: dict[str, Any]) -> None:
        """Show a recorded event, or `working`, which is only shown.

        The field `what` of `working` names the current work; it is empty while the run trains steps.
        """


def show_work(listener: Listener, what: str) -> None:
    """Show work other than the steps, such as "loading the model", because it may take long."""
    listener.on_event("working", {"what": what})


@dataclass(frozen=True)
class RunContext:
    """The objects that a segment of a run works with."""

    request: Request
    run_id: str
    length: RunLength
    fits: dict[str, Any]
    """The values that a later configuration must have in order to resume."""
    state: TrainingState
    device: torch.device
    world: World
    stop: StopRequest
    listener: Listener
    watchdog: Watchdog
    """Receives a beat for every sign of progress."""

    @property
    def config(self) -> Config:
        return self.request.config

    @property
    def directory(self) -> RunDirectory:
        return self.request.directory

    @cached_property
    def peak_flops(self) -> float | None:
        """The peak of one device, by its name; None when the caller knows none."""
        on_gpu = self.device.type == "cuda"
        return self.request.peak_flops(torch.cuda.get_device_name(self.device) if on_gpu else "cpu")

    def mfu(self, tokens_per_second: float) -> float | None:
        """The share of the peak of all devices; None when it is not known.

        A share above 1 shows that the peak is wrong, so it is not known either.
        """
        each, peak = self.request.flops_per_token, self.peak_flops
        if each is None or peak is None:
            return None
        share = tokens_per_second * each / (self.world.size * peak)
        return share if share <= 1 else None

    def record_event(self, event: str, **fields: Any) -> None:
        """Record an event and show it. Only the main process does this."""
        if not self.world.is_main:
            return
        append_event(self.directory.events_file, event, **fields)
        self.listener.on_event(event, fields)

    def not_finite_error(self, step: int, message: str) -> TrainingFailedError:
        """Return the error for a loss or gradient of `step` that is not finite; it adds what to do."""
        failure = not_finite_failure(step, self.config, self.directory)
        return build_error(TrainingFailedError, message, failure, self.directory)

    @contextmanager
    def show_current_work(self, what: str) -> Iterator[None]:
        """Show `what` as the current work while the body runs."""
        show_work(self.listener, what)
        try:
            yield
        finally:
            show_work(self.listener, "")


def earlier_outcome(request: Request, length: RunLength, point: ResumePoint | None) -> dict[str, Any] | None:
    """The outcome of a run that has finished all requested steps and still has its last checkpoint.

    Raises ConfigError when it finished them with other inputs, because "done" would then be wrong, and when
    the checkpoint is of a later step.
    """
    directory = request.directory
    if point is None or point.step < length.steps:
        return None
    run = read_run(directory.run_file) if directory.run_file.exists() else {}
    outcome: dict[str, Any] = run.get("outcome", {})
    if outcome and recorded_run(run).has_succeeded and outcome.get("steps") == point.step:
        data = request.data.fingerprint
        if found := differences_from_run(directory, request.config, request.provenance, data=data):
            raise other_inputs(directory, found)
        return outcome
    if point.step > length.steps:
        raise ConfigError(
            f"{point.path} is beyond the requested {length.steps} steps. "
            "Raise training.max_steps, or name an earlier checkpoint with --resume. Nothing was started."
        )
    return None


def recorded_id(request: Request) -> str:
    """The identity of the run in the directory; that of the request for a new run."""
    file = request.directory.run_file
    return str(read_run(file)["run_id"]) if file.exists() else request.run_id


def open_records(
    context: RunContext, point: ResumePoint | None, parallel: Parallel, weights: WeightSource | None
) -> None:
    """Write `run.json` and `config.yaml`; a resumed run keeps its time of creation, parent and weights."""
    request, directory, config = context.request, context.directory, context.config
    plan = context.length.to_json() | {"parameters": parameter_count(parallel.model)}
    if parallel.compressed:
        plan["gradient_compression"] = asdict(parallel.compressed.compression)
    if request.flops_per_token is not None:
        plan["flops_per_token"] = request.flops_per_token
    hardware = hardware_facts(context.device, context.world.size, compiled=config.compute.compile)
    kept: dict[str, Any] = {}
    if directory.run_file.exists():
        before = read_run(directory.run_file)
        names = ("created", "parent", "model") if point else ("created",)
        kept = {key: before[key] for key in names if key in before}
        kept["history"] = history_of(before, until=point.step if point else 0)
    if point and not belongs_to(directory, point.path):
        checkpoint = str(point.path.absolute())
        kept["parent"] = {"checkpoint": checkpoint, "manifest_sha256": point.manifest_sha256}
    directory.create()
    facts = {
        **request.provenance,
        "config_sha256": config_sha256(config),
        "computation_sha256": computation_sha256(config),
        "seed": config.training.seed,
        "data": request.data.to_json(),
        "plan": plan,
        "hardware": hardware | ({"peak_flops": context.peak_flops} if context.peak_flops else {}),
        # Random weights follow from the seed.
        "model": {"path": config.model.path, "sha256": weights.digest()} if weights else None,
        **kept,
    }
    write_identity(directory.run_file, context.run_id, facts)
    write_bytes_atomically(directory.config_file, dump_yaml(config).encode())


def continue_records(directory: RunDirectory, state: TrainingState, point: ResumePoint | None) -> None:
    """Remove the records of later steps than the state's, which are trained again, and record the start."""
    remove_leftovers(directory)
    reason = "after the step resumed from"
    for step in set_aside_after(directory, state.step):
        append_event(directory.events_file, "checkpoint_removed", step=step, reason=reason)
    facts: dict[str, Any] = {"step": state.step}
    if point is not None:
        facts |= {"checkpoint": str(point.path), "manifest_sha256": point.manifest_sha256}
    dropped = keep_rows_up_to(directory.metrics_file, state.step)
    event = "resumed" if point else "started"
    append_event(directory.events_file, event, **facts, dropped_rows=dropped or None)
