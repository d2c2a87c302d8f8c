"""The part of a job that is left for storing: by size, by measured speed, and never more than half."""

import itertools
import json
import logging
from pathlib import Path

import pytest
from tests.cases import each_case

from trainyard.artifacts.store.store_address import open_store
from trainyard.artifacts.upload.sync import sync_run
from trainyard.run import storing_speed
from trainyard.run.checkpoint_manifest import CheckpointManifest, describe_files, write_manifest
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import write_identity
from trainyard.run.storing_speed import (
    checkpoint_bytes,
    deadline_for_storing,
    write_storing_speed,
)
from trainyard.run.storing_speed import storing_speed as speed_of

MINUTE, GB = 60.0, 10**9


@each_case(
    ("job", "size", "speed"), [*itertools.product((60, 355, 480), (GB, 20 * GB, 500 * GB), (20e6, 1e9))]
)
def test_the_deadline_leaves_time_to_store_and_at_least_half_of_the_job_to_train(
    job: int, size: int, speed: float, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_storing_speed(tmp_path, 10 * GB, 10 * GB / speed)
    planned = (job - 30) * MINUTE
    with caplog.at_level(logging.WARNING):
        deadline = deadline_for_storing(planned, tmp_path, size, {"TRAINYARD_JOB_MINUTES": str(job)})
    assert deadline is not None
    assert job * MINUTE / 2 <= deadline <= planned
    left = job * MINUTE - deadline
    assert left >= size / speed or deadline == job * MINUTE / 2
    assert (deadline < planned) == ("measured on this machine" in caplog.text)


@pytest.mark.parametrize(("follow", "is_advised"), [("true", False), ("false", True)])
def test_storing_during_training_is_advised_only_where_it_is_off(
    follow: str, is_advised: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_storing_speed(tmp_path, 10 * GB, 500.0)
    environment = {"TRAINYARD_JOB_MINUTES": "60", "TRAINYARD_FOLLOW": follow}
    with caplog.at_level(logging.WARNING):
        deadline_for_storing(50 * MINUTE, tmp_path, 20 * GB, environment)
    assert ("TRAINYARD_FOLLOW=true" in caplog.text) == is_advised


@each_case(
    ("deadline", "minutes", "content"),
    [
        (None, "480", '{"bytes_per_second": 1000}'),
        (450.0, "", '{"bytes_per_second": 1000}'),
        (450.0, "0", '{"bytes_per_second": 1000}'),
        (450.0, "eight", '{"bytes_per_second": 1000}'),
        *((450.0, "480", content) for content in ("", "{}", "[]", '{"bytes_per_second": 0}', "\xff", "null")),
        (450.0, "480", '{"bytes_per_second": "fast"}'),
    ],
)
def test_without_what_it_follows_from_the_deadline_stays(
    deadline: float | None, minutes: str, content: str, tmp_path: Path
) -> None:
    (tmp_path / storing_speed.FILE).write_text(content)
    assert deadline_for_storing(deadline, tmp_path, GB, {"TRAINYARD_JOB_MINUTES": minutes}) == deadline


def test_a_small_upload_measures_nothing(tmp_path: Path) -> None:
    write_storing_speed(tmp_path, 1_000_000, 1.0)
    assert speed_of(tmp_path) is None
    write_storing_speed(tmp_path / "missing", GB, 1.0)


def test_a_sync_measures_only_when_it_sends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storing_speed, "_LEAST_BYTES", 1000)
    directory = RunDirectory(tmp_path / "runs" / "run")
    directory.create()
    write_identity(directory.run_file, "run-1", {"git": {"commit": "3f2c1ab" * 5}})
    directory.config_file.write_text("artifacts:\n  store: null\n")
    checkpoint = directory.checkpoint(5)
    checkpoint.mkdir()
    (checkpoint / "weights").write_bytes(bytes(100_000))
    write_manifest(checkpoint, CheckpointManifest(5, "any", 1.0, describe_files(checkpoint)))
    store = open_store(f"file://{tmp_path}/store", encryption="none", call_seconds=5)
    file = directory.path.parent / storing_speed.FILE

    report = sync_run(store, directory, 1)
    assert 100_000 <= report.sent_bytes <= report.bytes
    assert json.loads(file.read_text()) == {"bytes_per_second": round(report.sent_bytes / report.seconds)}
    assert checkpoint_bytes(directory.path) >= 100_000
    file.unlink()
    again = sync_run(store, directory, 1)
    assert again.sent_bytes == 0
    assert not file.exists()
