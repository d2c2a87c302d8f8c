"""The run or checkpoint that is named for a wrong path, and that it exists."""

from pathlib import Path

import pytest

from trainyard.errors import ConfigError
from trainyard.run.checkpoint_manifest import MANIFEST_NAME
from trainyard.run.directory import RunDirectory
from trainyard.run.run_advice import checkpoint_advice, checkpoint_meant, require_run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name in ("20261120-1200-aaaa", "20261121-1200-bbbb", "20261122-1200-cccc", "20261123-1200-dddd"):
        run = RunDirectory(tmp_path / "runs" / name)
        run.checkpoint(100).mkdir(parents=True)
        (run.checkpoint(100) / MANIFEST_NAME).touch()
        (run.checkpoint(100) / "data").touch()
        run.checkpoint(200).mkdir()
        run.run_file.touch()
    return tmp_path / "runs"


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError, match="is not a run directory") as error:
        require_run(path)
    return str(error.value)


def test_the_run_that_was_meant_is_named(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for given, meant in {
        "20261120-1200-aaaa/checkpoints/step-00000100": "20261120-1200-aaaa",
        "20261120-1200-aaaa/run.json": "20261120-1200-aaaa",
        "20261122-1200-ccc": "20261122-1200-cccc",
        "other": "20261123-1200-dddd",
        "": "20261123-1200-dddd",
    }.items():
        assert meant in refusal(runs / given), given
        require_run(runs / meant)
    monkeypatch.chdir(runs)
    assert "the run 20261120-1200-aaaa; name" in refusal(Path("20261120-1200-aaaa/checkpoints"))


def test_without_a_run_the_command_that_makes_one_is_named(tmp_path: Path) -> None:
    empty = tmp_path / "folder" / "without runs"
    empty.mkdir(parents=True)
    for path in (empty, empty / "absent"):
        assert "`trainyard run` makes one" in refusal(path)


def test_the_steps_that_are_there_are_named(runs: Path, tmp_path: Path) -> None:
    run = RunDirectory(runs / "20261120-1200-aaaa")
    places = ("", "checkpoints", "checkpoints/step-00000300", "checkpoints/step-00000200")
    for given in (*places, "checkpoints/step-00000100/data"):
        assert checkpoint_meant(run.path / given) == (
            f"{run.path} has step 100; name one, such as {run.checkpoint(100)}"
        )
    (run.checkpoint(100) / MANIFEST_NAME).unlink()
    assert "--resume none starts at step 0" in checkpoint_advice(run.path)
    assert checkpoint_meant(tmp_path) is None
    assert checkpoint_advice(tmp_path).startswith("name a checkpoint")
