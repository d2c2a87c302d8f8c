"""The commands that are proposed can be pasted as they are."""

import os
import shlex
import subprocess
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

ROOT = Path(__file__).resolve().parents[3]
NAMES = ["runs/a", "/mnt/my runs/it's; rm -rf $HOME", "--resume auto"]


@pytest.mark.parametrize("name", NAMES)
def test_a_directory_of_any_name_stays_one_word(name: str) -> None:
    config = ["trainyard", "train", "--config", f"{name}/config.yaml"]
    assert shlex.split(again_command(Path(name))) == config
    assert shlex.split(resume_command(Path(name))) == [*config, "--run-dir", name, "--resume", "auto"]


@pytest.mark.parametrize("name", NAMES)
def test_a_run_that_make_started_goes_on_with_make_and_with_the_store_it_was_given(name: str) -> None:
    store = "STORE=file:///my store/it's"
    words = shlex.split(resume_command(Path(name), command_line=["make", store]))
    assert words == ["make", "resume", f"RUN_DIR={name}", store]
    text = changed_command(Path(name), {"a.b": 1e-05, "c": 8}, command_line=["make", store])
    assert shlex.split(text) == ["make", "train", f"CONFIG={name}/config.yaml", "SET=a.b=1e-05 c=8", store]
    assert is_command(text)


def test_a_changed_run_is_one_of_its_own_that_can_begin_from_a_checkpoint() -> None:
    text = changed_command(Path("runs/a"), {"a.b": 0.5}, checkpoint=Path("runs/a/checkpoints/step-00000010"))
    words = shlex.split(text)
    assert words[-4:] == ["--set", "a.b=0.5", "--resume", "runs/a/checkpoints/step-00000010"]
    assert "--run-dir" not in words


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, []),
        ({"TRAINYARD_COMMAND_LINE": "make "}, ["make"]),
        ({"TRAINYARD_COMMAND_LINE": "make 'STORE=s3://a/b c'"}, ["make", "STORE=s3://a/b c"]),
        ({"TRAINYARD_COMMAND_LINE": "rm -rf /"}, []),
        ({"TRAINYARD_COMMAND_LINE": "make 'STORE=open"}, []),
    ],
)
def test_only_make_can_say_that_make_started_a_run(given: dict[str, str], words: list[str]) -> None:
    assert made_by(given) == words


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
    monkeypatch.delenv("VIRTUAL_ENV")
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


def test_the_command_runs_in_a_shell_without_an_active_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.chdir(ROOT)
    line = f"{trainyard_command('config show')} --config configs/smoke.yaml"
    done = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


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


@pytest.mark.parametrize(("command_line", "is_bare"), [("trainyard run", True), ("make ", False)])
def test_the_path_that_make_sets_for_itself_is_not_that_of_the_shell(
    command_line: str, is_bare: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    monkeypatch.setenv("TRAINYARD_COMMAND_LINE", command_line)
    words = shlex.split(trainyard_command("config show"))
    assert words[1:] == ["config", "show"]
    assert (words[0] == "trainyard") is is_bare
