"""The commands that are proposed can be pasted as they are."""

import shlex
from pathlib import Path

import pytest

from trainyard.run.commands import again_command, resume_command

NAMES = ["runs/a", "/mnt/my runs/it's; rm -rf $HOME", "--resume auto"]


@pytest.mark.parametrize("name", NAMES)
def test_a_directory_of_any_name_stays_one_word(name: str) -> None:
    config = ["scripts/train.py", "--config", f"{name}/config.yaml"]
    assert shlex.split(again_command(Path(name))) == config
    assert shlex.split(resume_command(Path(name))) == [*config, "--run-dir", name, "--resume", "auto"]


@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_of_any_name_stays_one_word(name: str) -> None:
    checkpoint = Path(name) / "checkpoints" / "step-00000500"
    words = shlex.split(resume_command(Path(name), checkpoint=checkpoint))
    assert words[-4:] == ["--run-dir", name, "--resume", str(checkpoint)]
