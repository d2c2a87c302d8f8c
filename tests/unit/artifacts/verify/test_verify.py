"""Verification of a stored run names every kind of damage."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from trainyard.artifacts.record.run_numbers import begin_attempt, claim_run
from trainyard.artifacts.store.object_store import Store
from trainyard.artifacts.upload.sync import sync_run
from trainyard.artifacts.verify import comparison
from trainyard.artifacts.verify.verify import Depth, verify_directory, verify_run
from trainyard.errors import ServiceError
from trainyard.gateways import GatewayObject
from trainyard.gateways.local_store.folder import LocalStore
from trainyard.run.directory import RunDirectory

DATA = "run-1/checkpoint-200/__0_0.distcp"
OTHER = "run-1/checkpoint-100/__0_0.distcp"
MANIFEST = "manifests/run-1-manifest.json"


@pytest.fixture
def run(store: Store, make_run: Any) -> RunDirectory:
    directory: RunDirectory = make_run()
    sync_run(store, directory, 1)
    return directory


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


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[7] ^= 1
    path.write_bytes(content)


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
