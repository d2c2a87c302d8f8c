"""Retention: the objects that stay, the order of removal, and that the rest verifies at any time."""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.artifacts.conftest import KEY

from trainyard.artifacts.promotion import Promotion, find_promotable, promote
from trainyard.artifacts.record.run_numbers import claim_run, runs_in_question
from trainyard.artifacts.record.signature import check_signature
from trainyard.artifacts.restore.restore import restore
from trainyard.artifacts.restore.selection import Selection
from trainyard.artifacts.retention.pruning import prune
from trainyard.artifacts.retention.pruning_plan import RetentionRules, plan_pruning
from trainyard.artifacts.store.object_store import Store
from trainyard.artifacts.upload.run_following import RunningRun
from trainyard.artifacts.upload.standalone_checkpoint import sync_files
from trainyard.artifacts.upload.sync import sync_run
from trainyard.artifacts.verify.comparison import Depth
from trainyard.artifacts.verify.verify import verify_run
from trainyard.errors import ConfigError, RunConflictError, ServiceError, VerificationError
from trainyard.gateways.local_store.folder import LocalStore
from trainyard.run.atomic_files import sha256_of_file
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import write_outcome
from trainyard.run.sizes import format_size

STEPS = (100, 200, 300, 400, 500)


@pytest.fixture
def run(store: Store, make_run: Any) -> RunDirectory:
    directory: RunDirectory = make_run(steps=STEPS)
    sync_run(store, directory, 1)
    return directory


def kept(store: Store, rules: RetentionRules) -> dict[int | None, str]:
    [plan] = plan_pruning(store, [1], rules)
    return {each.checkpoint.step: each.reason for each in plan.decisions if each.keep}


def apply(store: Store, rules: RetentionRules, number: int = 1) -> list[str]:
    [plan] = plan_pruning(store, [number], rules)
    return prune(store, plan, by="ada")


def steps_in(folder: Path) -> list[int]:
    return sorted(int(path.name.rpartition("-")[2]) for path in (folder / "run-1").glob("checkpoint-*"))


def ok(store: Store, run: RunDirectory | None = None) -> bool:
    found = verify_run(store, 1, depth=Depth.FULL, run_directory=run)
    assert found.ok, found.problems
    return True


@pytest.mark.parametrize(
    ("rules", "steps"),
    [
        (RetentionRules(keep_last=2), [400, 500]),
        (RetentionRules(keep_every=200), [200, 400, 500]),
        (RetentionRules(keep_last=1, keep_every=300), [300, 500]),
        (RetentionRules(keep_last=9), list(STEPS)),
        (RetentionRules(max_age=3600), list(STEPS)),
        (RetentionRules(max_age=1e-9), [500]),
        (RetentionRules(keep_last=3, max_age=1e-9), [500]),
    ],
)
def test_the_rules(
    store: Store, run: RunDirectory, folder: Path, rules: RetentionRules, steps: list[int]
) -> None:
    assert sorted(step for step in kept(store, rules) if step) == steps
    assert apply(store, rules) == []
    assert steps_in(folder) == steps
    assert ok(store, run)


@pytest.mark.parametrize("status", ["succeeded", "stopped", "failed"])
def test_age_removes_the_last_of_a_failed_run(store: Store, folder: Path, make_run: Any, status: str) -> None:
    directory = make_run(steps=(100, 200))
    write_outcome(directory.run_file, {"status": status, "steps": 200})
    sync_run(store, directory, 1)
    for rules in (RetentionRules(keep_last=1), RetentionRules(max_age=3600)):
        assert apply(store, rules) == []
        assert 200 in steps_in(folder), "it is young"
    assert apply(store, RetentionRules(max_age=1e-9)) == []
    assert steps_in(folder) == ([] if status == "failed" else [200])


def test_what_was_removed_stays_on_record_and_does_not_come_back(
    store: Store, run: RunDirectory, folder: Path, make_run: Any
) -> None:
    digest = sha256_of_file(run.checkpoint(100) / "manifest.json")
    apply(store, RetentionRules(keep_last=1))
    manifest = json.loads((folder / "manifests/run-1-manifest-2.json").read_text())
    assert [each["step"] for each in manifest["pruned"]] == [100, 200, 300, 400]
    assert manifest["pruned"][0] | {"time": 0} == {
        "step": 100,
        "digest": digest,
        "size": 5504,
        "time": 0,
        "by": "ada",
        "reason": "no rule keeps it",
    } | {"size": manifest["pruned"][0]["size"]}
    assert ok(store, run)  # the disk still has them, which is not a fault
    make_run(steps=(600,))
    assert sync_run(store, run, 1).problems == ()
    assert steps_in(folder) == [500, 600]
    assert ok(store, run)
    with pytest.raises(VerificationError, match="no checkpoint of step 200: retention has removed it"):
        restore(store, Selection(1, 200), folder.parent / "back")


def test_what_was_promoted_stays(store: Store, run: RunDirectory) -> None:
    run_id, checkpoint = find_promotable(store, 1, 200, depth=Depth.LISTING)
    promote(store, "best", checkpoint, run_id=run_id, by="ada", depth=Depth.LISTING)
    assert kept(store, RetentionRules(keep_last=1))[200] == "promoted as best"


def test_what_another_run_was_started_from_stays(store: Store, run: RunDirectory, make_run: Any) -> None:
    child = make_run("child", steps=(1,))
    record = json.loads(child.run_file.read_text())
    digest = sha256_of_file(run.checkpoint(200) / "manifest.json")
    record["parent"] = {"checkpoint": "elsewhere", "manifest_sha256": digest}
    child.run_file.write_text(json.dumps(record))
    sync_run(store, child, 2)
    assert kept(store, RetentionRules(keep_last=1))[200] == "run 2 was started from it"


class Watched(LocalStore):
    """Calls back before each removal."""

    before_delete: Callable[[str], None]
    deleted: list[str]

    def delete(self, key: str) -> None:
        self.before_delete(key)
        super().delete(key)


def watched(folder: Path, before_delete: Callable[[str], None]) -> Watched:
    store = Watched(folder)
    store.before_delete = before_delete
    return store


def test_the_run_verifies_before_every_single_removal_and_markers_go_first(
    store: Store, run: RunDirectory, folder: Path
) -> None:
    seen: list[str] = []

    def look(key: str) -> None:
        seen.append(key)
        assert ok(LocalStore(folder))
        assert not key.startswith("run-1/checkpoint-500/")

    apply(watched(folder, look), RetentionRules(keep_last=1))
    for step in STEPS[:-1]:
        mine = [key for key in seen if f"checkpoint-{step}/" in key]
        assert len(mine) == 3
        assert mine[0].endswith("manifest.json")


@pytest.mark.parametrize("removals", [0, 1, 5])
def test_a_pruning_that_is_cut_short_is_a_note_and_the_next_one_finishes(
    store: Store, run: RunDirectory, folder: Path, removals: int
) -> None:
    count = 0

    def refuse(_: str) -> None:
        nonlocal count
        count += 1
        if count > removals:
            raise ServiceError("the store is down")

    with pytest.raises(ServiceError, match="the same command"):
        apply(watched(folder, refuse), RetentionRules(keep_last=1))
    found = verify_run(store, 1, depth=Depth.FULL, run_directory=run)
    assert found.ok
    assert all("prune again to finish" in note for note in found.notes)
    assert len(found.notes) >= 4
    sync_run(store, run, 1)
    assert apply(store, RetentionRules(keep_last=1)) == []
    assert steps_in(folder) == [500]
    assert verify_run(store, 1, depth=Depth.FULL).notes == ()


def test_a_run_stored_meanwhile_is_kept(store: Store, run: RunDirectory, make_run: Any, folder: Path) -> None:
    [plan] = plan_pruning(store, [1], RetentionRules(keep_last=1))
    make_run(steps=(600,))
    sync_run(store, run, 1)
    with pytest.raises(RunConflictError, match="stored again since this was planned"):
        prune(store, plan, by="ada")
    assert steps_in(folder) == [*STEPS, 600]
    assert ok(store, run)


def test_a_step_that_is_trained_and_stored_anew_while_others_are_removed_stays(
    store: Store, run: RunDirectory, folder: Path, make_run: Any
) -> None:
    def store_anew(key: str) -> None:
        if key == "run-1/checkpoint-400/manifest.json":
            shutil.rmtree(run.checkpoint(200))
            make_run(steps=(200,))
            sync_run(store, run, 1)

    [plan] = plan_pruning(store, [1], RetentionRules(keep_last=1))
    told = prune(watched(folder, store_anew), plan, by="ada")
    assert told == ["run-1/checkpoint-200/ was stored again meanwhile, so it was kept"]
    assert steps_in(folder) == [200, 500]
    assert ok(store, run)


def test_the_names_are_read_again_before_each_removal(store: Store, run: RunDirectory, folder: Path) -> None:
    run_id, checkpoint = find_promotable(store, 1, 300, depth=Depth.LISTING)

    def promote_while_400_goes(key: str) -> None:
        if key == "run-1/checkpoint-400/manifest.json":
            with pytest.raises(RunConflictError):
                promote(store, "best", checkpoint, run_id=run_id, by="ada", depth=Depth.LISTING)
            # The pointer of a promotion that is killed before it reads the manifest again.
            pointer = replace(read_old(folder), digest=checkpoint.digest, depth="listing")
            (folder / "promoted/best.json").write_bytes(pointer.content)

    [plan] = plan_pruning(store, [1], RetentionRules(keep_last=1))
    told = prune(watched(folder, promote_while_400_goes), plan, by="ada")
    assert told == ["run-1/checkpoint-300/ was promoted meanwhile, so it was kept"]
    assert steps_in(folder) == [300, 500]
    assert ok(store, run)


def read_old(folder: Path) -> Promotion:
    """Return the promotion in the pointer `best`."""
    content = json.loads((folder / "promoted/best.json").read_text())
    return Promotion(**{name: value for name, value in content.items() if name != "schema"})


def test_what_was_promoted_meanwhile_keeps_its_bytes(store: Store, run: RunDirectory, folder: Path) -> None:
    run_id, checkpoint = find_promotable(store, 1, 300, depth=Depth.LISTING)

    class Killed(LocalStore):
        def put_new(self, key: str, content: bytes, **rest: Any) -> bool:
            promote(store, "best", checkpoint, run_id=run_id, by="ada", depth=Depth.LISTING)
            super().put_new(key, content, **rest)
            raise KeyboardInterrupt

    rules = RetentionRules(keep_last=1)
    with pytest.raises(KeyboardInterrupt):
        apply(Killed(folder), rules)
    assert apply(store, rules) == []
    assert steps_in(folder) == [300, 500]
    assert ok(store, run)


def test_a_run_that_is_stored_while_a_promoted_checkpoint_is_taken_back_is_told(
    store: Store, run: RunDirectory, folder: Path, make_run: Any
) -> None:
    run_id, checkpoint = find_promotable(store, 1, 300, depth=Depth.LISTING)
    [plan] = plan_pruning(store, [1], RetentionRules(keep_last=1))
    promote(store, "best", checkpoint, run_id=run_id, by="ada", depth=Depth.LISTING)

    class Raced(LocalStore):
        def put_new(self, key: str, content: bytes, **rest: Any) -> bool:
            if key == "manifests/run-1-manifest-3.json":
                make_run(steps=(600,))
                sync_run(store, run, 1)
            return super().put_new(key, content, **rest)

    with pytest.raises(RunConflictError, match="checkpoint-300/ was promoted meanwhile and is complete"):
        prune(Raced(folder), plan, by="ada")
    assert apply(store, RetentionRules(keep_last=2)) == []
    assert steps_in(folder) == [300, 500, 600]
    assert ok(store, run)


def test_a_run_whose_manifest_cannot_be_read_stops_everything(
    store: Store, run: RunDirectory, make_run: Any, folder: Path
) -> None:
    sync_run(store, make_run("other"), 2)
    (folder / "manifests/run-2-manifest.json").write_text("{")
    with pytest.raises(VerificationError, match="run-2-manifest"):
        plan_pruning(store, [1], RetentionRules(keep_last=1))


def test_a_damaged_chain_is_not_pruned(store: Store, run: RunDirectory, folder: Path) -> None:
    manifest = folder / "manifests/run-1-manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"run_id": "other"}))
    [plan] = plan_pruning(store, [1], RetentionRules(keep_last=1))
    assert "belongs to run other" in plan.problem
    assert plan.lines()[0].startswith("run 1: nothing is removed")


def test_rules_that_are_none() -> None:
    with pytest.raises(ConfigError, match="No rule"):
        RetentionRules()
    with pytest.raises(ConfigError, match="--keep-last 0"):
        RetentionRules(keep_last=0)


def records_in(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "run-1").glob("records-*"))


@pytest.fixture
def followed(store: Store, make_run: Any) -> RunDirectory:
    """A run whose checkpoints were each stored while it was trained."""
    directory: RunDirectory = make_run(steps=())
    claim_run(store, run_id="run-run", key=KEY, wanted=1)
    for step in (100, 200, 300):
        make_run(steps=(step,))
        assert RunningRun(store, directory, 1).store_newest() is not None
    return directory


ALL_STAY = RetentionRules(keep_last=9)


def test_records_that_newer_ones_supersede_go_and_the_newest_stay(
    store: Store, followed: RunDirectory, folder: Path
) -> None:
    assert records_in(folder) == ["records-1", "records-2", "records-3"]
    [plan] = plan_pruning(store, [1], ALL_STAY)
    size = sum(path.stat().st_size for n in (1, 2) for path in (folder / f"run-1/records-{n}").iterdir())
    assert (plan.bytes, plan.removals, len(plan.to_json()["superseded"])) == (size, [], 8)
    assert (
        f"remove  run 1  8 records of earlier manifests  {format_size(size)}  newer ones are stored"
        in plan.lines()
    )

    def look(key: str) -> None:
        assert ok(LocalStore(folder))
        assert "/records-3/" not in key

    prune(watched(folder, look), plan, by="ada")
    assert records_in(folder) == ["records-3"]
    assert ok(store, followed)
    back = folder.parent / "back"
    restore(store, Selection(1), back)
    assert (back / "metrics.jsonl").read_bytes() == followed.metrics_file.read_bytes()
    assert plan_pruning(store, [1], ALL_STAY)[0].changes is False
    sync_run(store, followed, 1)  # after the run's end its records have their final names
    assert apply(store, ALL_STAY) == []
    assert records_in(folder) == []
    assert ok(store, followed)


def test_a_removal_of_records_that_is_cut_short_verifies_and_the_next_finishes(
    store: Store, followed: RunDirectory, folder: Path
) -> None:
    def refuse(key: str) -> None:
        if key.endswith("run.json"):
            raise ServiceError("the store is down")

    with pytest.raises(ServiceError, match="the same command"):
        apply(watched(folder, refuse), ALL_STAY)
    assert ok(store, followed)
    manifests = sorted(path.name for path in (folder / "manifests").iterdir())
    assert apply(store, ALL_STAY) == []
    assert records_in(folder) == ["records-3"]
    assert sorted(path.name for path in (folder / "manifests").iterdir()) == manifests
    assert ok(store, followed)


def test_records_stay_while_those_of_the_newest_manifest_are_not_whole(
    store: Store, followed: RunDirectory, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "run-1/records-3/metrics.jsonl").write_text("torn")
    assert plan_pruning(store, [1], ALL_STAY)[0].superseded == {}
    assert "metrics.jsonl: 4 bytes in the store, the manifest says" in caplog.text
    assert "records of earlier manifests are kept" in caplog.text


class Pen:
    """Returns the name and the names of the digests as the signature."""

    def sign(self, name: str, digests: Mapping[str, str]) -> bytes:
        return json.dumps({name: sorted(digests)}).encode()


def test_the_new_manifest_is_signed_and_without_a_key_that_is_said(
    store: Store, make_run: Any, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = make_run(steps=STEPS)
    pen: Any = Pen()
    sync_run(store, run, 1, signer=pen)
    for rules, signer, signatures in (
        (RetentionRules(keep_last=3), pen, 2),
        (RetentionRules(keep_last=1), None, 2),
    ):
        [plan] = plan_pruning(store, [1], rules)
        prune(store, plan, by="ada", signer=signer)
        assert len(list((folder / "signatures/run-1").iterdir())) == signatures
        assert ("was signed, but its new manifest is not" in caplog.text) is (signer is None)
    assert check_signature(store, 1, None).signature_key == ""
    assert ok(store, run)


def test_a_checkpoint_whose_step_is_not_known_is_never_removed(store: Store, tmp_path: Path) -> None:
    for name, content in {"latest.pt": "weights", "metrics.json": "{}"}.items():
        (tmp_path / name).write_text(content)
    sync_files(store, tmp_path / "latest.pt", tmp_path / "metrics.json", 1, provenance={})
    for rules in (RetentionRules(keep_last=1), RetentionRules(keep_every=1000), RetentionRules(max_age=0.0)):
        [plan] = plan_pruning(store, runs_in_question(store, None), rules)
        assert (plan.problem, plan.removals) == ("", [])


def test_the_newest_that_verifies_stays_though_newer_ones_are_broken(
    store: Store, run: RunDirectory, folder: Path
) -> None:
    (folder / "run-1/checkpoint-500/.metadata").write_bytes(os.urandom(100))
    reasons = kept(store, RetentionRules(keep_last=1))
    assert reasons == {500: "one of the last 1", 400: "the newest that verifies"}
    for step in STEPS:
        (folder / f"run-1/checkpoint-{step}/.metadata").unlink(missing_ok=True)
    [plan] = plan_pruning(store, [1], RetentionRules(keep_last=1))
    assert (plan.problem, plan.removals) == ("no checkpoint of it verifies", [])


def test_a_sync_that_retention_was_faster_than_leaves_a_note_and_goes_on(
    store: Store, followed: RunDirectory, folder: Path, make_run: Any
) -> None:
    make_run(steps=(400,))

    class Overtaken(LocalStore):
        def put_new(self, key: str, content: bytes, **rest: Any) -> bool:
            if key == "manifests/run-1-open-4.json":
                assert apply(store, ALL_STAY) == []
                assert records_in(folder) == ["records-3", "records-4"]
            return super().put_new(key, content, **rest)

    with pytest.raises(RunConflictError):
        RunningRun(Overtaken(folder), followed, 1).store_newest()
    found = verify_run(store, 1, depth=Depth.FULL, run_directory=None)
    assert found.ok, found.problems
    assert (
        "run-1/records-4/run.json: was being sent when the run was last seen; not listed yet" in found.notes
    )
    assert RunningRun(store, followed, 1).store_newest() is not None
    assert ok(store, followed)
    assert apply(store, ALL_STAY) == []
    assert records_in(folder) == ["records-5"]
    assert ok(store, followed)
