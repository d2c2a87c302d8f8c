"""The records that a run must have in its store, and the files on disk that count as compared."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.artifacts.conftest import KEY

from trainyard.artifacts.record.manifest import RunManifest, manifest_bytes, parse_run_manifest
from trainyard.artifacts.record.run_numbers import claim_run
from trainyard.artifacts.record.statement import restate
from trainyard.artifacts.restore.restore import restore
from trainyard.artifacts.restore.selection import Selection
from trainyard.artifacts.store.object_store import Store
from trainyard.artifacts.upload.run_following import RunningRun
from trainyard.artifacts.upload.sync import sync_run
from trainyard.artifacts.verify.verify import Depth, Verification, verify_run
from trainyard.errors import DamagedFileError, VerificationError
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import write_outcome

MANIFEST = "manifests/run-1-manifest.json"
OUTCOME = {"status": "succeeded", "steps": 200}
RECORDS = ("run.json", "config.yaml", "metrics.jsonl", "events.jsonl")


@pytest.fixture
def run(store: Store, make_run: Any) -> RunDirectory:
    directory: RunDirectory = make_run()
    write_outcome(directory.run_file, OUTCOME)
    sync_run(store, directory, 1)
    return directory


def look(store: Store, run: RunDirectory | None = None) -> Verification:
    return verify_run(store, 1, depth=Depth.FULL, run_directory=run)


def change_manifest(folder: Path, change: Callable[[RunManifest], RunManifest]) -> None:
    path = folder / MANIFEST
    path.write_bytes(manifest_bytes(restate(change(parse_run_manifest(path.read_bytes(), MANIFEST))), ""))


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("removed", [False, True])
def test_a_record_that_is_not_listed_is_missed_by_name(
    store: Store, run: RunDirectory, folder: Path, *, name: str, removed: bool, tmp_path: Path
) -> None:
    key = f"run-1/{name}"
    change_manifest(
        folder, lambda found: replace(found, objects=tuple(each for each in found.objects if each.key != key))
    )
    if removed:
        (folder / key).unlink()
    owed = f"{key}: the run must have it, and the manifest does not list it"
    assert owed in look(store, run).problems
    if name != "config.yaml":  # no digest of it is on record here
        with pytest.raises(VerificationError, match="the run must have it"):
            restore(store, Selection(1), tmp_path / "back")


def test_a_follower_that_ended_before_the_run_leaves_it_unstored(
    store: Store, make_run: Any, tmp_path: Path
) -> None:
    directory = make_run()
    claim_run(store, run_id="run-run", key=KEY, wanted=1)
    running = RunningRun(store, directory, 1)
    while running.store_newest() is not None:
        pass
    assert look(store, directory).ok
    assert "still going" in restore(store, Selection(1), tmp_path / "back").summary()
    write_outcome(directory.run_file, OUTCOME)
    assert "its last records are not stored; sync again" in look(store, directory).problems[0]
    sync_run(store, directory, 1)
    assert look(store, directory).ok


@pytest.mark.parametrize("name", RECORDS)
def test_a_linked_record_is_neither_stored_nor_compared(
    store: Store, run: RunDirectory, tmp_path: Path, name: str
) -> None:
    (run.path / name).rename(tmp_path / "elsewhere")
    (run.path / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DamagedFileError, match=f"{name}: a symbolic link"):
        sync_run(store, run, 1)
    if name == "run.json":
        with pytest.raises(DamagedFileError, match="a symbolic link"):
            look(store, run)
    else:
        assert any("a symbolic link" in problem for problem in look(store, run).problems)


@pytest.mark.parametrize("linked", ["checkpoints", "checkpoints/step-00000200"])
def test_a_linked_folder_of_checkpoints_is_neither(
    store: Store, make_run: Any, tmp_path: Path, linked: str
) -> None:
    directory = make_run()
    (directory.path / linked).rename(tmp_path / "elsewhere")
    (directory.path / linked).symlink_to(tmp_path / "elsewhere")
    report = sync_run(store, directory, 1)
    assert any("is a symbolic link" in problem for problem in report.problems)


def test_links_that_trackers_keep_in_the_logs_are_passed_by(store: Store, make_run: Any) -> None:
    directory = make_run()
    (directory.logs / "offline").mkdir()
    (directory.logs / "offline" / "run.log").write_text("x")
    (directory.logs / "latest").symlink_to("offline")
    assert sync_run(store, directory, 1).problems == ()
    assert look(store, directory).ok


@pytest.mark.parametrize("records", ["../../x/", "run-1/", "run-2/records-1/", "/etc/"])
def test_records_that_point_elsewhere_are_no_manifest(
    store: Store, run: RunDirectory, folder: Path, records: str
) -> None:
    value = json.loads((folder / MANIFEST).read_text()) | {"records": records}
    (folder / MANIFEST).write_text(json.dumps(value))
    assert "not a folder of run 1" in look(store).problems[0]


@pytest.mark.parametrize(
    "key", ["run-1/records-9/run.json", "run-1/logs/.incoming/x", "run-1/checkpoint-200/x"]
)
def test_objects_beside_the_list_are_named_also_where_it_calls_them_leftovers(
    store: Store, run: RunDirectory, folder: Path, key: str
) -> None:
    (folder / key).parent.mkdir(parents=True, exist_ok=True)
    (folder / key).write_text("planted")
    assert look(store).problems == (f"{key}: extra, the manifest does not list it",)
    change_manifest(folder, lambda found: replace(found, unlisted_objects=(key,)))
    assert look(store).problems == (f"{key}: extra, the manifest does not list it",)


def test_only_what_was_read_is_called_equal_on_disk(store: Store, run: RunDirectory) -> None:
    assert look(store, run).compared == "SHA-256 equal on disk, in the store and in the manifest"
    shutil.rmtree(run.checkpoint(100))
    assert look(store, run).compared.endswith("(1 of the checkpoints are no longer on disk)")
    (run.checkpoint(200) / "manifest.json").unlink()
    found = look(store, run)
    assert not found.ok
    assert "manifest.json is missing" in found.problems[0]
