"""Nodes wait for data that take long to prepare, and stop within their grace period. CPU, gloo.

Two nodes in the environment of a JobSet. A module that Python imports first makes one of them slow.
"""

import json
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.integration.test_launchers import Nodes, environments
from tests.integration.trainer_runs import end_of
from tests.waiting import wait_for
from tests.warm_start import descendants, environment_of

ENDLESS = ("training.max_steps=100000", "training.lr_scheduler=constant")


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    result = Nodes(tmp_path)
    yield result
    result.end()


def slowed(nodes: Nodes, monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    """Let every worker import `module` first."""
    text = f"import os\nif 'LOCAL_RANK' in os.environ:\n    exec({module!r})\n"
    (nodes.folder / "sitecustomize.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(nodes.folder))


SLOW_DATA = """
import time
from trainyard.training.data import training_data
from trainyard.training.runtime import world
world._START_SECONDS = world.CONTROL_SECONDS = 15
ready_data = training_data.ready_data
def prepared(*given):
    if os.environ["RANK"] == "1":
        time.sleep(22)
        open({file!r}, "w").close()
    return ready_data(*given)
training_data.ready_data = prepared
"""
"""A machine prepares its data for longer than the processes wait to join, or for each other's messages."""


@pytest.mark.slow
def test_data_that_take_longer_to_prepare_than_the_join_may_take_are_waited_for(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    slowed(nodes, monkeypatch, SLOW_DATA.format(file=str(nodes.folder / "slept")))
    for code, errors in nodes.finish_all(environments("jobset"), run_dir="prepared"):
        assert code == 0, errors
    assert (nodes.folder / "slept").exists()
    assert nodes.record("prepared")["hardware"]["world_size"] == 2


SLOW_STEPS = """
import time
from trainyard.training.loop import Trainer
run, fsync = Trainer.step, os.fsync
def slow_run(self):
    if os.environ["RANK"] == "1":
        time.sleep(2)
    return run(self)
def slow_fsync(file):
    time.sleep(0.1)
    fsync(file)
Trainer.step, os.fsync = slow_run, slow_fsync
"""
"""One process has slow steps, and all have a slow disk."""


def rows_of(events: Path, kind: str) -> list[dict[str, Any]]:
    lines = events.read_text().splitlines() if events.exists() else []
    return [row for row in map(json.loads, lines) if row["event"] == kind]


def workers_of(node: "subprocess.Popen[str]") -> list[int]:
    return [pid for pid in descendants(node.pid) if "LOCAL_RANK" in environment_of(pid)]


@pytest.mark.slow
def test_every_rank_ends_with_75_and_the_launcher_gives_it_the_time_that_it_needs(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    slowed(nodes, monkeypatch, SLOW_STEPS)
    settings, folders = (*ENDLESS, "checkpointing.save_steps=2"), ["stopped"] * 2
    events = nodes.folder / "stopped" / "events.jsonl"
    both = nodes.start_all(environments("jobset"), *settings, run_dirs=folders, more=("--grace", "3s"))
    wait_for(lambda: rows_of(events, "grace_too_short"), "the notice", alive=both)
    (told,) = rows_of(events, "grace_too_short")
    saved = rows_of(events, "checkpoint_saved")[0]["complete_after_seconds"]
    assert (told["grace_seconds"], saved > 0.1) == (3.0, True)
    assert told["needed_seconds"] >= 2 + saved / 2 + 2, "the slowest step of any rank, a save, and the end"
    both[0].send_signal(signal.SIGTERM)
    for code, errors in map(end_of, both):
        assert code == 75, errors

    before = len(rows_of(events, "checkpoint_saved"))
    both = nodes.start_all(environments("jobset"), *settings, run_dirs=folders, more=("--grace", "90s"))
    wait_for(lambda: len(rows_of(events, "checkpoint_saved")) > before + 1, "two saves", alive=both)
    both[1].send_signal(signal.SIGTERM)
    for code, errors in map(end_of, both):
        assert code == 75, errors
    outcome = nodes.record("stopped")["outcome"]
    assert outcome["status"] == "stopped"
    assert outcome["grace_seconds_needed"] >= 2 + 2, "the slowest step counts though the first may not"

    record = nodes.folder / "stopped" / "run.json"
    slow = {**nodes.record("stopped"), "outcome": {**outcome, "grace_seconds_needed": 400.0}}
    record.write_text(json.dumps(slow))
    both = nodes.start_all(environments("jobset"), *settings, run_dirs=folders)
    for node in both:
        worker, *_ = wait_for(partial(workers_of, node), "a worker", alive=both)
        assert environment_of(worker)["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] == "600"
    wait_for(lambda: len(rows_of(events, "resumed")) > 1, "the resume", alive=both)
    both[0].send_signal(signal.SIGTERM)
    for code, errors in map(end_of, both):
        assert code == 75, errors
