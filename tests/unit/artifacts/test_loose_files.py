"""The functions of source document 004, on a local store."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from trainyard.artifacts import loose_files
from trainyard.artifacts.store import Store, read_object
from trainyard.artifacts.verify import Depth, verify_run
from trainyard.errors import ConfigError, RunConflictError
from trainyard.run.files import sha256_of_file

CI: dict[str, Any] = {"ci": {"run_id": "1234"}, "git": {"commit": "3f2c1ab"}}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "checkpoints" / "latest.pt"
    path.parent.mkdir()
    path.write_bytes(os.urandom(5000))
    return path


@pytest.fixture
def metrics(tmp_path: Path) -> Path:
    path = tmp_path / "metrics.json"
    path.write_text('{"loss": 1.08}')
    return path


def sync(store: Store, checkpoint: Path, metrics: Path, number: int | None = 42, **facts: Any) -> Any:
    return loose_files.sync_files(store, checkpoint, metrics, number, provenance=facts)


def test_a_checkpoint_file_and_its_metrics_become_a_verified_run(
    store: Store, folder: Path, checkpoint: Path, metrics: Path
) -> None:
    report = sync(store, checkpoint, metrics, **CI)
    assert (report.run_id, report.sent, report.problems) == ("github-1234", 2, ())
    assert (folder / "run-42/checkpoint/latest.pt").read_bytes() == checkpoint.read_bytes()
    assert json.loads((folder / "metrics/metrics-42.json").read_text())["rows"] == [{"loss": 1.08}]
    assert verify_run(store, 42, depth=Depth.FULL).ok


def test_a_directory_with_a_manifest_goes_by_its_step(store: Store, make_run: Any, metrics: Path) -> None:
    run = make_run(steps=(500,))
    report = sync(store, run.checkpoint(500), metrics)
    assert report.run_id == "run-run"
    assert store.describe("run-42/checkpoint-500/manifest.json") is not None
    assert verify_run(store, 42, depth=Depth.FULL).ok


def test_a_directory_without_one_goes_whole(store: Store, checkpoint: Path, metrics: Path) -> None:
    sync(store, checkpoint.parent, metrics)
    assert store.describe("run-42/checkpoint/latest.pt") is not None


def test_the_same_workflow_run_goes_on_and_another_is_refused(
    store: Store, checkpoint: Path, metrics: Path
) -> None:
    sync(store, checkpoint, metrics, **CI)
    checkpoint.write_bytes(os.urandom(5000))
    assert sync(store, checkpoint, metrics, **CI).manifest_key.endswith("-2.json")
    with pytest.raises(RunConflictError):
        sync(store, checkpoint, metrics, ci={"run_id": "99"})


def test_outside_a_workflow_the_content_is_the_run(store: Store, checkpoint: Path, metrics: Path) -> None:
    assert sync(store, checkpoint, metrics, None).run_number == 1
    assert sync(store, checkpoint, metrics, None).sent == 0
    checkpoint.write_bytes(os.urandom(5000))
    assert sync(store, checkpoint, metrics, None).run_number == 2


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ('{"step": 1}\n{"step": 2}\n{"st', [{"step": 1}, {"step": 2}]),
        ('[{"step": 1}]', [{"step": 1}]),
        ('{"rows": [{"step": 3}]}', [{"step": 3}]),
    ],
)
def test_metrics_come_in_three_forms(
    store: Store, folder: Path, checkpoint: Path, metrics: Path, text: str, rows: list[Any]
) -> None:
    metrics.write_text(text)
    sync(store, checkpoint, metrics)
    assert json.loads((folder / "metrics/metrics-42.json").read_text())["rows"] == rows


def test_a_file_that_is_not_there_is_a_usage_error(store: Store, checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        sync(store, checkpoint, tmp_path / "none")
    with pytest.raises(ConfigError, match="there is no such file"):
        sync(store, tmp_path / "none", checkpoint)


def test_a_described_manifest_is_put_once(store: Store, checkpoint: Path, metrics: Path) -> None:
    manifest = loose_files.describe_files(checkpoint, metrics, 42, provenance=CI)
    assert manifest["objects"][0]["sha256"] == sha256_of_file(checkpoint)
    assert manifest["provenance"]["git"] == CI["git"]
    assert loose_files.store_manifest(store, manifest, 42)
    assert loose_files.store_manifest(store, manifest, 42)
    assert not loose_files.store_manifest(store, manifest | {"created": 0}, 42)
    assert json.loads(read_object(store, "manifests/run-42-manifest.json") or b"") == manifest


def test_one_file_is_stored_and_asked_after(store: Store, folder: Path, checkpoint: Path) -> None:
    assert loose_files.store_file(store, checkpoint, "phase2/checkpoint-1.pt", {})
    key, sha256 = "phase2/checkpoint-1.pt", sha256_of_file(checkpoint)
    assert loose_files.object_has_hash(store, key, sha256)
    assert not loose_files.object_has_hash(store, "phase2/none", sha256)
    (folder / key).write_bytes(os.urandom(5000))
    assert not loose_files.object_has_hash(store, key, sha256)


def test_a_file_that_cannot_be_stored_does_not_stop_the_caller(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert not loose_files.store_file(store, tmp_path / "none", "k", {})
    assert "was not stored" in caplog.text
