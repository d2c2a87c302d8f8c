"""A model and a corpus small enough that a complete training run takes a fraction of a second."""

import multiprocessing
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainyard.config.schema import Config
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import read_run
from trainyard.run.records import Row
from trainyard.training.checkpoint import writer_process
from trainyard.training.data.training_data import ready_data
from trainyard.training.loop import train
from trainyard.training.run import validation
from trainyard.training.run.run_request import Request
from trainyard.training.runtime.stop_signals import StopRequest

TINY: dict[str, Any] = {
    "model": {
        "name": "tiny",
        "device": "cpu",
        "architecture": {
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 32,
        },
    },
    "training": {
        "batch_size": 4,
        "learning_rate": 1e-2,
        "warmup_steps": 3,
        "max_steps": 12,
        "validation_steps": 5,
        "validation_batches": 2,
    },
    "compute": {"threads": 1},
    "data": {"sequence_length": 16},
    "checkpointing": {"save_steps": 4, "keep_last": 2},
    "monitoring": {"log_steps": 1, "tensorboard": False},
}


def merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in changes.items():
        nested = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merge(result[key], value) if nested else value
    return result


class Spy:
    """A listener that records rows and events, and can request a stop at a step."""

    def __init__(self, stop: StopRequest | None = None, stop_after: int | None = None) -> None:
        self.rows: list[Row] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.stop, self.stop_after = stop, stop_after

    def on_row(self, row: Row) -> None:
        self.rows.append(row)
        if self.stop and row["step"] == self.stop_after:
            self.stop.reason = "requested by the test"

    def on_event(self, event: str, fields: dict[str, Any]) -> None:
        if event != "working":  # which is displayed, not recorded
            self.events.append((event, fields))


@pytest.fixture(autouse=True)
def _writers_start_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork writer processes from one that has imported torch, instead of importing it for seconds in each."""
    multiprocessing.set_forkserver_preload([writer_process.__name__])
    monkeypatch.setattr(writer_process, "START_METHOD", "forkserver")


@pytest.fixture(autouse=True)
def _samples_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the text that a run generates at its end, which would take as long as its steps."""
    monkeypatch.setattr(validation, "_CHARACTERS", 30)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Sentences with a pattern to learn, in files of both halves."""
    folder = tmp_path / "corpus"
    for half, files in (("train", 6), ("validation", 2)):
        (folder / half).mkdir(parents=True)
        for number in range(files):
            lines = [f"the {number} cat sat on mat {line % 7}, and the dog ran.\n" for line in range(60)]
            (folder / half / f"{number}.txt").write_text("".join(lines))
    return folder


@pytest.fixture
def tiny_config(corpus: Path, tmp_path: Path) -> Callable[..., Config]:
    """Builds the tiny configuration with changes: `tiny_config(training={"max_steps": 3})`."""

    def build(**changes: Any) -> Config:
        data = {
            "train_path": str(corpus / "train"),
            "validation_path": str(corpus / "validation"),
            "prepared_directory": str(tmp_path / "prepared"),
        }
        return Config.model_validate(merge(merge(TINY, {"data": data}), changes))

    return build


@pytest.fixture
def run_training(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Trains in this process: `run_training(config, "name", resume=…)`, with fields of a Request as well."""

    def run(
        config: Config,
        name: str = "run",
        *,
        resume: str = "auto",
        listener: Spy | None = None,
        stop: StopRequest | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        directory = RunDirectory(tmp_path / name)
        data = ready_data(config.data, config.model)
        request = Request(config, directory, data, resume, f"id-of-{name}", {"version": "test"}, **fields)
        return train(request, stop=stop or StopRequest(), listener=listener or Spy())

    return run


@pytest.fixture(scope="session")
def stored_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which `train_once` keeps its runs."""
    return tmp_path_factory.mktemp("kept_runs")


@pytest.fixture
def train_once(
    tiny_config: Callable[..., Config],
    run_training: Callable[..., dict[str, Any]],
    stored_runs: Path,
    tmp_path: Path,
) -> Callable[[str], dict[str, Any]]:
    """Copies the finished run of the tiny configuration and returns its outcome: `train_once("name")`.

    The run is trained once a session, for tests of the work after training.
    """

    def train(name: str) -> dict[str, Any]:
        kept = stored_runs / name
        if not kept.exists():
            run_training(tiny_config(), name)
            shutil.copytree(tmp_path / name, kept)
        else:
            shutil.copytree(kept, tmp_path / name)
        outcome: dict[str, Any] = read_run(kept / "run.json")["outcome"]
        return outcome

    return train


@pytest.fixture
def stop_after() -> Callable[[int], dict[str, Any]]:
    """Arguments for `run_training` that stop the run after a step."""

    def arguments(step: int) -> dict[str, Any]:
        stop = StopRequest()
        return {"stop": stop, "listener": Spy(stop, step)}

    return arguments
