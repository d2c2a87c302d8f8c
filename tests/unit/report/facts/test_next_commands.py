"""The suggested commands can be pasted into a shell unchanged."""

import shlex
import sys
from pathlib import Path

import pytest

from trainyard.report.facts import next_commands


@pytest.mark.parametrize("name", ["runs/a", "/mnt/my runs/it's; rm -rf $HOME"])
def test_a_directory_of_any_name_stays_one_word(name: str) -> None:
    assert shlex.split(next_commands.prove_command(Path(name)))[3] == name


def test_the_tensorboard_of_this_environment_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = tmp_path / ".venv" / "bin" / "tensorboard"
    monkeypatch.setattr(sys, "executable", str(program.with_name("python")))
    assert next_commands.tensorboard_command(Path("r"), run_id="x") == "tensorboard --logdir r/tensorboard"
    program.parent.mkdir(parents=True)
    program.touch()
    assert (
        next_commands.tensorboard_command(Path("r"), run_id="x")
        == ".venv/bin/tensorboard --logdir r/tensorboard"
    )
    monkeypatch.chdir("/")
    monkeypatch.setattr(Path, "cwd", lambda: Path("/elsewhere"))
    assert next_commands.tensorboard_command(Path("r"), run_id="x") == f"{program} --logdir r/tensorboard"
