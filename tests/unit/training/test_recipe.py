"""A second recipe, planted by one registration, trains through the lifecycle of the first."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from trainyard.config.json_schema import _whole_schema, configuration_schema
from trainyard.config.load import load_config
from trainyard.config.registries import COMMAND, OPTIMIZERS, PRESETS, RECIPES, OptimizerEntry, RecipeEntry
from trainyard.config.schema import Config, TrainingConfig
from trainyard.errors import ConfigError, IncompatibleCheckpointError, StoppedError, TrainingFailedError
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import read_run
from trainyard.run.progress import Progress
from trainyard.run.records import Row, read_rows
from trainyard.training.checkpoint.resume import values_to_fit
from trainyard.training.checkpoint.training_state import TrainingState
from trainyard.training.model.optimizer import build_optimizer, learning_rate, set_learning_rate
from trainyard.training.recipe import ready_data, rehearse, trainer_of
from trainyard.training.run.length import RunLength
from trainyard.training.run.recipe_contract import Recipe, RecipeSegment
from trainyard.training.run.run_context import RunContext
from trainyard.training.run.run_request import Request
from trainyard.training.run.step_loop import StepLoop, ValidationResult
from trainyard.training.runtime.stop_signals import StopRequest

SAMPLES = 8
STOP_AT: list[int] = []
"""The steps whose validation a test interrupts."""


class Numbers:
    """Data of a recipe: pairs of `x` and `3 x + 1`, a pure function of the step."""

    name = "points on a line"
    fingerprint = hashlib.sha256(b"3 x + 1").hexdigest()

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "fingerprint": self.fingerprint}

    def pinned_config(self, config: Config) -> Config:
        return config

    def batch(self, step: int) -> torch.Tensor:
        return torch.rand((SAMPLES, 1), generator=torch.Generator().manual_seed(step))


class LineSegment(RecipeSegment):
    """Fits a line to the points."""

    sampling = "writing the line"

    def __init__(self, request: Request[Numbers]) -> None:
        self._config, self._data = request.config, request.data
        steps = request.config.training.max_steps or 0
        self.length = RunLength(steps, None, None, SAMPLES, SAMPLES)

    def fits(self, fingerprint: str) -> dict[str, Any]:
        return values_to_fit(self._config, fingerprint, SAMPLES) | {"recipe": "line"}

    def starting_weights(self, point: object) -> None: ...

    def build(self, weights: object, *, device: torch.device, **_: Any) -> TrainingState:
        assert weights is None
        model = nn.Linear(1, 1).to(device)
        nn.init.zeros_(model.weight)
        return TrainingState(model, build_optimizer(model, self._config.training))

    def train(self, context: RunContext, loop: StepLoop) -> None:
        loop.run(
            lambda: self._step(context, loop),
            validate=lambda stop_reason: self._validate(context, stop_reason),
        )

    def _step(self, context: RunContext, loop: StepLoop) -> Row:
        state = context.state
        x = self._data.batch(state.step)
        loss = (state.model(x) - (3 * x + 1)).square().mean()
        loss.backward()
        rate = learning_rate(state.step, self.length.steps, self._config.training)
        set_learning_rate(state.optimizer, rate)
        loop.saver.wait_until_staged()
        state.optimizer.step()
        state.optimizer.zero_grad(set_to_none=True)
        state.step += 1
        return {"step": state.step, "loss": loss.item(), "learning_rate": rate}

    def _validate(
        self, context: RunContext, stop_reason: Callable[[], str | None]
    ) -> ValidationResult | None:
        if context.state.step in STOP_AT:
            context.stop.reason = "requested by the test"
            STOP_AT.clear()
        if stop_reason():
            return None
        return ValidationResult(line_of(context).weight.item(), None)

    def sample(self, context: RunContext) -> str:
        return f"{line_of(context).weight.item():.1f} x + {line_of(context).bias.item():.1f}"


def line_of(context: RunContext) -> nn.Linear:
    assert isinstance(context.state.model, nn.Linear)
    return context.state.model


class Line(Recipe):
    """A recipe of one module."""

    def ready_data(self, config: Config, progress: Progress) -> Numbers:
        return Numbers()

    def open(self, request: Request[Numbers], *, processes: int) -> LineSegment:
        return LineSegment(request)


RECIPE = Line()


class RecordingListener:
    """A listener that records rows and events, and requests a stop after a step."""

    def __init__(self, stop: StopRequest | None = None, stop_after: int | None = None) -> None:
        self.events: list[str] = []
        self.works: list[str] = []
        self._stop, self._stop_after = stop, stop_after

    def on_row(self, row: Row) -> None:
        if self._stop and row["step"] == self._stop_after:
            self._stop.reason = "requested by the test"

    def on_event(self, event: str, fields: dict[str, Any]) -> None:
        if event == "working":
            self.works.append(fields["what"])
        else:
            self.events.append(event)


@pytest.fixture(autouse=True)
def _registered_recipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Register the recipe by one line."""
    monkeypatch.setitem(RECIPES, "line", RecipeEntry(__name__, "a line through points"))
    _whole_schema.cache_clear()
    yield
    _whole_schema.cache_clear()


@pytest.fixture
def line_config(tiny_config: Callable[..., Config]) -> Callable[..., Config]:
    return lambda **changes: tiny_config(recipe="line", **changes)


def train(
    config: Config, path: Path, *, stop: StopRequest | None = None, listener: RecordingListener | None = None
) -> Any:
    request = Request(config, RunDirectory(path), ready_data(config), "auto", f"id-of-{path.name}", {})
    return trainer_of(config)(request, stop=stop or StopRequest(), listener=listener or RecordingListener())


def rows(path: Path) -> list[tuple[Any, ...]]:
    found = read_rows(RunDirectory(path).metrics_file)
    return [(row["step"], row["loss"], row["learning_rate"], row.get("val_loss")) for row in found]


def test_a_planted_recipe_keeps_the_contract_of_the_run_directory(
    line_config: Callable[..., Config], tmp_path: Path
) -> None:
    listener = RecordingListener()
    outcome = train(line_config(), tmp_path / "run", listener=listener)
    directory = RunDirectory(tmp_path / "run")
    run = read_run(directory.run_file)
    assert run["recipe"] == "line"
    assert run["data"] == Numbers().to_json()
    assert (run["plan"]["steps"], run["plan"]["parameters"]) == (12, 2)
    assert (outcome["status"], outcome["steps"], outcome["checkpoint"]["step"]) == ("succeeded", 12, 12)
    assert outcome["tokens"] == 12 * SAMPLES
    assert outcome["sample"].count("x +") == 1
    assert [row[0] for row in rows(directory.path)] == list(range(1, 13))
    assert [row[0] for row in rows(directory.path) if row[3] is not None] == [5, 10, 12]
    assert directory.checkpoint_steps() == [8, 12]
    assert listener.events[0] == "started"
    assert {"finding the checkpoint", "building the model", "writing the line"} <= set(listener.works)
    again = RecordingListener()
    assert train(line_config(), tmp_path / "run", listener=again) == outcome
    assert again.events == ["finished_before"]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_planted_recipe_that_was_stopped_and_resumed_is_the_same_run(
    mode: str, line_config: Callable[..., Config], tmp_path: Path
) -> None:
    config = line_config(checkpointing={"mode": mode})
    uninterrupted = train(config, tmp_path / "uninterrupted")
    stop = StopRequest()
    with pytest.raises(StoppedError, match=r"Stopped at step 3 of 12.*step-00000003 is complete"):
        train(config, tmp_path / "cut", stop=stop, listener=RecordingListener(stop, 3))
    STOP_AT.append(10)
    with pytest.raises(StoppedError, match="Stopped at step 10 of 12"):
        train(config, tmp_path / "cut")
    assert rows(tmp_path / "cut")[-1][0] == 9, "the row of an interrupted validation is written later"
    resumed = train(config, tmp_path / "cut")
    assert resumed["state_sha256"] == uninterrupted["state_sha256"]
    assert rows(tmp_path / "cut") == rows(tmp_path / "uninterrupted")


def test_a_planted_recipe_is_refused_what_the_others_are(
    line_config: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    infinite = ValidationResult(float("inf"), None)
    monkeypatch.setattr(LineSegment, "_validate", lambda *_: infinite)
    with pytest.raises(TrainingFailedError, match="Step 5: the validation loss, inf, is not finite"):
        train(line_config(), tmp_path / "run")
    assert read_run(RunDirectory(tmp_path / "run").run_file)["outcome"]["status"] == "failed"


def build(model: nn.Module, training: TrainingConfig) -> torch.optim.Optimizer:
    """Build a planted optimizer."""
    return torch.optim.SGD(model.parameters(), lr=training.learning_rate)


def test_a_checkpoint_of_another_optimizer_is_refused_by_name(
    line_config: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(OPTIMIZERS, "sgd", OptimizerEntry(__name__, "gradient descent", 0, "no state"))
    train(line_config(training={"max_steps": 4}), tmp_path / "run")
    config = line_config(training={"max_steps": 8, "optimizer": "sgd"})
    with pytest.raises(IncompatibleCheckpointError, match=r"training\.optimizer: the checkpoint has None"):
        train(config, tmp_path / "run")
    assert train(config, tmp_path / "other")["status"] == "succeeded"


def test_a_planted_recipe_is_rehearsed(line_config: Callable[..., Config], tmp_path: Path) -> None:
    config, directory = line_config(), RunDirectory(tmp_path / "none")
    plan = rehearse(config, lambda data: Request(config, directory, data, "auto", "id", {}))
    assert (plan["plan"]["steps"], plan["resumes"], plan["data"]["name"]) == (12, None, Numbers.name)
    assert not directory.path.exists()


def test_the_registration_is_all_that_the_configuration_needs(tmp_path: Path) -> None:
    schema = configuration_schema()["properties"]["recipe"]
    assert schema["enum"] == ["pretrain", "line", COMMAND, *PRESETS]
    assert "; line: a line through points; " in schema["description"]
    file = tmp_path / "line.yaml"
    file.write_text("recipe: line\nmodel: {name: x}\ntraining: {max_steps: 5}\n")
    assert load_config(file).config.recipe == "line"
    file.write_text("recipe: lines\nmodel: {name: x}\ntraining: {max_steps: 5}\n")
    with pytest.raises(ConfigError, match=r'expected one of pretrain, line, .*, got "lines"'):
        load_config(file)
