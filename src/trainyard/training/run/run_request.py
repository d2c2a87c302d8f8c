"""Open a segment of a run: its request, a check whether the run is already done, and its first records.

This module writes the run's identity and configuration, and removes the records of steps that are trained
again. `loop` trains.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from trainyard.config.load import computation_sha256, config_sha256, dump_yaml
from trainyard.config.schema import Config, TrainingConfig
from trainyard.errors import ConfigError
from trainyard.run.atomic_files import write_bytes_atomically
from trainyard.run.checkpoint_retention import remove_leftovers, set_aside_after
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import history_of, read_run, write_identity
from trainyard.run.records import append_event, keep_rows_up_to
from trainyard.run.run_advice import other_inputs
from trainyard.run.situation import recorded_run
from trainyard.training.checkpoint.resume import ResumePoint, belongs_to
from trainyard.training.checkpoint.training_state import TrainingState
from trainyard.training.data.config_of_run import differences_from_run
from trainyard.training.data.training_data import TrainingData
from trainyard.training.model.model import parameter_count
from trainyard.training.model.parallel import Parallel
from trainyard.training.run.run_context import RunLength
from trainyard.training.runtime.hardware import hardware_facts
from trainyard.training.runtime.world import World
from trainyard.training.weights.weight_fit import WeightSource

if TYPE_CHECKING:
    from trainyard.watch.network_record import NetworkWatch


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
        found = differences_from_run(
            directory, request.config, request.provenance, data=request.data.fingerprint
        )
        if found:
            raise other_inputs(directory, found)
        return outcome
    if point.step > length.steps:
        raise ConfigError(
            f"{point.path} is beyond the requested {length.steps} steps. "
            "Raise training.max_steps, or name an earlier checkpoint with --resume. Nothing was started."
        )
    return None


def segment_facts(
    request: Request,
    length: RunLength,
    parallel: Parallel,
    weights: WeightSource | None,
    *,
    world: World,
    device: torch.device,
) -> dict[str, Any]:
    """The facts for `run.json` beside the request: plan, hardware, starting weights."""
    plan: dict[str, Any] = {"parameters": parameter_count(parallel.model)}
    if parallel.compressed:
        plan["gradient_compression"] = asdict(parallel.compressed.compression)
    if request.flops_per_token is not None:
        plan["flops_per_token"] = request.flops_per_token
    config, peak = request.config, _peak_flops(request, device)
    return {
        "plan": length.to_json() | plan,
        "hardware": hardware_facts(device, world.size, compiled=config.compute.compile)
        | ({"peak_flops": peak} if peak else {}),
        # Random weights follow from the seed.
        "model": {"path": config.model.path, "sha256": weights.digest()} if weights else None,
    }


def mfu_of(request: Request, world: World, device: torch.device) -> Callable[[float], float | None]:
    """Convert tokens per second to the share of the peak of all devices; None when it is not known.

    A share above 1 shows that the peak is wrong, so it is not known either.
    """
    each, peak = request.flops_per_token, _peak_flops(request, device)
    if each is None or peak is None:
        return lambda _speed: None
    scale = each / (world.size * peak)
    return lambda speed: speed * scale if speed * scale <= 1 else None


def _peak_flops(request: Request, device: torch.device) -> float | None:
    """The peak of one device, by its name; None when the caller knows none."""
    return request.peak_flops(torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu")


def open_records(request: Request, point: ResumePoint | None, found: Mapping[str, Any]) -> str:
    """Write `run.json` and `config.yaml`; a resumed run keeps its id and its time of creation."""
    directory, config, data = request.directory, request.config, request.data
    kept: dict[str, Any] = {}
    if directory.run_file.exists():
        before = read_run(directory.run_file)
        names = ("created", "parent", "model") if point else ("created",)
        kept = {key: before[key] for key in names if key in before}
        kept["history"] = history_of(before, until=point.step if point else 0)
        run_id = str(before["run_id"])
    else:
        run_id = request.run_id
    if point and not belongs_to(directory, point.path):
        checkpoint = str(point.path.absolute())
        kept["parent"] = {"checkpoint": checkpoint, "manifest_sha256": point.manifest_sha256}
    directory.create()
    facts = {
        **request.provenance,
        "config_sha256": config_sha256(config),
        "computation_sha256": computation_sha256(config),
        "seed": config.training.seed,
        "data": data.to_json(),
        **found,
        **kept,
    }
    write_identity(directory.run_file, run_id, facts)
    write_bytes_atomically(directory.config_file, dump_yaml(config).encode())
    return run_id


def continue_records(directory: RunDirectory, state: TrainingState, point: ResumePoint | None) -> None:
    remove_leftovers(directory)
    for step in set_aside_after(directory, state.step):
        append_event(
            directory.events_file, "checkpoint_removed", step=step, reason="after the step resumed from"
        )
    dropped = keep_rows_up_to(directory.metrics_file, state.step)
    if point is None:
        append_event(directory.events_file, "started", step=0, dropped_rows=dropped or None)
        return
    append_event(
        directory.events_file,
        "resumed",
        step=state.step,
        checkpoint=str(point.path),
        manifest_sha256=point.manifest_sha256,
        dropped_rows=dropped or None,
    )
