"""A small run directory, and scripts run as people run them, outside any workflow of the machine."""

import importlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests import warm_start
from tests.answering import Answer, answering

from trainyard.artifacts.store.store_address import open_store
from trainyard.artifacts.upload.sync import sync_run
from trainyard.command import handler
from trainyard.commands import run_command
from trainyard.config.load import config_sha256, dump_yaml, load_config
from trainyard.run.atomic_files import sha256_of_file
from trainyard.run.checkpoint_manifest import CheckpointManifest, describe_files, write_manifest
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import write_identity, write_outcome
from trainyard.run.records import RecordWriter, append_event

ROOT = Path(__file__).resolve().parents[2]
RUN_ID = "20261120-214501-7c1f"
STEPS = 20
HEX = "0123456789abcdef" * 4
HIDDEN = ("GITHUB_", "SLACK_", "RUNNER_", "CI", "AWS_")
"""Beginnings of the variables that no test inherits."""
NO_ANSWER = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ACCESS_KEY_ID": "a", "AWS_MAX_ATTEMPTS": "1"}
NO_ANSWER["AWS_SECRET_ACCESS_KEY"] = "b"
"""Variables with which nobody answers as S3."""
Program = Callable[..., subprocess.CompletedProcess[str]]
Call = Callable[..., "Done"]


def load_script(name: str) -> Any:
    """Return the module `trainyard.commands.NAME`, for tests in this process."""
    return importlib.import_module(f"trainyard.commands.{name}")


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Runs `trainyard NAME` in the test's folder; keyword arguments are variables of its environment."""

    def run(name: str, *arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {key: value for key, value in os.environ.items() if not key.startswith(HIDDEN)}
        line = [sys.executable, "-m", "trainyard", *name.split(), *map(str, arguments)]
        done = warm_start.run(line, timeout=240, env=environment | variables, cwd=tmp_path)
        assert "Traceback" not in done.stderr
        return done

    return run


@dataclass(frozen=True)
class Done:
    """The end of a command that was called in this process, with the fields of a process."""

    returncode: int
    stdout: str
    stderr: str


def require_success(done: Done) -> Done:
    """Return the end of a command, whose exit code must be 0."""
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture
def called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Calls `trainyard NAME` as `program` does, but in this process, which takes no start."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(HIDDEN)]:
        monkeypatch.delenv(name)

    def call(name: str, *arguments: str | Path, **variables: str) -> Done:
        words = [*name.split(), *map(str, arguments)]
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["trainyard", *words])
            for variable, value in variables.items():
                patch.setenv(variable, value)
            code = handler.exit_code_of(lambda: run_command(words))
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err
        return Done(int(code), printed.out, printed.err)

    return call


@pytest.fixture
def serve_github() -> Iterator[Callable[[Answer], str]]:
    """Starts a server on the loopback interface instead of GitHub's API; returns its address."""
    with ExitStack() as held:
        yield lambda answer: held.enter_context(answering(answer))


@pytest.fixture
def finished_run(tmp_path: Path) -> RunDirectory:
    """A run that did all of its 20 steps, with two checkpoints, in `runs/<run id>`."""
    layout = RunDirectory(tmp_path / "runs" / RUN_ID)
    write_finished_run(layout, finished=time.time())
    return layout


@pytest.fixture
def store(finished_run: RunDirectory, tmp_path: Path) -> str:
    """The address of a store that has the finished run as number 7."""
    url = (tmp_path / "store").as_uri()
    sync_run(open_store(url), finished_run, 7)
    return url


def write_finished_run(
    layout: RunDirectory, *, steps: int = STEPS, saves: tuple[int, ...] = (10, STEPS), finished: float
) -> None:
    """Write the records and checkpoints of a run that did all of its steps; its id is its name."""
    layout.create()
    config = load_config(ROOT / "configs" / "smoke.yaml", [f"training.max_steps={steps}"]).config
    layout.config_file.write_text(dump_yaml(config))
    plan = {"steps": steps, "epochs": 0.5, "steps_per_epoch": 40}
    write_identity(layout.run_file, layout.path.name, provenance(config_sha256(config)) | {"plan": plan})
    append_event(layout.events_file, "started", step=0)
    writer = RecordWriter(layout.metrics_file)
    for step in range(1, steps + 1):
        writer.write({"step": step, "loss": 5.0 / step, "tokens": step * 4096, "tokens_per_second": 41_220.5})
    writer.close()
    saved = {step: save(layout, step) for step in saves}
    append_event(layout.events_file, "finished", step=steps, status="succeeded")
    outcome: dict[str, Any] = {"status": "succeeded", "exit_code": 0, "steps": steps, "first_loss": 5.0}
    outcome |= {"final_loss": 5.0 / steps, "seconds": 3.6, "finished": finished}
    outcome |= {"sample": "def f(x):\n    return x", "state_sha256": {"model": HEX, "optimizer": HEX}}
    checkpoint = {"step": steps, "manifest_sha256": saved[steps]}
    write_outcome(layout.run_file, outcome | {"checkpoint": checkpoint})


@pytest.fixture
def small_run(tmp_path: Path) -> RunDirectory:
    """The run `run-a` in `run`: its identity and one checkpoint, so four files to store."""
    layout = RunDirectory(tmp_path / "run")
    layout.create()
    write_identity(layout.run_file, "run-a", {})
    path = layout.checkpoint(100)
    path.mkdir()
    (path / "data").write_bytes(os.urandom(2000))
    write_manifest(path, CheckpointManifest(100, "run-a", time.time(), describe_files(path)))
    return layout


def provenance(config_digest: str) -> dict[str, Any]:
    known = {"config_sha256": config_digest, "lock_sha256": HEX, "seed": 42, "data": {"fingerprint": HEX}}
    git = {"commit": HEX[:40], "dirty": False, "branch": "main"}
    return {**known, "git": git, "hardware": {"device": "cpu", "world_size": 1}}


def save(layout: RunDirectory, step: int, *, recorded: bool = True) -> str:
    """Write a checkpoint, and its event if it is `recorded`; return the SHA-256 of its manifest."""
    path = layout.checkpoint(step)
    path.mkdir()
    (path / "state.bin").write_bytes(bytes([step]) * 5000)
    write_manifest(path, CheckpointManifest(step, layout.path.name, time.time(), describe_files(path)))
    digest = sha256_of_file(path / "manifest.json")
    if recorded:
        append_event(layout.events_file, "checkpoint_saved", step=step, manifest_sha256=digest)
    return digest
