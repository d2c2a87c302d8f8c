"""The facts about the store that a proof gets, including failures."""

import time
from pathlib import Path
from typing import Any

import pytest

from trainyard.artifacts.store.object_store import Store
from trainyard.artifacts.store.store_address import open_store
from trainyard.artifacts.upload.sync import sync_run
from trainyard.artifacts.verify import inspection
from trainyard.artifacts.verify.inspection import Inspection, inspect_run
from trainyard.artifacts.verify.verify import Depth
from trainyard.run.checkpoint_manifest import CheckpointManifest, describe_files, write_manifest
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import write_identity

RUN_ID = "run-run"


@pytest.fixture
def stored(store: Store, make_run: Any) -> RunDirectory:
    directory: RunDirectory = make_run(steps=(10, 20))
    sync_run(store, directory, None)
    return directory


def look(
    store: Store, layout: RunDirectory, *, number: int | None = None, depth: Depth | None = None
) -> Inspection:
    return inspect_run(store, RUN_ID, directory=layout, run_number=number, depth=depth)


def test_a_large_run_is_sampled(store: Store, stored: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "_READ_BACK_BYTES", 10)
    sampled, whole = look(store, stored).verification, look(store, stored, depth=Depth.FULL).verification
    assert sampled is not None
    assert "a sample read back" in sampled.compared
    assert whole is not None
    assert whole.compared.startswith("SHA-256 equal")


def test_a_store_that_has_nothing_says_nothing(tmp_path: Path, stored: RunDirectory) -> None:
    (tmp_path / "other").mkdir()
    assert look(open_store(f"file://{tmp_path}/other"), stored) == Inspection()


def test_a_store_that_does_not_exist_is_not_an_empty_one(tmp_path: Path, stored: RunDirectory) -> None:
    assert "other does not exist" in str(look(open_store(f"file://{tmp_path}/other"), stored).trouble)
    assert "null is a file and no folder" in str(look(open_store("file:///dev/null"), stored).trouble)


def test_a_number_without_a_run_has_problems(store: Store, stored: RunDirectory) -> None:
    found = look(store, stored, number=9)
    assert found.verification is not None
    assert not found.verification.ok
    assert found.checkpoints == {}


def test_a_directory_that_is_another_run_is_trouble(store: Store, stored: RunDirectory) -> None:
    write_identity(stored.run_file, "20260101-000000-ffff", {"seed": 42})
    found = look(store, stored, number=1)
    assert found.trouble is not None
    assert "is run 20260101-000000-ffff" in found.trouble
    assert not found.unreachable


def test_a_number_of_another_run_is_taken(store: Store, stored: RunDirectory) -> None:
    found = inspect_run(store, "another", directory=stored, run_number=1, depth=None)
    assert found.taken
    assert f"belongs to run {RUN_ID}; this is run another" in str(found.trouble)


@pytest.mark.parametrize("way", ["a byte", "a byte and the manifest", "no manifest"])
def test_a_damaged_copy_on_disk_is_told_from_a_damaged_store(
    store: Store, stored: RunDirectory, way: str
) -> None:
    path = stored.checkpoint(20)
    if way == "no manifest":
        (path / "manifest.json").unlink()
        (path / ".metadata").unlink()
    else:
        (path / ".metadata").write_bytes(bytes(100))
    if way == "a byte and the manifest":
        write_manifest(path, CheckpointManifest(20, RUN_ID, time.time(), describe_files(path)))
    found = look(store, stored)
    assert found.verification is not None
    assert found.verification.store_complete
    assert not found.verification.ok
    assert found.damaged == (path,)


def test_a_store_that_does_not_answer_may_answer_later(
    stored: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_MAX_ATTEMPTS": "1",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    found = look(open_store("s3://ml-runs"), stored)
    assert found.unreachable
    assert found.verification is None
