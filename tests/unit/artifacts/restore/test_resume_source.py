"""The choice of the checkpoint to resume from: this machine, the store, or none; never the older of two."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainyard.artifacts.restore.resume_source import ResumeRequest, fetch_resume_source
from trainyard.artifacts.store.object_store import Store
from trainyard.artifacts.store.store_address import open_store
from trainyard.artifacts.upload.sync import sync_run
from trainyard.errors import ServiceError, VerificationError
from trainyard.run.directory import RunDirectory

NAME = "gh-4711"


def wanted(path: Path, store: Store, **changes: Any) -> ResumeRequest:
    facts: dict[str, Any] = {
        "resume": "auto",
        "store": store.url,
        "run_number": 1,
        "segment": 2,
        "may_fetch": True,
    }
    return ResumeRequest(RunDirectory(path), f"run-{NAME}", **facts | changes)


@pytest.fixture
def stored(store: Store, make_run: Any) -> RunDirectory:
    """A run of steps 100 and 200 that is on this machine and in the store."""
    directory: RunDirectory = make_run(NAME)
    sync_run(store, directory, 1)
    return directory


def test_a_directory_that_another_machine_has_overtaken_is_moved_aside(
    stored: RunDirectory, store: Store, make_run: Any, tmp_path: Path
) -> None:
    for turn in ("", "-2"):
        stale = tmp_path / "machine" / NAME
        stale.mkdir(parents=True)
        for name in ("run.json", "config.yaml"):
            (stale / name).write_bytes((stored.path / name).read_bytes())
        found = fetch_resume_source(wanted(stale, store), open_store)
        assert found.resume == "auto"
        assert RunDirectory(stale).checkpoint_steps() == [200]
        assert (tmp_path / "machine" / f"{NAME}.until-0{turn}" / "run.json").is_file()
        for path in sorted(stale.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        stale.rmdir()


def test_the_number_of_another_run_is_refused(stored: RunDirectory, store: Store, tmp_path: Path) -> None:
    other = ResumeRequest(
        RunDirectory(tmp_path / "other" / "gh-1"), *("gh-1", "auto", store.url, 1), segment=2, may_fetch=True
    )
    with pytest.raises(VerificationError, match="nothing to resume from"):
        fetch_resume_source(other, open_store)


def test_a_store_that_is_away_does_not_stop_who_has_it_on_disk(stored: RunDirectory, store: Store) -> None:
    def away(_url: str) -> Store:
        raise ServiceError("the store is away")

    assert fetch_resume_source(wanted(stored.path, store), away).reason.startswith("step 200")
    with pytest.raises(ServiceError, match="away"):
        fetch_resume_source(wanted(stored.path.with_name("gh-1"), store), away)


def test_a_manifest_begins_a_new_run_from_a_checkpoint_beside_it(
    stored: RunDirectory, store: Store, tmp_path: Path
) -> None:
    address = f"{store.url}/manifests/run-1-manifest.json"
    new = wanted(tmp_path / "new" / "gh-5", store, segment=1, resume=address, run_number=5)
    found = fetch_resume_source(new, open_store)
    checkpoint = tmp_path / "new" / f"from-run-{NAME}-step-200" / "checkpoints" / "step-00000200"
    assert found.resume == str(checkpoint)
    assert (checkpoint / "manifest.json").is_file()
    assert fetch_resume_source(new, open_store).reason.endswith("fetched earlier")
    absent = address.replace("run-1-", "run-9-")
    missing = wanted(new.directory.path, store, segment=1, resume=absent, run_number=5)
    with pytest.raises(VerificationError, match=r"has no manifests/run-9-manifest\.json"):
        fetch_resume_source(missing, open_store)


@pytest.mark.parametrize("damage", ["torn", "the first is gone"])
@pytest.mark.parametrize("segment", [1, 2])
def test_a_damaged_manifest_is_not_the_same_as_none(
    stored: RunDirectory, store: Store, make_run: Any, tmp_path: Path, folder: Path, damage: str, segment: int
) -> None:
    make_run(NAME, steps=(300,))
    sync_run(store, stored, 1)
    manifest = folder / "manifests" / "run-1-manifest.json"
    manifest.chmod(0o644)
    if damage == "torn":
        manifest.write_bytes(manifest.read_bytes()[:100])
    else:
        manifest.unlink()
    told = "damaged" if damage == "torn" else "run-1-manifest.json, which comes before it"
    with pytest.raises(VerificationError, match=told):
        fetch_resume_source(
            wanted(tmp_path / "new" / NAME, store, segment=segment, allow_missing_checkpoint=True), open_store
        )


def damaged(checkpoint: Path) -> None:
    (data,) = checkpoint.glob("*.distcp")
    data.chmod(0o644)
    data.write_bytes(bytes(data.stat().st_size))


def stored_checkpoint(folder: Path, step: int) -> Path:
    (found,) = folder.rglob(f"*{step}/__0_0.distcp")
    return found.parent


def test_the_local_run_stays_where_the_store_brings_an_older_one(
    stored: RunDirectory, store: Store, make_run: Any, folder: Path
) -> None:
    make_run(NAME, steps=(150,))
    shutil.rmtree(stored.checkpoint(200))
    damaged(stored_checkpoint(folder, 200))
    found = fetch_resume_source(wanted(stored.path, store), open_store)
    assert found.reason == f"step 150 in {stored.path}: nothing newer in the store verifies"
    assert stored.checkpoint_steps() == [100, 150]
    assert [path.name for path in stored.path.parent.glob(f"{NAME}*")] == [NAME]


def test_the_local_run_stays_if_nothing_is_restored(stored: RunDirectory, store: Store, folder: Path) -> None:
    shutil.rmtree(stored.checkpoint(200))
    for step in (100, 200):
        damaged(stored_checkpoint(folder, step))
    with pytest.raises(VerificationError, match=r"distcp"):
        fetch_resume_source(wanted(stored.path, store), open_store)
    assert stored.checkpoint_steps() == [100]


def test_what_a_kill_left_beside_the_run_is_replaced(stored: RunDirectory, store: Store) -> None:
    beside = stored.path.with_name(f"{NAME}.from-store")
    stored.path.rename(beside)
    damaged(RunDirectory(beside).checkpoint(200))
    assert fetch_resume_source(wanted(stored.path, store), open_store).reason.startswith("run 1 → ")
    assert stored.checkpoint_steps() == [200]
    assert not beside.exists()


def test_a_segment_after_deaths_begins_as_asked_only_where_nothing_was_stored(
    stored: RunDirectory, store: Store, tmp_path: Path
) -> None:
    address = f"{store.url}/manifests/run-1-manifest.json"
    for name, resume, told in (
        ("gh-5", "auto", "auto"),
        ("gh-6", "none", "none"),
        ("gh-7", "runs/x/checkpoints/step-00000010", "runs/x/checkpoints/step-00000010"),
        ("gh-8", address, str(tmp_path / "new" / f"from-run-{NAME}-step-200/checkpoints/step-00000200")),
    ):
        new = wanted(
            tmp_path / "new" / name, store, resume=resume, run_number=5, allow_missing_checkpoint=True
        )
        assert fetch_resume_source(new, open_store).resume == told
    absent = replace(
        wanted(tmp_path / "gh-9", store, allow_missing_checkpoint=True), store=(tmp_path / "no").as_uri()
    )
    assert fetch_resume_source(absent, open_store).reason == "there is no checkpoint yet"
    had = wanted(tmp_path / "new" / NAME, store, resume=address, allow_missing_checkpoint=True)
    assert fetch_resume_source(had, open_store).resume == "auto"
    assert RunDirectory(had.directory.path).checkpoint_steps() == [200]


@pytest.mark.parametrize(
    ("resume", "told"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("runs/x/checkpoints/step-00000010", "runs/x/checkpoints/step-00000010"),
        ("runs/x/checkpoints/step-00000010/manifest.json", "runs/x/checkpoints/step-00000010"),
    ],
)
def test_what_needs_no_store_asks_none(store: Store, tmp_path: Path, resume: str, told: str) -> None:
    def never(_url: str) -> Store:
        raise AssertionError("the store was asked")

    asked = wanted(tmp_path / NAME, store, segment=1, may_fetch=False, resume=resume)
    assert fetch_resume_source(asked, never).resume == told


def test_a_damaged_local_checkpoint_does_not_count(stored: RunDirectory, store: Store) -> None:
    damaged(stored.checkpoint(200))
    found = fetch_resume_source(wanted(stored.path, store), open_store)
    assert found.reason.startswith(f"run 1 → {stored.path}: ")
    assert stored.checkpoint_steps() == [200]
    assert RunDirectory(stored.path.with_name(f"{NAME}.until-100")).checkpoint_steps() == [100, 200]
    assert fetch_resume_source(wanted(stored.path, store), open_store).reason == f"step 200 in {stored.path}"


def test_a_second_attempt_goes_on_with_its_own_run_and_not_with_the_parent(
    stored: RunDirectory, store: Store, make_run: Any, tmp_path: Path
) -> None:
    sync_run(store, make_run("gh-5", steps=(7,)), 5)
    address = f"{store.url}/manifests/run-1-manifest.json"
    path = tmp_path / "new" / "gh-5"
    again = ResumeRequest(RunDirectory(path), "run-gh-5", address, store.url, 5, segment=1, may_fetch=True)
    assert fetch_resume_source(again, open_store).resume == "auto"
    assert RunDirectory(path).checkpoint_steps() == [7]
