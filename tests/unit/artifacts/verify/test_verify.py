"""Verification of a stored run names every kind of damage, and a proof gets the facts, failures included."""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.unit.artifacts.conftest import flip

from trainyard.artifacts.record.manifest import ManifestObject
from trainyard.artifacts.record.run_numbers import begin_attempt, claim_run
from trainyard.artifacts.store.object_store import Store
from trainyard.artifacts.store.store_address import open_store
from trainyard.artifacts.upload.sync import sync_run
from trainyard.artifacts.verify import comparison, inspection
from trainyard.artifacts.verify.comparison import compare_objects
from trainyard.artifacts.verify.inspection import Inspection, inspect_run
from trainyard.artifacts.verify.verify import Depth, verify_directory, verify_run
from trainyard.errors import ServiceError
from trainyard.gateways import GatewayObject
from trainyard.gateways.local_store.folder import LocalStore
from trainyard.run.checkpoint_manifest import CheckpointManifest, describe_files, write_manifest
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import write_identity

DATA = "run-1/checkpoint-200/__0_0.distcp"
OTHER = "run-1/checkpoint-100/__0_0.distcp"
MANIFEST = "manifests/run-1-manifest.json"


def problems(store: Store, run: RunDirectory | None = None) -> tuple[str, ...]:
    return verify_run(store, 1, depth=Depth.LISTING, run_directory=run).problems


@pytest.mark.parametrize(
    ("depth", "alone", "with_disk"),
    [
        (Depth.LISTING, "the store's own checksums equal the manifest", "disk and manifest"),
        (Depth.SAMPLE, "checksums equal the manifest, a sample read back", "disk and manifest, a sample"),
        (Depth.FULL, "SHA-256 equal in the store and in the manifest", "SHA-256 equal on disk, in the store"),
    ],
)
def test_what_was_stored_verifies_and_no_more_is_stated_than_was_compared(
    store: Store, run: RunDirectory, depth: Depth, alone: str, with_disk: str
) -> None:
    found = verify_run(store, 1, depth=depth, run_directory=run)
    assert found.ok
    assert alone in verify_run(store, 1, depth=depth).compared and with_disk in found.compared
    assert (found.objects_verified, found.objects_total) == (12, 12)
    assert found.bytes_total == sum(o.size for o in store.list_objects("")) - sum(
        _size(store, key) for key in (MANIFEST, "ids/run-run.json")
    )
    assert (found.run_id, found.manifest_key) == ("run-run", MANIFEST)
    assert found.to_json()["ok"] is True


@pytest.mark.parametrize(
    ("removed", "wrong"),
    [
        (False, "replaced while it was verified: somebody else writes to the store"),
        (True, "removed while it was verified"),
    ],
)
def test_an_object_that_is_swapped_between_two_looks_at_it_is_named(
    folder: Path, run: RunDirectory, removed: bool, wrong: str
) -> None:
    class Swapped(LocalStore):
        def list_objects(self, prefix: str) -> Iterator[GatewayObject]:
            yield from super().list_objects(prefix)
            if DATA.startswith(prefix):
                other = folder / "other"
                other.write_bytes((folder / DATA).read_bytes())
                other.replace(folder / DATA)
                if removed:
                    (folder / DATA).unlink()

    assert verify_run(Swapped(folder), 1, depth=Depth.FULL).problems == (f"{DATA}: {wrong}",)


def test_the_number_belongs_to_a_key_and_not_to_a_name(store: Store, make_run: Any, folder: Path) -> None:
    directory = make_run()
    record = json.loads(directory.run_file.read_bytes())
    directory.run_file.write_text(json.dumps({**record, "key": "5" * 32}))
    sync_run(store, directory, None)
    begin_attempt(store, claim_run(store, run_id="run-run", key="5" * 32, wanted=None), 2)
    assert json.loads((folder / MANIFEST).read_bytes())["run_key"] == "5" * 32
    assert problems(store, directory) == ()  # the record of the attempt is not an extra object
    claim = folder / "run-1/identity.json"
    claim.write_text(claim.read_text().replace("5" * 32, "6" * 32))
    assert any("the run number belongs to run-run with another key" in line for line in problems(store))


def _size(store: Store, key: str) -> int:
    found = store.describe(key)
    assert found is not None
    return found.size


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def swap(path: Path, other: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(content)


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def list_more(path: Path, *more: dict[str, Any]) -> None:
    """List further objects, or the first one again."""
    objects = json.loads(path.read_text())["objects"]
    edit(path, objects=[*objects, *(more or objects[:1])])


FORGED = {"run_id": "run-run", "git": {"commit": "forged"}}
OUTSIDE = {"key": "../../etc/passwd", "size": 1, "sha256": "0" * 64}
DAMAGES: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "a flipped byte": (lambda store: flip(store / DATA), (f"{DATA}: the store computed",)),
    "a truncated object": (
        lambda store: truncate(store / DATA),
        (f"{DATA}: 4,999 bytes in the store, the manifest says 5,000",),
    ),
    "a missing and an extra object": (
        lambda store: (store / DATA).rename(store / "run-1/checkpoint-200/renamed"),
        (
            "run-1/checkpoint-200/renamed: extra, the manifest does not list it",
            f"{DATA}: missing in the store",
        ),
    ),
    "missing metrics": (
        lambda store: (store / "metrics/metrics-1.json").unlink(),
        ("metrics/metrics-1.json: missing in the store",),
    ),
    "two swapped objects": (
        lambda store: swap(store / DATA, store / OTHER),
        (f"{OTHER}: the store computed", f"{DATA}: the store computed"),
    ),
    "a manifest of another number": (
        lambda store: edit(store / MANIFEST, run_number=2),
        (f"{MANIFEST}: is the manifest of run number 2",),
    ),
    "a manifest of another run": (
        lambda store: edit(store / MANIFEST, run_id="someone"),
        (f"{MANIFEST}: belongs to run someone, but the run number belongs to run-run",),
    ),
    "another provenance than that of the stored run": (
        lambda store: edit(store / MANIFEST, provenance=FORGED),
        ("run-1: the manifest's provenance differs from the stored run.json",),
    ),
    "an object that is listed twice": (
        lambda store: list_more(store / MANIFEST),
        (f"{MANIFEST}: lists an object twice",),
    ),
    "a digest that is none": (
        lambda store: edit(store / MANIFEST, objects=[{"key": "run-1/a", "size": 1, "sha256": "abc0"}]),
        (f"{MANIFEST}: not a readable manifest (objects.0.sha256 is not a digest",),
    ),
    "a manifest that points outside the store": (
        lambda store: list_more(store / MANIFEST, OUTSIDE),
        ("../../etc/passwd: missing in the store",),
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_each_damage_is_named(store: Store, run: RunDirectory, folder: Path, damage: str) -> None:
    change, expected = DAMAGES[damage]
    change(folder)
    found = problems(store)
    assert [text for text in expected if not any(problem.startswith(text) for problem in found)] == [], found
    if "manifest" not in damage and "listed" not in damage:
        assert len(found) == len(expected), found


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"schema": 9}'])
def test_a_manifest_that_is_none(store: Store, run: RunDirectory, folder: Path, content: bytes) -> None:
    (folder / MANIFEST).write_bytes(content)
    assert problems(store)[0].startswith(f"{MANIFEST}:")


def test_a_record_that_the_manifest_lists_as_it_is_can_be_none_too(
    store: Store, run: RunDirectory, folder: Path
) -> None:
    """A list is not the record of a run, even if the digests agree."""
    run.run_file.write_text("[]")
    content = run.run_file.read_bytes()
    (folder / "run-1/run.json").write_bytes(content)
    objects = json.loads((folder / MANIFEST).read_text())["objects"]
    entry = next(entry for entry in objects if entry["key"] == "run-1/run.json")
    entry |= {"size": len(content), "sha256": hashlib.sha256(content).hexdigest(), "checksum": None}
    edit(folder / MANIFEST, objects=objects)
    assert any("not an object" in problem for problem in problems(store))


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_chain_whose_first_manifest_was_changed_or_is_gone(
    store: Store, run: RunDirectory, folder: Path, make_run: Any, is_gone: bool
) -> None:
    make_run(steps=(300,))
    sync_run(store, run, 1)
    assert problems(store, run) == ()
    if is_gone:
        (folder / MANIFEST).unlink()
        said = f"{MANIFEST}, which comes before it, is missing"
    else:
        edit(folder / MANIFEST, created=0.0)
        said = f"does not name {MANIFEST} as its predecessor"
    assert problems(store) == (f"manifests/run-1-manifest-2.json: {said}",)


def test_a_run_without_a_checkpoint_is_not_proven(store: Store, make_run: Any) -> None:
    sync_run(store, make_run("bare", steps=()), 1)
    assert problems(store) == ("run-1: the manifest lists no checkpoint",)


def test_a_checkpoint_that_is_only_on_disk(store: Store, run: RunDirectory, make_run: Any) -> None:
    make_run(steps=(300,))
    found = problems(store, run)
    assert found[0] == "checkpoint-300: on disk, but not in the store; sync again"
    assert any("metrics.jsonl: " in problem and "on disk" in problem for problem in found)


def test_a_store_that_is_not_there_is_refused(store: Store) -> None:
    with pytest.raises(ServiceError, match="does not exist"):
        verify_run(store, 1, depth=Depth.FULL)


def test_local_checkpoints_are_read_whole(run: RunDirectory) -> None:
    assert verify_directory(run).steps == (100, 200)
    (run.checkpoint(200) / ".metadata").write_bytes(os.urandom(100))
    found = verify_directory(run)
    assert (found.ok, found.steps, len(found.problems)) == (False, (100,), 1)


def test_no_whole_checkpoint_is_a_problem(make_run: Any) -> None:
    found = verify_directory(make_run(steps=()))
    assert found.problems[0].endswith("no complete checkpoint")
    assert found.to_json()["ok"] is False


def test_a_sample_finds_what_it_draws(folder: Path, make_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store's checksums are wrong: only reading finds that, and a sample reads only what it draws."""

    class Lying(LocalStore):
        told: GatewayObject | None = None

        def describe(self, key: str) -> GatewayObject | None:
            return self.told if self.told and key == OTHER else super().describe(key)

    store, run = Lying(folder), make_run(steps=tuple(range(100, 1100, 100)))
    sync_run(store, run, 1)
    store.told = store.describe(OTHER)
    (folder / OTHER).write_bytes(os.urandom(5000))
    assert verify_run(store, 1, depth=Depth.LISTING).ok
    assert not verify_run(store, 1, depth=Depth.FULL).ok
    verdicts = set()
    for seed in range(12):
        monkeypatch.setattr(comparison, "SystemRandom", lambda seed=seed: Random(seed))
        verdicts.add(verify_run(store, 1, depth=Depth.SAMPLE).ok)
    assert verdicts == {True, False}


def test_a_byte_flipped_on_disk(store: Store, run: RunDirectory) -> None:
    path = run.checkpoint(200) / ".metadata"
    path.write_bytes(os.urandom(100))
    assert problems(store) == ()
    assert len(problems(store, run)) == 1
    assert "checkpoint-200/.metadata: SHA-256" in problems(store, run)[0]


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
def test_a_damaged_disk_is_told_from_a_damaged_store(store: Store, stored: RunDirectory, way: str) -> None:
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


def test_a_silent_store_may_answer_later(stored: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
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


CRC: Any = {"algorithm": "CRC64NVME", "type": "FULL_OBJECT", "value": "x"}


class OneObject:
    """A store with one object, whose CRC is always the same."""

    def __init__(self, content: bytes, etag: str) -> None:
        self.content, self.etag, self.reads = content, etag, 0

    def describe(self, key: str) -> GatewayObject:
        return GatewayObject(key, len(self.content), self.etag, CRC, identity=self.etag)

    def stream(self, key: str, start: int, size: int, *, identity: str = "") -> Iterator[bytes]:
        assert (start, size, identity) == (0, len(self.content), self.etag)
        self.reads += 1
        yield self.content


@pytest.mark.parametrize(
    ("content", "etag", "reads", "wrong"),
    [(b"good", "1", 0, False), (b"good", "2", 1, False), (b"evil", "2", 2, True)],
)
def test_bytes_are_read_where_only_a_crc_speaks_for_an_object_that_was_replaced(
    content: bytes, etag: str, reads: int, wrong: bool
) -> None:
    store: Any = OneObject(content, etag)
    entry = ManifestObject("k", 4, hashlib.sha256(b"good").hexdigest(), CRC, "1")
    listed: Any = {"k": ManifestObject("k", 4, "0" * 64, {}, etag)}
    found = compare_objects(store, [entry], listed, depth=Depth.LISTING)
    assert bool(found) is wrong
    assert store.reads == reads


def test_bytes_that_are_damaged_on_the_way_are_read_again(caplog: pytest.LogCaptureFixture) -> None:
    class DamagedOnce(OneObject):
        def stream(self, key: str, start: int, size: int, *, identity: str = "") -> Iterator[bytes]:
            for chunk in super().stream(key, start, size, identity=identity):
                yield chunk if self.reads > 1 else b"evil"

    store: Any = DamagedOnce(b"good", "1")
    entry = ManifestObject("k", 4, hashlib.sha256(b"good").hexdigest(), CRC, "1")
    listed: Any = {"k": ManifestObject("k", 4, "0" * 64, {}, "1")}
    assert compare_objects(store, [entry], listed, depth=Depth.FULL) == {}
    assert store.reads == 2
    assert "correct when read again: it was damaged in transit" in caplog.text
