"""The commands that are proposed can be pasted as they are."""

import os
import shlex
import sys
from pathlib import Path

import pytest

from trainyard.run.suggested_commands import (
    again_command,
    changed_command,
    is_command,
    made_by,
    resume_command,
    sync_command,
    trainyard_command,
)

NAMES = ["runs/a", "/mnt/my runs/it's; rm -rf $HOME", "--resume auto"]


@pytest.mark.parametrize("name", NAMES)
def test_a_directory_of_any_name_stays_one_word(name: str) -> None:
    config = ["trainyard", "train", "--config", f"{name}/config.yaml"]
    assert shlex.split(again_command(Path(name))) == config
    assert shlex.split(resume_command(Path(name))) == [*config, "--run-dir", name, "--resume", "auto"]


@pytest.mark.parametrize("name", NAMES)
def test_a_run_of_the_pipeline_resumes_with_it_and_with_the_store_it_was_given(name: str) -> None:
    run = ["trainyard", "run", "--store", "file:///my store/it's"]
    words = shlex.split(resume_command(Path(name), command_line=run))
    assert words == ["trainyard", "run", "--run-dir", name, *run[2:]]
    text = changed_command(Path(name), {"a.b": 1e-05, "c": 8}, command_line=run)
    settings = ["--set", "a.b=1e-05", "--set", "c=8"]
    assert shlex.split(text) == [*run[:2], "--config", f"{name}/config.yaml", *settings, *run[2:]]
    assert is_command(text)


def test_a_changed_run_is_one_of_its_own_that_can_begin_from_a_checkpoint() -> None:
    text = changed_command(Path("runs/a"), {"a.b": 0.5}, checkpoint=Path("runs/a/checkpoints/step-00000010"))
    words = shlex.split(text)
    assert words[-4:] == ["--set", "a.b=0.5", "--resume", "runs/a/checkpoints/step-00000010"]
    assert "--run-dir" not in words


def test_only_the_pipeline_names_the_command_that_started_a_run() -> None:
    words = {"": [], "rm -rf /": [], "trainyard run --store 'a b'": ["trainyard", "run", "--store", "a b"]}
    assert {text: made_by({"TRAINYARD_COMMAND_LINE": text}) for text in words} == words


def test_a_command_is_named_plainly_where_the_shell_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    assert trainyard_command("train") == "trainyard train"
    monkeypatch.delenv("VIRTUAL_ENV")
    monkeypatch.setattr(sys, "base_prefix", sys.prefix)
    assert trainyard_command("train") == "trainyard train"


@pytest.mark.parametrize("active", [None, "/another/environment"])
def test_the_path_of_the_command_is_named_where_its_environment_is_not_the_active_one(
    active: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.delenv("MAKELEVEL", raising=False)
    if active:
        monkeypatch.setenv("VIRTUAL_ENV", active)
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    tool = tmp_path / "my env" / "bin" / "trainyard"
    tool.parent.mkdir(parents=True)
    tool.touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(tool.with_name("python3.11")))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    assert trainyard_command("train") == "'my env/bin/trainyard' train"
    assert is_command(trainyard_command("train"))
    assert again_command(Path("r")) == "'my env/bin/trainyard' train --config r/config.yaml"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "trainyard").symlink_to(tool)  # as `uv tool install` does
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert trainyard_command("train") == "trainyard train"


def test_a_job_of_github_suggests_no_path_of_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert trainyard_command("train").endswith("/trainyard train")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert trainyard_command("train") == "trainyard train"


@pytest.mark.parametrize("text", ["restore r/config.yaml", "Run trainyard train again", "trainyard", ""])
def test_a_sentence_is_no_command(text: str) -> None:
    assert not is_command(text)


def test_a_sync_stays_one_command_whatever_the_names() -> None:
    words = shlex.split(sync_command("my runs/a", store="file:///my store", run_number=None))
    flags = ["--run-dir", "my runs/a", "--store", "file:///my store", "--run-number", "auto", "--once"]
    assert words == ["trainyard", "store", "sync", *flags]


@pytest.mark.parametrize("is_bare", [True, False])
def test_the_path_that_make_sets_for_itself_is_not_that_of_the_shell(
    is_bare: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.delenv("MAKELEVEL", raising=False)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    if not is_bare:
        monkeypatch.setenv("MAKELEVEL", "1")
    words = shlex.split(trainyard_command("config show"))
    assert words[1:] == ["config", "show"]
    assert (words[0] == "trainyard") is is_bare
