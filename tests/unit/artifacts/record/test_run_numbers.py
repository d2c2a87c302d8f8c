"""Run numbers and ids: each belongs to one run, which claims it first; the records that a run must have."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.artifacts.conftest import KEY as RUN_KEY

from trainyard.artifacts.record import run_numbers
from trainyard.artifacts.record.manifest import RunManifest, manifest_bytes, parse_run_manifest
from trainyard.artifacts.record.statement import restate
from trainyard.artifacts.restore.restore import restore
from trainyard.artifacts.restore.selection import Selection
from trainyard.artifacts.store.object_store import Store
from trainyard.artifacts.upload.run_following import RunningRun
from trainyard.artifacts.upload.sync import sync_run
from trainyard.artifacts.verify.verify import Depth, Verification, verify_run
from trainyard.errors import (
    ConfigError,
    DamagedFileError,
    ExitCode,
    NumberTakenError,
    RunConflictError,
    UnsupportedOperationError,
    VerificationError,
)
from trainyard.gateways.local_store.folder import LocalStore
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import write_outcome

KEY, OTHER_KEY = "5" * 32, "a" * 32


def claim(store: Store, run_id: str, wanted: int | None = None, *, key: str = KEY, attempt: int = 1) -> int:
    return run_numbers.claim_run(store, run_id=run_id, key=key, wanted=wanted, attempt=attempt).number


def test_what_belongs_to_another_run_is_refused_with_whose_it_is_and_what_to_do(store: Store) -> None:
    claim(store, "a", 5)
    before = {found.key for found in store.list_objects("")}
    refused = {
        ("b", KEY, 5): ("number 5", "belongs to run a; this is run b", "--run-number 6", "auto"),
        ("a", OTHER_KEY, 5): ("The id a", "another run", "stored as run 5", "TRAINYARD_RUN_ID", "--resume"),
        ("a", OTHER_KEY, 6): ("The id a", "another run", "run 5"),
        ("a", OTHER_KEY, None): ("The id a", "another run", "run 5"),
        ("a", "", None): ("The id a", "another run", "run 5"),
    }
    for (run_id, key, wanted), words in refused.items():
        with pytest.raises(NumberTakenError) as error:
            claim(store, run_id, wanted, key=key)
        message = str(error.value)
        assert [word for word in (*words, store.url) if word not in message] == [], message
        assert error.value.exit_code == ExitCode.USAGE
    assert {found.key for found in store.list_objects("")} == before


def test_a_damaged_record_belongs_to_nobody_we_know(store: Store, folder: Path) -> None:
    claim(store, "a", 1)
    record, by_id = folder / "run-1/identity.json", folder / "ids/a.json"
    (whole, whole_id), damages = (record.read_bytes(), by_id.read_bytes()), (b"{", b"{}", b'{"run_id": 3}')
    for damage in damages:
        by_id.write_bytes(damage)
        with pytest.raises(VerificationError, match=r"ids/a\.json"):
            claim(store, "a", None)
        by_id.write_bytes(whole_id)
        record.write_bytes(damage)
        with pytest.raises(VerificationError, match=r"run-1/identity\.json.*damaged.*--run-number auto"):
            claim(store, "a", 1)
        record.write_bytes(whole)
    by_id.write_bytes(whole_id.replace(b'"a"', b'"b"'))
    with pytest.raises(VerificationError, match="is the record of run b"):
        run_numbers.stored_claim(store, "a")


@pytest.mark.parametrize("run_id", ["..", "a/../../b", "grün", "a b%2F", "a" * 128])
def test_an_id_names_one_object_whatever_it_contains(store: Store, folder: Path, run_id: str) -> None:
    assert claim(store, run_id) == claim(store, run_id) == 1
    assert len(list((folder / "ids").iterdir())) == 1


def test_an_attempt_begins_once_and_ends_those_before_it(store: Store) -> None:
    first = run_numbers.claim_run(store, run_id="a", key=KEY, wanted=None)
    assert (first.attempt, run_numbers.newest_attempt(store, 1)) == (1, 1)
    run_numbers.begin_attempt(store, first, 2)
    assert run_numbers.newest_attempt(store, 1) == 2
    with pytest.raises(RunConflictError, match="attempt 2 has started"):
        run_numbers.begin_attempt(store, first, 2)
    assert claim(store, "a", attempt=2) == 1
    with pytest.raises(RunConflictError, match=r"attempt 2 has started .* this is attempt 1\. Nothing more"):
        claim(store, "a", attempt=1)
    run_numbers.begin_attempt(store, first, 10)
    assert run_numbers.newest_attempt(store, 1) == 10


class ForgetfulStore(LocalStore):
    """Ignores conditions, as `rclone serve s3` does."""

    def put_new(self, key: str, content: bytes, *, metadata: Mapping[str, str]) -> bool:
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return True


def test_a_store_that_ignores_conditions_is_refused_at_the_claim(folder: Path) -> None:
    with pytest.raises(UnsupportedOperationError, match="is not conditional: it ignores If-None-Match"):
        claim(ForgetfulStore(folder), "a")


class LostAnswers(LocalStore):
    """Stores what it is given, and responds as to the second of two equal requests."""

    def put_new(self, key: str, content: bytes, *, metadata: Mapping[str, str]) -> bool:
        super().put_new(key, content, metadata=metadata)
        return False


def test_a_claim_whose_response_was_lost_holds(folder: Path) -> None:
    store = LostAnswers(folder)
    first = run_numbers.claim_run(store, run_id="a", key=KEY, wanted=None)
    run_numbers.begin_attempt(store, first, 2)
    assert (first.number, run_numbers.newest_attempt(store, 1)) == (1, 2)


class RacedStore(LocalStore):
    """Another run takes each number just before we do."""

    def put_new(self, key: str, content: bytes, *, metadata: Mapping[str, str]) -> bool:
        if key.startswith("run-"):
            super().put_new(key, b'{"run_id": "faster"}', metadata={})
        return super().put_new(key, content, metadata=metadata)


def test_a_race_that_is_lost_every_time_ends(folder: Path) -> None:
    with pytest.raises(RunConflictError, match="other runs took 200 in a row"):
        claim(RacedStore(folder), "slow")


class InterruptedStore(LocalStore):
    """Stops the process before the claim that is the next one to be put, as a kill does."""

    def put_new(self, key: str, content: bytes, *, metadata: Mapping[str, str]) -> bool:
        if key.startswith("run-"):
            raise KeyboardInterrupt
        return super().put_new(key, content, metadata=metadata)


def test_a_claim_that_was_interrupted_goes_on_with_its_number_or_the_next(folder: Path) -> None:
    store = LocalStore(folder)
    for run_id in ("a", "b"):
        with pytest.raises(KeyboardInterrupt):
            claim(InterruptedStore(folder), run_id)
        assert (run_numbers.stored_claim(store, run_id), run_numbers.number_of_run(store, run_id)) == (
            None,
            None,
        )
    assert claim(store, "a") == 1
    assert claim(store, "b") == 2  # its id named 1, too
    assert (run_numbers.number_of_run(store, "a"), run_numbers.number_of_run(store, "b")) == (1, 2)
    with pytest.raises(NumberTakenError, match="The id b"):
        claim(store, "b", key=OTHER_KEY)


class SameRunElsewhere(LocalStore):
    """Another process of the run claims its id just before this one does."""

    def put_new(self, key: str, content: bytes, *, metadata: Mapping[str, str]) -> bool:
        if key.startswith("ids/"):
            claim(LocalStore(self._root), "a", 7)
        return super().put_new(key, content, metadata=metadata)


def test_two_processes_of_one_run_have_one_number(folder: Path) -> None:
    assert claim(SameRunElsewhere(folder), "a") == 7


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "1.0", "one", "", "١", "9" * 5000, "x" * 300])
def test_what_is_no_run_number_is_a_usage_error_and_said_briefly(text: str) -> None:
    with pytest.raises(ConfigError, match="neither a whole number above 0 nor auto") as error:
        run_numbers.parse_run_number(text)
    assert len(str(error.value)) < 200


def test_auto_is_no_number() -> None:
    assert run_numbers.parse_run_number("auto") is None
    assert run_numbers.parse_run_number("812") == 812


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
    run_numbers.claim_run(store, run_id="run-run", key=RUN_KEY, wanted=1)
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
def test_a_linked_record_is_left_out(store: Store, run: RunDirectory, tmp_path: Path, name: str) -> None:
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
def test_linked_checkpoints_are_left_out(store: Store, make_run: Any, tmp_path: Path, linked: str) -> None:
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


def test_an_empty_store_and_one_with_many_runs(store: Store, make_run: Any) -> None:
    assert "which holds no run" in run_numbers.missing_run(store, 7, [])
    assert "it has … 91, 92, 93, 94, 95, 96, 97, 98, 99 and 100." in run_numbers.missing_run(
        store, 7, [*range(20, 101)]
    )
    message = run_numbers.missing_run(store, 7, [1, 2, 50])
    assert message.startswith(f"Run 7 is not in {store.url}; it has 1, 2 and 50. ")
    assert message.endswith(f"store ls --store {store.url} lists them.")
    assert run_numbers.used_numbers(store) == []
    sync_run(store, make_run(), 3)
    assert verify_run(store, 7, depth=Depth.LISTING).problems == (run_numbers.missing_run(store, 7, [3]),)
