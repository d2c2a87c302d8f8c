"""Trackers that fail: each is dropped with one warning, and no run notices; what the others recorded."""

import json
import os
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests import warm_start
from tests.unit.training.lab import Lab

from trainyard.config.schema import Config
from trainyard.errors import StoppedError
from trainyard.run.directory import RunDirectory
from trainyard.training.run import trackers
from trainyard.training.run.trackers import (
    Tracker,
    Trackers,
    close_in_time,
    is_still_closing,
    open_tensorboard,
    tag_of,
    use_trackers,
)
from trainyard.training.runtime.stop_signals import StopRequest
from trainyard.training.runtime.world import ALONE

ROW = {"step": 1, "loss": 2.0, "time": 3.0}
WANDB_ONLY = {"tensorboard": False, "wandb": {"enabled": True}}


def context_of(monitoring: dict[str, Any], folder: Path, resumed_at: int = 0) -> Any:
    """What a tracker reads of the context of a run."""
    config = Config.model_validate(
        {"model": {"name": "m"}, "training": {"max_steps": 1, "seed": 4711}, "monitoring": monitoring}
    )
    return SimpleNamespace(
        config=config,
        directory=RunDirectory(folder),
        run_id="r",
        state=SimpleNamespace(step=resumed_at),
        world=ALONE,
        stop=StopRequest(),
    )


class FailingTracker:
    """A tracker that fails in the named methods, and records the calls."""

    def __init__(self, *failing: str, error: type[BaseException] = OSError) -> None:
        self._failing, self._error = failing, error
        self.calls: list[str] = []

    def open(self) -> Tracker:
        return Tracker(lambda _row: self._record_call("write"), lambda: self._record_call("close"))

    def _record_call(self, name: str) -> None:
        self.calls.append(name)
        if name in self._failing:
            raise self._error("disk full")


def test_a_tracker_that_fails_is_dropped_and_the_others_continue(caplog: pytest.LogCaptureFixture) -> None:
    def refuse() -> Tracker:
        raise OSError("disk full")

    failing, closing, healthy = FailingTracker("write"), FailingTracker("close"), FailingTracker()
    both = Trackers({"D": refuse, "A": failing.open, "B": closing.open, "C": healthy.open})
    for _ in range(2):
        both.write(ROW)
    both.close()
    assert failing.calls == ["write"]
    assert healthy.calls == closing.calls == ["write", "write", "close"]
    assert [record.getMessage() for record in caplog.records] == [
        f"{name} failed (disk full); training continues without it" for name in "DAB"
    ]


@pytest.mark.slow
def test_tensorboard_draws_the_rows_of_the_segment_that_resumed(tmp_path: Path) -> None:
    """Rows of a killed segment after its checkpoint of step 2 must not appear beside their replacements."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    directory = RunDirectory(tmp_path)
    for resumed_at, loss in ((0, 5.0), (2, 3.0)):
        tracker = open_tensorboard(context_of({}, tmp_path, resumed_at))
        for step in range(resumed_at + 1, resumed_at + 5):
            tracker.write({"step": step, "loss": loss, "val_loss": loss + 1, "time": 1.0})
        tracker.close()
        time.sleep(1.1)  # TensorBoard orders files of one second by a number that it compares as text
    reader = EventAccumulator(str(directory.tensorboard))
    reader.Reload()
    tags = reader.Tags()["scalars"]
    found = {tag: [(event.step, event.value) for event in reader.Scalars(tag)] for tag in tags}
    steps = [(1, 5.0), (2, 5.0), (3, 3.0), (4, 3.0), (5, 3.0), (6, 3.0)]
    assert found == {"train/loss": steps, "validation/loss": [(step, value + 1) for step, value in steps]}


def test_tags_are_grouped() -> None:
    tags = ("train/loss", "train/grad_norm", "perf/mfu", "perf/samples_per_second", "perf/gpu_memory_bytes")
    for tag in (*tags, "perf/memory_peak_bytes", "time/step_seconds", "time/data_seconds"):
        assert tag_of(tag.partition("/")[2]) == tag
    assert tag_of("val_bits_per_byte") == "validation/bits_per_byte"


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_a_bug_and_a_second_ctrl_c_are_not_hidden(error: type[BaseException]) -> None:
    trackers = Trackers({"Buggy": FailingTracker("close", error=error).open})
    with pytest.raises(error):
        trackers.close()


def test_a_tensorboard_folder_that_cannot_be_written_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "tensorboard").write_text("in the way")
    context = context_of({}, tmp_path)
    with use_trackers(context) as opened:
        for _ in range(2):
            opened.write(ROW)
    assert len(caplog.records) == 1
    assert "TensorBoard failed" in caplog.text
    assert str(tmp_path / "tensorboard") in caplog.text


# In a process of its own, because W&B keeps the dead service for the rest of the process.
SERVICE_DIES = """
import logging, os, pathlib, signal, subprocess, sys, time
from tests.unit.training.run.test_trackers import WANDB_ONLY, context_of
from trainyard.training.run.trackers import use_trackers

logging.basicConfig(format="%(message)s")
context = context_of(WANDB_ONLY, pathlib.Path(sys.argv[1]))
use = use_trackers(context)
opened = use.__enter__()
opened.write({"step": 1, "loss": 2.0, "time": 3.0})
for _ in range(1200):  # on a busy machine it may still be starting
    listed = subprocess.getoutput("ps -eww -o pid,ppid,args").splitlines()[1:]
    rows = [line.split(maxsplit=2) for line in listed]
    children = [row for row in rows if int(row[1]) == os.getpid()]
    if services := [row[0] for row in children if "wandb-core" in row[2]]:
        break
    time.sleep(0.1)
(service,) = services
os.kill(int(service), signal.SIGKILL)
for step in range(2, 200):
    opened.write({"step": step, "loss": 2.0, "time": 3.0})
use.__exit__(None, None, None)
print("the run continues")
"""


@pytest.mark.process
def test_a_wandb_whose_service_dies_is_dropped(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    # W&B would join a service that an earlier test left in the environment, instead of starting one.
    environment = {key: value for key, value in os.environ.items() if key != "WANDB_SERVICE"}
    (tmp_path / "train.py").write_text(SERVICE_DIES)
    done = warm_start.run(
        [sys.executable, tmp_path / "train.py", tmp_path],
        timeout=240,
        env=environment | {"WANDB_MODE": "offline", "PYTHONPATH": str(Path(__file__).resolve().parents[4])},
    )
    assert done.stdout.strip() == "the run continues", done.stderr
    assert done.stderr.count("W&B failed") == 1


def test_a_tracker_that_fails_to_close_hides_no_early_stop(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "open_tensorboard", lambda _: FailingTracker("close").open())
    with pytest.raises(StoppedError, match="step 2"):
        lab.run(lab.config(monitoring={"tensorboard": True}), **lab.stop_after(2))


def test_trackers_that_take_too_long_are_left_in_the_grace_period(caplog: pytest.LogCaptureFixture) -> None:
    """The end of the process must not wait for them either."""
    go_on, closed = threading.Event(), list[str]()

    class SlowTracker:
        def close(self) -> None:
            go_on.wait(60)
            closed.append("slow")

    kinds: Any = {"Slow": SlowTracker}
    slow = Trackers(kinds)
    start = time.monotonic()
    close_in_time(slow, 0.1)
    assert time.monotonic() - start < 30
    assert is_still_closing()
    assert "not closed within the grace period" in caplog.text
    go_on.set()
    while is_still_closing() and time.monotonic() - start < 60:
        time.sleep(0.01)
    close_in_time(slow, 30)
    assert closed == ["slow", "slow"]
    assert not is_still_closing()


def records_of(file: Path) -> list[Any]:
    """Every record, once the last one is there: W&B's own process may write it after the run finished."""
    ends = time.monotonic() + 60
    records = _readable_records(file)
    while not any(each.HasField("exit") for each in records):
        assert time.monotonic() < ends, f"{file}: {len(records)} records, and none is the end of the run"
        time.sleep(0.1)
        records = _readable_records(file)
    return records


def _readable_records(file: Path) -> list[Any]:
    from wandb.proto import wandb_internal_pb2 as messages
    from wandb.sdk.internal.datastore import DataStore

    store: Any = DataStore()
    records: list[Any] = []
    store.open_for_scan(str(file))
    while (data := store.scan_data()) is not None:
        record = messages.Record()  # type: ignore[attr-defined]  # generated when it is imported
        record.ParseFromString(data)
        records.append(record)
    store.close()
    return records


def test_wandb_reads_the_rows_logged_offline(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    config = lab.config(training={"seed": 4711}, monitoring={"wandb": {"enabled": True, "project": "p"}})
    lab.run(config)
    (path,) = (lab.folder / "run" / "logs").rglob("run-id-of-run.wandb")
    losses: dict[int, float] = {}
    configured: dict[str, str] = {}
    for record in records_of(path):
        configured |= {u.key: u.value_json for u in (*record.config.update, *record.run.config.update)}
        items = {item.key or ".".join(item.nested_key): item.value_json for item in record.history.item}
        if "loss" in items:
            losses[int(items["_step"])] = float(items["loss"])
    rows = lab.rows()
    assert losses == {row["step"]: row["loss"] for row in rows}
    assert json.loads(configured["training"])["seed"] == 4711
