"""The facts that decide the place of prepared tokens, and the files that a plan omits."""

import os
from pathlib import Path

import pytest

from trainyard.config.schema import ArchitectureConfig, DataConfig, ModelConfig
from trainyard.training.data.preparation import Preparation, plan_preparation

MODEL = ModelConfig(name="m", architecture=ArchitectureConfig(vocab_size=300))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Thirty files in `train/`."""
    (tmp_path / "train").mkdir()
    for number in range(30):
        (tmp_path / "train" / f"{number:02}.txt").write_text("text\n")
    return tmp_path


def plan(folder: Path, model: ModelConfig = MODEL, **changes: object) -> Preparation:
    paths = {"train_path": str(folder / "train"), "prepared_directory": str(folder / "prepared")}
    return plan_preparation(
        DataConfig.model_validate({**paths, "validation_fraction": 0.2, **changes}), model
    )


def test_what_affects_the_tokens_decides_the_folder(folder: Path) -> None:
    before = plan(folder).directory
    for change in ({"text_field": "body"}, {"bin_dtype": "uint32"}, {"validation_fraction": 0.5}):
        assert plan(folder, MODEL, **change).directory != before
    larger = ModelConfig(name="m", architecture=ArchitectureConfig(vocab_size=400))
    assert plan(folder, larger).directory != before, "tokens are checked against the vocabulary"
    os.utime(folder / "train" / "00.txt", ns=(1, 1))
    assert plan(folder).directory != before


def test_settings_that_do_not_affect_the_tokens_keep_the_folder(folder: Path) -> None:
    renamed = ModelConfig(name="another", architecture=ArchitectureConfig(vocab_size=300, num_layers=3))
    assert plan(folder, renamed, sequence_length=32).directory == plan(folder).directory


def test_with_validation_of_its_own_nothing_is_held_out(folder: Path) -> None:
    (folder / "validation.txt").write_text("text\n")
    both = plan(folder, validation_path=str(folder / "validation.txt"))
    assert len(both.train) == 30
    assert [file.relative for file in both.validation] == ["validation.txt"]


def test_a_home_folder_and_a_relative_path_are_understood(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.chdir(folder)
    names = [file.relative for file in plan(folder).train]
    for path in ("~/train", "train", "./train/"):
        assert [file.relative for file in plan(folder, train_path=path).train] == names
