from pathlib import Path

import pytest

from trainyard.errors import ConfigError
from trainyard.run.directory import RunDirectory

ODD_NAMES = (
    "step-12",
    "best",
    ".step-00000011.tmp",
    *(f"step-{n}" for n in ("000000009", "\u0660" * 7 + "\u0669", "9" * 19)),
)


def test_names_are_those_of_the_contract(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "r")
    names = {p.relative_to(run.path).as_posix() for p in (run.run_file, run.config_file, run.metrics_file)}
    assert names == {"run.json", "config.yaml", "metrics.jsonl"}
    assert run.events_file.name == "events.jsonl"
    assert run.checkpoint(500) == run.path / "checkpoints" / "step-00000500"
    run.create()
    assert sorted(p.name for p in run.path.iterdir()) == ["checkpoints", "logs", "report", "tensorboard"]


def test_steps_are_listed_in_order_and_nothing_else_counts(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert run.checkpoint_steps() == []
    for name in ("step-00000010", "step-00000002", "step-123456789", *ODD_NAMES):
        (run.checkpoints / name).mkdir(parents=True)
    (run.checkpoints / "step-00000099").write_text("a file")
    assert run.checkpoint_steps() == [2, 10, 123456789]


@pytest.mark.parametrize("name", ["report", "checkpoints", "logs", "tensorboard"])
def test_a_file_in_the_place_of_a_folder_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(ConfigError, match=rf"/{name}: is a file and must be a folder"):
        RunDirectory(tmp_path).create()
