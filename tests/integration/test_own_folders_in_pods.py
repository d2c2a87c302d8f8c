"""Jobs whose pods share no volume: every pod is one `trainyard pod` with a folder of its own, and one store.

The pods run in the environment of a TrainJob, on loopback. CPU, gloo.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests import warm_start
from tests.integration.test_launchers import OURS, REPOSITORY_ROOT, Nodes, environments
from tests.waiting import wait_for
from tests.warm_start import descendants

NAME = "llama"
SETTINGS = (
    *("checkpointing.shared=false", "compute.strategy=fsdp", "compute.network=tcp"),
    *("training.max_steps=60", "checkpointing.save_steps=20", "training.lr_scheduler=constant"),
)


SLOW = """
import os, time
if "LOCAL_RANK" in os.environ and os.path.exists({file!r}):
    from trainyard.training.loop import Trainer
    run = Trainer.step
    def slow_run(self):
        time.sleep(0.5)
        return run(self)
    Trainer.step = slow_run
"""
"""Slow steps leave time to store and to kill during training."""


class Pods(Nodes):
    """The two pods of a job, started again as an operator does."""

    def pods(self, *more: str, grace: str = "60s") -> "list[subprocess.Popen[str]]":
        paths = (*self._settings, f"artifacts.store={self.store.as_uri()}")
        (self.folder / "sitecustomize.py").write_text(SLOW.format(file=str(self.slow)))
        words = [word for setting in (*paths, *SETTINGS, *more) for word in ("--set", setting)]
        clean = {name: value for name, value in os.environ.items() if not name.startswith((*OURS, "GITHUB_"))}
        begun: list[subprocess.Popen[str]] = []
        for rank, own in enumerate(environments("trainjob")):
            line = [sys.executable, "-m", "trainyard", "pod", *words, "--grace", grace]
            line += ["--config", f"{self.folder}/config.yaml", "--run-dir", str(self.pod(rank).absolute())]
            variables = {**clean, "CI": "true", "TRAINYARD_RUN_ID": NAME, **own}
            variables["PYTHONPATH"] = str(self.folder)
            one = subprocess.STDOUT
            begun.append(warm_start.start(line, stderr=one, cwd=REPOSITORY_ROOT, env=variables))
        self._started += begun
        return begun

    @property
    def slow(self) -> Path:
        """A file: the steps of workers that start while it exists are slow."""
        return self.folder / "slow"

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def pod(self, rank: int) -> Path:
        """The run directory of a pod, on its own disk."""
        return self.folder / f"pod-{rank}" / NAME

    def end(self) -> None:
        for process in self._started:
            kill(process)


def kill(process: "subprocess.Popen[str]") -> None:
    """End all processes of a pod at once, as the end of its node does."""
    if process.poll() is not None:
        return
    for pid in (*descendants(process.pid), process.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def ended(pods: "list[subprocess.Popen[str]]") -> list[tuple[int, str]]:
    said = [pod.communicate(timeout=600)[0] for pod in pods]
    return [(pod.returncode, text) for pod, text in zip(pods, said, strict=True)]


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    result = Pods(tmp_path)
    result.store.mkdir()
    result.slow.touch()
    yield result
    result.end()


def run_of(directory: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((directory / "run.json").read_text())
    return result


def events(directory: Path, kind: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]
    return [row for row in rows if row["event"] == kind]


def uninterrupted(nodes: Nodes) -> dict[str, Any]:
    """The outcome of the same training, never stopped, on nodes that share a folder."""
    shared = tuple(setting for setting in SETTINGS if not setting.startswith("checkpointing.shared"))
    for code, errors in nodes.finish_all(environments("trainjob"), *shared, run_dir="whole"):
        assert code == 0, errors
    result: dict[str, Any] = nodes.record("whole")["outcome"]
    return result


@pytest.mark.slow
def test_pods_that_are_killed_and_lose_their_disks_go_on_from_the_store_to_the_same_weights(
    pods: Pods,
) -> None:
    first = pods.pods()
    stored = (pods.store / "manifests" / "run-1-open-1.json").exists
    wait_for(stored, "a stored checkpoint", within=300, alive=first)
    for pod in first:
        kill(pod)
    ended(first)
    assert "outcome" not in run_of(pods.pod(0)), "it was killed in the middle"
    for rank in (0, 1):
        shutil.rmtree(pods.pod(rank).parent)

    pods.slow.unlink()
    for code, said in ended(pods.pods()):
        assert code == 0, said
    main, other = (pods.pod(rank) for rank in (0, 1))
    assert [row["step"] in (20, 40) for row in events(main, "resumed")] == [True]
    assert json.loads((main / "report" / "proof.json").read_text())["proven"] is True
    last = other / "checkpoints/step-00000060"
    assert {path.name for path in last.iterdir()} == {"manifest.json", "__1_0.distcp"}
    assert run_of(main)["outcome"]["state_sha256"] == uninterrupted(pods)["state_sha256"]
