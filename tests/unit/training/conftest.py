"""A model and a corpus small enough that a complete training run takes a fraction of a second."""

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.training.lab import TINY, Lab, merge

from trainyard.config.schema import Config
from trainyard.training.checkpoint import writer_process
from trainyard.training.run import validation


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


@pytest.fixture(scope="session")
def stored_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which `Lab.once` keeps its runs."""
    return tmp_path_factory.mktemp("kept_runs")


@pytest.fixture
def lab(tmp_path: Path, tiny_config: Callable[..., Config], stored_runs: Path) -> Lab:
    return Lab(tmp_path, tiny_config, stored_runs)
