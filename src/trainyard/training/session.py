"""One segment of a run: resume if asked, build the parts, train, record how it ended.

    config + data --> resume point --> run.json --> parts --> loop --> outcome

The steps themselves are `loop`'s, the choice of a checkpoint is `resume`'s.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trainyard.config.load import config_sha256, dump_yaml
from trainyard.config.schema import Config, ModelConfig
from trainyard.errors import ConfigError, TrainingFailedError
from trainyard.run.directory import RunDirectory
from trainyard.run.files import write_bytes_atomically
from trainyard.run.identity import history_of, read_run, write_identity
from trainyard.run.records import append_event, keep_rows_up_to
from trainyard.training.batches import TokenBatches
from trainyard.training.checkpoint import load_checkpoint, remove_leftovers
from trainyard.training.hardware import hardware_facts, prepare_device
from trainyard.training.length import RunLength, global_batch, plan_length
from trainyard.training.loop import Listener, Loop, Parts
from trainyard.training.model import build_model, parameter_count
from trainyard.training.optimizer import build_optimizer
from trainyard.training.outcome import OutcomeRecorder
from trainyard.training.resume import ResumePoint, find_resume_point, what_must_fit
from trainyard.training.sample import write_sample
from trainyard.training.starting_weights import load_weights, open_starting_weights
from trainyard.training.state import TrainingState
from trainyard.training.stop import StopRequest
from trainyard.training.tokens import PreparedData
from trainyard.training.trackers import close_trackers, open_trackers
from trainyard.training.validation import Validation, first_windows
from trainyard.training.vocabulary import Vocabulary, load_vocabulary
from trainyard.training.weight_source import WeightSource

_PROMPT_TOKENS = 16


@dataclass(frozen=True)
class Request:
    """What the caller wants trained, and where."""

    config: Config
    directory: RunDirectory
    data: PreparedData
    resume: str
    """`none`, `auto` or a checkpoint's directory."""
    run_id: str
    """The identity of a new run; one that goes on keeps its own."""
    provenance: Mapping[str, Any]
    """Facts for `run.json` that only the caller knows: version, git, lock, CI, image."""
    gpu_facts: Callable[[], dict[str, float]] = dict
    """GPU utilization and temperature, asked at each logged step."""


def train(request: Request, *, stop: StopRequest, listener: Listener) -> dict[str, Any]:
    """Train until done; returns the outcome. Raises StoppedError after an early stop with a checkpoint."""
    config, directory = request.config, request.directory
    device, batches = prepare_device(config), _training_batches(request)
    length = plan_length(config.training, config.data, steps_per_epoch=batches.steps_per_epoch)
    fits = what_must_fit(config, request.data.fingerprint)
    point = find_resume_point(directory, request.resume, fits)
    if (done := _finished_before(request, length, point)) is not None:
        listener.on_event("finished_before", {"step": done["steps"]})
        return done
    weights = None if point else _starting_weights(config)
    state = _new_state(config, device, weights)
    plan = length.to_json() | {"parameters": parameter_count(state.model)}
    found = {"plan": plan, "hardware": hardware_facts(device), **_origin(config.model, weights)}
    run_id = _write_identity(request, point, found)
    with OutcomeRecorder(directory, state, length) as recorder:
        _resume(directory, state, point)
        trackers = open_trackers(config.monitoring, directory, run_id=run_id, resumed_at=state.step)
        vocabulary = load_vocabulary(config.model)
        parts = Parts(
            config=config,
            directory=directory,
            run_id=run_id,
            length=length,
            fits=fits,
            state=state,
            model=torch.compile(state.model) if config.compute.compile else state.model,  # type: ignore[arg-type]
            batches=batches,
            validation=_validation(request, vocabulary),
            trackers=trackers,
            stop=stop,
            listener=listener,
            gpu_facts=request.gpu_facts,
        )
        listener.on_event("started", {"step": state.step, "steps": length.steps, "run_id": run_id})
        try:
            _run(parts)
            recorder.sample = _sample(request, vocabulary, state.model)
        finally:
            close_trackers(trackers)
    return recorder.outcome


def describe(request: Request) -> dict[str, Any]:
    """What `train` would do: the length of the run and the checkpoint it would go on from."""
    config = request.config
    batches = _training_batches(request)
    length = plan_length(config.training, config.data, steps_per_epoch=batches.steps_per_epoch)
    fits = what_must_fit(config, request.data.fingerprint)
    point = find_resume_point(request.directory, request.resume, fits)
    if point is None:
        _starting_weights(config)  # refuses what does not fit
    return {
        "run_dir": str(request.directory.path),
        "resumes": str(point.path) if point else None,
        "starts_from": None if point else config.model.path,
        "plan": length.to_json(),
        "data": request.data.to_json(),
    }


def _run(parts: Parts) -> None:
    try:
        Loop(parts).run()
    except torch.OutOfMemoryError as error:
        batch = parts.config.training.batch_size
        raise TrainingFailedError(
            f"Step {parts.state.step + 1}: out of GPU memory with {batch} sequences of "
            f"{parts.config.data.sequence_length} tokens a forward pass.\n"
            "Halve training.batch_size and double training.gradient_accumulation_steps; the numbers stay the "
            f"same. ({str(error).splitlines()[0]})"
        ) from error


def _training_batches(request: Request) -> TokenBatches:
    data, training = request.config.data, request.config.training
    return TokenBatches(
        request.data.train.open(),
        sequence_length=data.sequence_length,
        batch_size=global_batch(training),
        seed=training.seed,
    )


def _finished_before(request: Request, length: RunLength, point: ResumePoint | None) -> dict[str, Any] | None:
    """The outcome of a run that has done all steps asked for and still has the checkpoint to show for it.

    Raises ConfigError when it did them with another configuration: "done" would then be the wrong answer.
    """
    directory = request.directory
    if point is None or point.step < length.steps or not directory.run_file.exists():
        return None
    run = read_run(directory.run_file)
    outcome: dict[str, Any] = run.get("outcome", {})
    if outcome.get("status") != "succeeded" or outcome.get("steps") != point.step:
        return None
    if run.get("config_sha256") != config_sha256(request.config):
        raise ConfigError(
            f"{directory.path} holds a finished run of another configuration ({directory.config_file}).\n"
            "Choose another --run-dir, or raise training.max_steps to go on with it. Nothing was started."
        )
    return outcome


def _new_state(config: Config, device: torch.device, weights: WeightSource | None) -> TrainingState:
    model: nn.Module = build_model(config.model.architecture, seed=config.training.seed).to(device)
    if weights:
        load_weights(model, weights)
    return TrainingState(model, build_optimizer(model, config.training))


def _starting_weights(config: Config) -> WeightSource | None:
    return open_starting_weights(config.model, tile_bytes=config.kernel_optimization.tile_bytes)


def _origin(model: ModelConfig, weights: WeightSource | None) -> dict[str, Any]:
    """Where a fresh run's weights come from; nothing for random ones, which follow from the seed."""
    return {"model": {"path": model.path, "sha256": weights.digest()}} if weights else {}


def _write_identity(request: Request, point: ResumePoint | None, found: Mapping[str, Any]) -> str:
    """Write `run.json` and `config.yaml`; a run that goes on keeps its id and its time of creation."""
    directory, config, data = request.directory, request.config, request.data
    kept: dict[str, Any] = {}
    if directory.run_file.exists():
        before = read_run(directory.run_file)
        names = ("created", "parent", "model") if point else ("created", "parent")
        kept = {key: before[key] for key in names if key in before}
        kept["history"] = history_of(before, until=point.step if point else 0)
        run_id = str(before["run_id"])
    else:
        run_id = request.run_id
    if point and directory.checkpoints.resolve() not in point.path.resolve().parents:
        kept["parent"] = {"checkpoint": str(point.path), "manifest_sha256": point.manifest_sha256}
    directory.create()
    facts = {
        **request.provenance,
        "config_sha256": config_sha256(config),
        "seed": config.training.seed,
        "data": data.to_json(),
        **found,
        **kept,
    }
    write_identity(directory.run_file, run_id, facts)
    write_bytes_atomically(directory.config_file, dump_yaml(config).encode())
    return run_id


def _resume(directory: RunDirectory, state: TrainingState, point: ResumePoint | None) -> None:
    """Bring state and records to the resume point, or to step 0."""
    remove_leftovers(directory)
    if point is None:
        dropped = keep_rows_up_to(directory.metrics_file, 0)
        append_event(directory.events_file, "started", step=0, dropped_rows=dropped or None)
        return
    load_checkpoint(point.path, state)
    dropped = keep_rows_up_to(directory.metrics_file, state.step)
    append_event(
        directory.events_file,
        "resumed",
        step=state.step,
        checkpoint=str(point.path),
        manifest_sha256=point.manifest_sha256,
        dropped_rows=dropped or None,
    )


def _validation(request: Request, vocabulary: Vocabulary) -> Validation | None:
    """None when the validation tokens do not fill one sequence."""
    file, config = request.data.validation, request.config
    if file is None:
        return None
    size = config.training.batch_size
    count = size * config.training.validation_batches
    windows = first_windows(file.open(), length=config.data.sequence_length, count=count)
    if not len(windows):
        return None
    batches = [windows[i : i + size] for i in range(0, len(windows), size)]
    return Validation(batches, text_bytes=vocabulary.text_bytes)


def _sample(request: Request, vocabulary: Vocabulary, model: nn.Module) -> str:
    """What the model writes after the first tokens of the validation data."""
    config = request.config
    file = request.data.validation or request.data.train
    return write_sample(
        model,
        vocabulary,
        prompt=file.open()[:_PROMPT_TOKENS].tolist(),
        context=config.data.sequence_length,
        seed=config.training.seed,
    )
