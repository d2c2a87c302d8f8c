"""The objects that a sync stores, those that it omits, its plan and its messages."""

import contextlib
import errno
import json
import shutil
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from tests import warm_start
from tests.unit.artifacts.conftest import KEY, flip

from trainyard.artifacts.record.contents import Group, Item
from trainyard.artifacts.record.run_numbers import Claim, begin_attempt
from trainyard.artifacts.store.object_store import Store
from trainyard.artifacts.upload.preview import preview_run
from trainyard.artifacts.upload.run_following import RunningRun
from trainyard.artifacts.upload.sync import sync_run
from trainyard.artifacts.upload.upload import GroupUploader
from trainyard.artifacts.verify.verify import Depth, verify_run
from trainyard.errors import AttemptEndedError, ExitCode, RecordError, RunConflictError, ServiceError
from trainyard.gateways import GatewayObject
from trainyard.gateways.local_store.folder import LocalStore, LocalUpload
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import write_outcome


def keys(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


def manifest(folder: Path, name: str = "run-1-manifest.json") -> Any:
    return json.loads((folder / "manifests" / name).read_bytes())


def test_all_of_a_run_is_stored_where_the_layout_says(store: Store, folder: Path, make_run: Any) -> None:
    run = make_run()
    (run.logs / "rank").mkdir()
    (run.logs / "rank" / "0.log").write_text("step 1")
    report = sync_run(store, run, None)
    files = ("__0_0.distcp", ".metadata", "manifest.json")
    records = ("identity.json", "run.json", "config.yaml", "metrics.jsonl", "events.jsonl", "logs/rank/0.log")
    assert keys(folder) == {
        *(f"run-1/checkpoint-{step}/{name}" for step in (100, 200) for name in files),
        *(f"run-1/{name}" for name in records),
        "metrics/metrics-1.json",
        "manifests/run-1-manifest.json",
        "ids/run-run.json",
    }
    assert (report.sent, report.skipped, report.problems) == (12, 0, ())


def test_the_manifest_lists_each_object_and_provenance(store: Store, folder: Path, make_run: Any) -> None:
    run = make_run()
    write_outcome(run.run_file, {"status": "succeeded", "steps": 200})
    sync_run(store, run, 4)
    value = manifest(folder, "run-4-manifest.json")
    assert {entry["key"] for entry in value["objects"]} == keys(folder) - {
        "manifests/run-4-manifest.json",
        "ids/run-run.json",
    }
    assert (value["run_id"], value["run_number"]) == ("run-run", 4)
    assert value["provenance"]["git"]["commit"].startswith("3f2c1ab")
    assert "outcome" not in value["provenance"]
    assert value["outcome"] == {"status": "succeeded", "steps": 200}
    for entry in value["objects"]:
        assert entry["size"] == (folder / entry["key"]).stat().st_size
        assert entry["store_checksum"]["type"] == "FULL_OBJECT"


def test_the_metrics_become_one_document(store: Store, folder: Path, make_run: Any) -> None:
    run = make_run()
    with run.metrics_file.open("a") as file:
        file.write('{"step": 300, "lo')  # a line that a crash cut off
    sync_run(store, run, 1)
    value = json.loads((folder / "metrics" / "metrics-1.json").read_bytes())
    assert (value["run_id"], value["run_number"]) == ("run-run", 1)
    assert [row["step"] for row in value["rows"]] == [100, 200]


@pytest.mark.parametrize("damage", ["flip", "remove", "truncate", "cut the manifest", "escape"])
def test_a_checkpoint_that_is_not_whole_is_named_and_the_others_go(
    damage: str, store: Store, folder: Path, make_run: Any
) -> None:
    run = make_run()
    data = run.checkpoint(200) / "__0_0.distcp"
    listing = run.checkpoint(200) / "manifest.json"
    if damage == "flip":
        flip(data)
    elif damage == "remove":
        data.unlink()
    elif damage == "truncate":
        data.write_bytes(data.read_bytes()[:-1])
    elif damage == "cut the manifest":
        listing.write_bytes(listing.read_bytes()[:-20])
    else:
        listing.write_text(listing.read_text().replace("__0_0.distcp", "../../run.json"))
    report = sync_run(store, run, None)
    assert len(report.problems) == 1
    assert report.problems[0].startswith("checkpoint-200 was not uploaded: ")
    assert "step-00000200" in report.problems[0]
    assert not any("checkpoint-200" in key for key in keys(folder))
    assert any("checkpoint-100" in key for key in keys(folder))
    assert "run-1/run.json" in keys(folder)


def test_a_save_that_was_never_completed_is_no_checkpoint(store: Store, folder: Path, make_run: Any) -> None:
    run = make_run()
    (run.checkpoint(200) / "manifest.json").unlink()
    report = sync_run(store, run, None)
    assert report.problems == ()
    assert len(report.notes) == 1
    assert "the save never ended" in report.notes[0]
    assert not any("checkpoint-200" in key for key in keys(folder))


def test_a_checkpoint_damaged_after_it_was_stored_stays_as_it_was_stored(store: Store, make_run: Any) -> None:
    run = make_run()
    sync_run(store, run, None)
    flip(run.checkpoint(200) / "__0_0.distcp")
    report = sync_run(store, run, None)
    assert report.problems[0].startswith("checkpoint-200 was not uploaded")
    assert verify_run(store, 1, depth=Depth.FULL).ok


def test_what_is_lost_in_both_places_stays_named(store: Store, folder: Path, make_run: Any) -> None:
    run = make_run()
    sync_run(store, run, None)
    shutil.rmtree(run.checkpoint(100))
    (folder / "run-1/checkpoint-100/.metadata").unlink()
    report = sync_run(store, run, None)
    assert report.problems == (
        "run-1/checkpoint-100/.metadata: stored before, but no longer complete here or in the store",
    )
    assert not verify_run(store, 1, depth=Depth.LISTING).ok


def test_what_a_sync_that_was_cut_short_left_is_accounted_for(
    store: Store, folder: Path, make_run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    run = make_run()
    sync_run(store, run, None)
    (folder / "manifests/run-1-manifest.json").unlink()
    RunningRun(store, run, 1).store_newest()
    assert "no longer on this machine" not in caplog.text, "the rest is stored later"
    shutil.rmtree(folder / "manifests")
    shutil.rmtree(run.checkpoint(100))
    sync_run(store, run, None)
    assert len(manifest(folder)["unlisted_objects"]) == 7, "3 of a checkpoint, 4 records of the follower"
    assert "run-1/checkpoint-100/.metadata: an interrupted sync sent it" in caplog.text
    assert verify_run(store, 1, depth=Depth.FULL, run_directory=run).ok
    (folder / "run-1/checkpoint-100/planted").write_text("x")
    assert not verify_run(store, 1, depth=Depth.FULL).ok


class SilentStore(LocalStore):
    """Computes no checksums, as some S3-compatible stores do."""

    def describe(self, key: str) -> GatewayObject | None:
        found = super().describe(key)
        return GatewayObject(found.key, found.size) if found else None

    def stage(self, path: Path, key: str, *, metadata: Mapping[str, str], replaces: str = "") -> Any:
        return SilentUpload(super().stage(path, key, metadata=metadata, replaces=replaces))


class SilentUpload:
    def __init__(self, upload: LocalUpload) -> None:
        self.sha256, self.size, self.abort = upload.sha256, upload.size, upload.abort
        self._upload = upload

    def commit(self) -> GatewayObject:
        stored = self._upload.commit()
        if stored.key in DAMAGED_ON_THE_WAY:
            flip(self._upload.target)
        return GatewayObject(stored.key, stored.size)


DAMAGED_ON_THE_WAY = ("run-2/checkpoint-200/.metadata",)


def test_bytes_that_change_on_the_way_are_noticed_without_checksums(folder: Path, make_run: Any) -> None:
    report = sync_run(SilentStore(folder), make_run(), 2)
    assert len(report.problems) == 1
    assert "run-2/checkpoint-200/.metadata: was read back with other bytes" in report.problems[0]


class InterruptedUpload:
    """Takes some time; the first one interrupts the main thread, as Ctrl-C does, and so do later ones."""

    def __init__(self, upload: LocalUpload, made: list[str]) -> None:
        self.sha256, self.size = upload.sha256, upload.size
        self._upload, self._made = upload, made

    def commit(self) -> GatewayObject:
        stored = self._upload.commit()
        self._made.append(stored.key)
        if len(self._made) % 20 == 1:  # Python ignores one in a callback of the garbage collection
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        time.sleep(0.05)
        return stored

    def abort(self) -> None:
        """Do nothing, as for a small file in S3: nothing was sent."""


def test_after_an_interruption_no_further_file_is_stored(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made, stage = list[str](), store.stage
    monkeypatch.setattr(
        store, "stage", lambda *args, **named: InterruptedUpload(cast("Any", stage(*args, **named)), made)
    )
    (tmp_path / "file").write_bytes(b"1234")
    items = tuple(Item(f"run-1/logs/{number}", tmp_path / "file") for number in range(300))
    with (
        pytest.raises(KeyboardInterrupt),
        GroupUploader(store, known={}, there={}, metadata={}, files_at_once=4) as sending,
    ):
        sending.send(Group("logs", items))
    assert 1 <= len(made) < 100


class ForgeableStore(LocalStore):
    """Computes a checksum that can be forged for any bytes, as CRC64NVME can."""

    def describe(self, key: str) -> GatewayObject | None:
        found = super().describe(key)
        if found is None:
            return None
        forgeable = {"algorithm": "CRC64NVME", "type": "FULL_OBJECT", "value": "forged"}
        etag = found.checksum["value"]
        return GatewayObject(key, found.size, etag, forgeable, identity=found.identity)

    def list_objects(self, prefix: str) -> Iterator[GatewayObject]:
        for found in super().list_objects(prefix):
            described = self.describe(found.key)
            assert described is not None
            yield GatewayObject(found.key, found.size, described.etag, identity=found.identity)


@pytest.mark.parametrize(("has_manifest", "is_replaced"), [(True, True), (False, True), (False, False)])
def test_what_is_stored_is_not_known_by_a_checksum_that_can_be_forged(
    has_manifest: bool, is_replaced: bool, folder: Path, make_run: Any
) -> None:
    """What a sync left without a manifest is read back; only what was replaced since then is sent again."""
    store, run = ForgeableStore(folder), make_run()
    sync_run(store, run, 1)
    if not has_manifest:
        (folder / "manifests/run-1-manifest.json").unlink()
    if is_replaced:
        flip(folder / "run-1/checkpoint-200/__0_0.distcp")
    assert sync_run(store, run, 1).sent == is_replaced
    assert verify_run(store, 1, depth=Depth.FULL, run_directory=run).ok


def test_a_sync_that_was_overtaken_puts_no_manifest(folder: Path, make_run: Any) -> None:
    """By a later attempt of its run, or by another sync that put the manifest first."""

    class Overtaken(LocalStore):
        def stage(self, *file: Any, **how: Any) -> LocalUpload:
            with contextlib.suppress(RunConflictError):  # another thread has begun it
                begin_attempt(self, Claim(1, "run-run", KEY), 2)
            return super().stage(*file, **how)

    class Raced(LocalStore):
        def put_new(self, key: str, content: bytes, *, metadata: Mapping[str, str]) -> bool:
            if key.startswith("manifests/"):
                super().put_new(key, b"{}", metadata={})
            return super().put_new(key, content, metadata=metadata)

    run = make_run()
    with pytest.raises(RunConflictError, match="another sync of run run-run stored it meanwhile"):
        sync_run(Raced(folder), run, 2)
    shutil.rmtree(folder)
    with pytest.raises(AttemptEndedError, match="its attempt 2 has started"):
        sync_run(Overtaken(folder), run, 1)
    assert not any(key.startswith("manifests/") for key in keys(folder))


def test_a_refusal_says_where_everything_is_and_how_to_go_on(tmp_path: Path, make_run: Any) -> None:
    from trainyard.artifacts.store.store_address import open_store

    (tmp_path / "file").write_text("not a folder")
    run: RunDirectory = make_run()
    with pytest.raises(ServiceError) as refused:
        sync_run(open_store((tmp_path / "file").as_uri()), run, 1)
    cause, where, way_on = str(refused.value).splitlines()
    assert "Not a directory" in cause
    assert str(run.path) in where
    assert f"--run-dir {run.path} --store file://{tmp_path}/file --run-number 1 --once" in way_on


def test_a_full_disk_under_the_copies_of_the_records_is_named_and_nothing_is_marked_complete(
    store: Store, folder: Path, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfileobj", full)
        with pytest.raises(
            RecordError, match=r"No space left on device .* free in .* Make room, or set TMPDIR"
        ) as error:
            sync_run(store, run, None)
    assert error.value.exit_code == ExitCode.NO
    assert f"Nothing is lost: checkpoints and records are in {run.path}" in str(error.value)
    assert "--run-number 1" in str(error.value)
    assert not verify_run(store, 1, depth=Depth.LISTING).ok
    assert sync_run(store, run, None).problems == ()
    assert verify_run(store, 1, depth=Depth.FULL, run_directory=run).ok


KILLED = """
    import os, signal, sys
    from pathlib import Path
    from trainyard.artifacts.upload.sync import sync_run
    from trainyard.gateways.local_store import folder as store
    from trainyard.run.directory import RunDirectory

    left = int(sys.argv[3])
    def or_die(function):
        def call(*arguments, **named):
            global left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **named)
        return call

    store.sync_file = or_die(store.sync_file)
    store.sync_directory = or_die(store.sync_directory)
    store.copy_file = or_die(store.copy_file)
    store.hash_stored_file = or_die(store.hash_stored_file)
    sync_run(store.LocalStore(Path(sys.argv[1])), RunDirectory(Path(sys.argv[2])), 1)
"""


def test_a_sync_that_is_killed_at_any_moment_marks_nothing_falsely_and_goes_on(
    store: Store, folder: Path, make_run: Any, tmp_path: Path
) -> None:
    """SIGKILL comes before one of its steps on the disk; the last steps write the manifest."""
    run, died, kills = make_run(), -signal.SIGKILL, 0
    (tmp_path / "killed.py").write_text(textwrap.dedent(KILLED))
    line = [sys.executable, tmp_path / "killed.py", folder, run.path]
    while died:
        died = warm_start.run([*line, str(5 * kills)], timeout=60).returncode
        found = verify_run(store, 1, depth=Depth.FULL, run_directory=run)
        assert found.ok or found.manifest_key not in {o.key for o in store.list_objects("")}, found.problems
        assert died in (0, -signal.SIGKILL)
        kills += died != 0
    assert kills >= 4
    assert found.ok


def test_a_store_without_checksums_is_read_back(folder: Path, make_run: Any) -> None:
    silent = SilentStore(folder)
    run = make_run()
    assert sync_run(silent, run, 1).problems == ()
    assert verify_run(silent, 1, depth=Depth.LISTING).ok
    flip(folder / "run-1/checkpoint-200/__0_0.distcp")
    found = verify_run(silent, 1, depth=Depth.LISTING).problems
    assert len(found) == 1
    assert found[0].startswith("run-1/checkpoint-200/__0_0.distcp: SHA-256")


def test_a_plan_sends_only_what_is_new(store: Store, make_run: Any) -> None:
    run = make_run()
    sync_run(store, run, None)
    assert preview_run(store, run, None).send == ()
    make_run(steps=(300,))
    plan = preview_run(store, run, None)
    assert {key for key in plan.send if "checkpoint-300" in key} == set(plan.send[:3])
    assert len(plan.there) == 9


def test_a_plan_names_what_is_not_whole(store: Store, make_run: Any) -> None:
    run = make_run()
    (run.checkpoint(200) / ".metadata").unlink()
    assert "checkpoint-200 was not uploaded" in preview_run(store, run, 1).text()


def test_a_plan_for_another_runs_number_is_refused(store: Store, make_run: Any) -> None:
    sync_run(store, make_run(), 1)
    with pytest.raises(RunConflictError):
        preview_run(store, make_run("other"), 1)
