"""Trackers that fail: each is dropped with one warning, and no run notices."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainyard.config.schema import Config, MonitoringConfig
from trainyard.errors import StoppedError
from trainyard.run.directory import RunDirectory
from trainyard.training import trackers
from trainyard.training.trackers import GuardedTracker, close_trackers, open_trackers

ROW = {"step": 1, "loss": 2.0, "time": 3.0}


class Failing:
    """A tracker that fails in what is named, and counts how often it was asked."""

    def __init__(self, *failing: str, error: type[BaseException] = OSError) -> None:
        self._failing, self._error = failing, error
        self.calls: list[str] = []

    def write(self, _row: dict[str, Any]) -> None:
        self._called("write")

    def close(self) -> None:
        self._called("close")

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name in self._failing:
            raise self._error("disk full")


def test_a_tracker_that_fails_to_write_is_dropped_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    failing, whole = Failing("write"), Failing()
    both = [GuardedTracker("Failing", lambda: failing), GuardedTracker("Whole", lambda: whole)]
    for tracker in (*both, *both):
        tracker.write(ROW)
    close_trackers(both)
    assert failing.calls == ["write"]
    assert whole.calls == ["write", "write", "close"]
    assert [record.getMessage() for record in caplog.records] == [
        "Failing failed (disk full); training goes on without it"
    ]


def test_a_tracker_that_fails_to_close_does_not_keep_the_others_open(
    caplog: pytest.LogCaptureFixture,
) -> None:
    whole = Failing()
    close_trackers([GuardedTracker("A", lambda: Failing("close")), GuardedTracker("B", lambda: whole)])
    assert whole.calls == ["close"]
    assert caplog.text.count("A failed (disk full)") == 1


def test_a_bug_in_a_tracker_is_not_hidden() -> None:
    tracker = GuardedTracker("Buggy", lambda: Failing("write", error=ZeroDivisionError))
    with pytest.raises(ZeroDivisionError):
        tracker.write(ROW)


def test_a_second_ctrl_c_is_not_hidden() -> None:
    tracker = GuardedTracker("Slow", lambda: Failing("close", error=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        tracker.close()


def test_a_tensorboard_folder_that_cannot_be_written_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "tensorboard").write_text("in the way")
    opened = open_trackers(MonitoringConfig(), RunDirectory(tmp_path), run_id="r", resumed_at=0)
    for _ in range(2):
        for tracker in opened:
            tracker.write(ROW)
    close_trackers(opened)
    assert len(caplog.records) == 1
    assert "TensorBoard failed" in caplog.text
    assert str(tmp_path / "tensorboard") in caplog.text


def test_a_mode_that_wandb_does_not_know_drops_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WANDB_MODE", "bogus")
    config = MonitoringConfig.model_validate({"tensorboard": False, "wandb": {"enabled": True}})
    for tracker in open_trackers(config, RunDirectory(tmp_path), run_id="r", resumed_at=0):
        tracker.write(ROW)
    assert caplog.text.count("W&B failed") == 1


# In a process of its own, because W&B keeps the dead service for the rest of the process.
SERVICE_DIES = """
import logging, os, pathlib, signal, subprocess, sys, time
from trainyard.config.schema import MonitoringConfig
from trainyard.run.directory import RunDirectory
from trainyard.training.trackers import close_trackers, open_trackers

logging.basicConfig(format="%(message)s")
config = MonitoringConfig.model_validate({"tensorboard": False, "wandb": {"enabled": True}})
opened = open_trackers(config, RunDirectory(pathlib.Path(sys.argv[1])), run_id="r", resumed_at=0)
opened[0].write({"step": 1, "loss": 2.0, "time": 3.0})
for _ in range(100):  # on a busy machine it may still be starting
    listed = subprocess.getoutput("ps -eww -o pid,ppid,args").splitlines()[1:]
    rows = [line.split(maxsplit=2) for line in listed]
    children = [row for row in rows if int(row[1]) == os.getpid()]
    if services := [row[0] for row in children if "wandb-core" in row[2]]:
        break
    time.sleep(0.1)
(service,) = services
os.kill(int(service), signal.SIGKILL)
for step in range(2, 200):
    opened[0].write({"step": step, "loss": 2.0, "time": 3.0})
close_trackers(opened)
print("the run goes on")
"""


def test_a_wandb_whose_service_dies_is_dropped(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    # A service that an earlier test left in the environment would be joined instead of one started.
    environment = {key: value for key, value in os.environ.items() if key != "WANDB_SERVICE"}
    done = subprocess.run(
        [sys.executable, "-c", SERVICE_DIES, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment | {"WANDB_MODE": "offline"},
    )
    assert done.stdout.strip() == "the run goes on", done.stderr
    assert done.stderr.count("W&B failed") == 1


def test_a_run_goes_on_without_a_tracker_that_fails(
    tiny_config: Callable[..., Config],
    run_training: Callable[..., dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trackers, "TensorBoardTracker", lambda *_: Failing("write"))
    outcome = run_training(tiny_config(monitoring={"tensorboard": True}, training={"max_steps": 3}))
    assert (outcome["status"], outcome["steps"]) == ("succeeded", 3)


def test_a_tracker_that_fails_to_close_does_not_replace_an_early_stop(
    tiny_config: Callable[..., Config],
    run_training: Callable[..., dict[str, Any]],
    stop_after: Callable[[int], dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trackers, "TensorBoardTracker", lambda *_: Failing("close"))
    with pytest.raises(StoppedError, match="step 2"):
        run_training(tiny_config(monitoring={"tensorboard": True}), **stop_after(2))
