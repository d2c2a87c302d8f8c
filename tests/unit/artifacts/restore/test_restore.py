"""A restored run is equal to the byte, complete or absent, and resumes an interrupted restore."""

import errno
import json
import os
import shutil
import signal
import sys
import textwrap
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import warm_start
from tests.unit.artifacts.conftest import flip

from trainyard.artifacts.record.local_paths import places_of
from trainyard.artifacts.record.manifest import ManifestObject
from trainyard.artifacts.restore import download, restore
from trainyard.artifacts.restore.selection import Selection, parse_selection
from trainyard.artifacts.store.object_store import Store
from trainyard.artifacts.store.store_address import open_store
from trainyard.artifacts.upload.sync import sync_run
from trainyard.artifacts.verify.verify import verify_directory
from trainyard.errors import ConfigError, ObjectChangedError, ServiceError, TrainyardError, VerificationError
from trainyard.gateways.local_store.folder import LocalStore
from trainyard.run.atomic_files import sha256_of_file
from trainyard.run.checkpoint_manifest import CheckpointManifest, describe_files, write_manifest
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import write_identity

NEWEST = Selection(1, newest=True)
ALL = Selection(1)
DATA = "run-1/checkpoint-200/__0_0.distcp"
MANIFEST = "manifests/run-1-manifest.json"


@pytest.fixture
def run(store: Store, make_run: Any) -> RunDirectory:
    directory: RunDirectory = make_run()
    (directory.logs / "rank").mkdir()
    (directory.logs / "rank" / "0.log").write_text("started\n")
    (directory.logs / "empty.log").touch()
    sync_run(store, directory, 1)
    return directory


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "back" / "run"


def work(target: Path) -> Path:
    return target.with_name(f".{target.name}.restoring")


def tree(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_whole_run_comes_back_to_the_byte(store: Store, run: RunDirectory, target: Path) -> None:
    report = restore.restore(store, ALL, target)
    assert tree(target) == tree(run.path)
    assert verify_directory(RunDirectory(target)).steps == (100, 200) == report.steps
    assert (report.files, report.kept, report.passed_over) == (12, 0, ())
    assert report.bytes == report.fetched_bytes == sum(len(content) for content in tree(target).values())
    assert report.go_on.endswith(f"--run-dir {target} --resume auto")
    assert list(target.parent.iterdir()) == [target]
    assert f"run 1 → {target}: 12 files" in report.summary()


def test_one_checkpoint_comes_with_the_records(store: Store, run: RunDirectory, target: Path) -> None:
    target.mkdir(parents=True)  # an empty directory counts as none
    restore.restore(store, Selection(1, 100), target)
    names = set(tree(run.path)) - {name for name in tree(run.path) if "step-00000200" in name}
    assert set(tree(target)) == names


@pytest.mark.parametrize("victim", [DATA, "run-1/checkpoint-200/manifest.json"])
@pytest.mark.parametrize("how", ["flip", "remove"])
def test_what_does_not_verify_is_passed_over_by_newest_and_named(
    store: Store, run: RunDirectory, folder: Path, target: Path, victim: str, how: str
) -> None:
    flip(folder / victim) if how == "flip" else (folder / victim).unlink()
    report = restore.restore(store, NEWEST, target)
    assert report.steps == (100,)
    assert report.passed_over[0].startswith(f"{victim}: ")
    assert not any("step-00000200" in name for name in tree(target))
    with pytest.raises(VerificationError, match=victim):
        restore.restore(store, Selection(1, 200), target.with_name("other"))


def test_when_no_checkpoint_verifies_each_is_named(
    store: Store, run: RunDirectory, folder: Path, target: Path
) -> None:
    for step in (100, 200):
        flip(folder / f"run-1/checkpoint-{step}/.metadata")
    with pytest.raises(VerificationError, match=r"(?s)checkpoint-200/\.metadata.*checkpoint-100/\.metadata"):
        restore.restore(store, NEWEST, target)
    assert not target.exists()


def test_a_damaged_run_leaves_nothing_under_the_name_and_goes_on_once_mended(
    store: Store, run: RunDirectory, folder: Path, target: Path
) -> None:
    good = (folder / DATA).read_bytes()
    flip(folder / DATA)
    with pytest.raises(VerificationError, match=rf"(?s){DATA}: SHA-256 .* kept in {work(target)}"):
        restore.restore(store, ALL, target)
    assert not target.exists()
    assert work(target).is_dir()
    (folder / DATA).write_bytes(good)
    report = restore.restore(store, ALL, target)
    assert report.kept == 10
    assert report.fetched_bytes == len(good) + (folder / "run-1/checkpoint-200/manifest.json").stat().st_size
    assert tree(target) == tree(run.path)
    assert not work(target).exists()


class Breaking(LocalStore):
    """Refuses after `allowed` bytes."""

    def __init__(self, root: Path, allowed: int) -> None:
        super().__init__(root)
        self.allowed = allowed
        self.asked: list[tuple[str, int]] = []

    def stream(self, key: str, start: int, size: int, **rest: Any) -> Any:
        self.asked.append((key, start))
        for chunk in super().stream(key, start, size, **rest):
            for offset in range(0, len(chunk), 100):
                if not key.startswith("manifests/") and "identity" not in key:
                    self.allowed -= 100
                if self.allowed < 0:
                    raise ServiceError("the store is down")
                yield chunk[offset : offset + 100]


def test_a_store_that_goes_down_leaves_no_half_run_and_large_files_go_on_where_they_were(
    folder: Path, target: Path, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "_FILES_AT_ONCE", 1)
    run = make_run(steps=(100,), size=50_000)
    sync_run(open_store(folder.as_uri()), run, 1)
    with pytest.raises(ServiceError, match="the store is down"):
        restore.restore(Breaking(folder, 25_000), ALL, target)
    assert not target.exists()
    half = (work(target) / "checkpoints/step-00000100/__0_0.distcp").stat().st_size
    assert 0 < half < 50_000
    again = Breaking(folder, 10_000_000)
    report = restore.restore(again, ALL, target)
    data = [start for key, start in again.asked if key.endswith("distcp")]
    assert min(data) == half
    assert report.fetched_bytes < report.bytes - min(data)
    assert report.kept >= 3
    assert tree(target) == tree(run.path)


KILLED = """
    import os, signal, sys
    from pathlib import Path
    from trainyard.artifacts.restore import restore
    from trainyard.artifacts.restore.selection import Selection
    from trainyard.gateways.local_store.folder import LocalStore

    class Killing(LocalStore):
        left = int(sys.argv[3])
        def stream(self, *given, **rest):
            for chunk in super().stream(*given, **rest):
                for offset in range(0, len(chunk), 1000):
                    self.live()
                    yield chunk[offset:offset + 1000]

        def live(self):
            Killing.left -= 1
            if Killing.left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    restore.restore(Killing(Path(sys.argv[1])), Selection(1), Path(sys.argv[2]))
"""


def test_killed_at_any_moment_it_goes_on_and_the_name_appears_when_all_is_whole(
    store: Store, make_run: Any, folder: Path, target: Path, tmp_path: Path
) -> None:
    (tmp_path / "killed.py").write_text(textwrap.dedent(KILLED))
    run = make_run(size=20_000)
    sync_run(store, run, 1)
    for allowed in (3, 20, 30):
        line = [sys.executable, str(tmp_path / "killed.py"), str(folder), str(target), str(allowed)]
        assert warm_start.run(line, timeout=60).returncode == -signal.SIGKILL
        assert not target.exists()
    report = restore.restore(store, ALL, target)
    assert report.kept > 0
    assert tree(target) == tree(run.path)


def test_a_beginning_that_is_none_is_fetched_anew(store: Store, run: RunDirectory, target: Path) -> None:
    checkpoint = work(target) / "checkpoints/step-00000200"
    checkpoint.mkdir(parents=True)
    (checkpoint / "__0_0.distcp").write_bytes(b"x" * 10)
    (checkpoint / ".metadata").write_bytes(b"y" * 9_999)
    (checkpoint / "planted").write_bytes(b"z")
    (work(target) / "elsewhere").symlink_to(run.path)
    restore.restore(store, ALL, target)
    assert tree(target) == tree(run.path)
    assert not (target / "elsewhere").exists()


def test_a_full_disk_is_named_before_anything_is_fetched(
    store: Store, run: RunDirectory, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=5000))
    with pytest.raises(TrainyardError, match=r"No space left on .*5.0 kB free, 1[\d.]+ kB needed") as full:
        restore.restore(store, ALL, target)
    assert full.value.exit_code == 1
    assert not work(target).exists()


def test_a_disk_that_fills_up_while_it_writes(
    store: Store, run: RunDirectory, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = download._write

    def write(file: Any, chunk: bytes) -> None:
        if len(chunk) == 5000:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(file, chunk)

    monkeypatch.setattr(download, "_write", write)
    with pytest.raises(TrainyardError, match="No space left on device") as full:
        restore.restore(store, ALL, target)
    assert full.value.exit_code == 1
    assert "run the same command again" in str(full.value)
    assert not target.exists()
    monkeypatch.setattr(download, "_write", real)
    assert restore.restore(store, ALL, target).kept > 0


def test_what_is_there_is_never_replaced(store: Store, run: RunDirectory, target: Path) -> None:
    target.mkdir(parents=True)
    (target / "mine").write_text("x")
    with pytest.raises(ConfigError, match="is not empty"):
        restore.restore(store, ALL, target)
    assert tree(target) == {"mine": b"x"}
    for name in (target / "mine", Path("/")):
        with pytest.raises(ConfigError, match="is not a name for a new directory"):
            restore.restore(store, ALL, name)


def test_a_plan_changes_nothing(store: Store, run: RunDirectory, target: Path) -> None:
    plan = restore.plan_restore(store, NEWEST, target)
    assert (plan.steps, plan.files) == ((200,), 9)
    assert "nothing was changed" in plan.text()
    assert not target.parent.exists()


def test_two_restores_to_one_directory_do_not_mix(store: Store, run: RunDirectory, target: Path) -> None:
    with (
        restore._lock_directory(work(target)),
        pytest.raises(ConfigError, match="another restore is writing"),
    ):
        restore.restore(store, ALL, target)


def test_records_that_a_sync_replaces_meanwhile_are_refused_and_the_next_restore_is_right(
    folder: Path, run: RunDirectory, make_run: Any, target: Path
) -> None:
    class Overtaken(LocalStore):
        done = False

        def stream(self, key: str, *given: Any, **rest: Any) -> Any:
            if key == "run-1/metrics.jsonl" and not self.done:
                self.done = True
                make_run(steps=(300,))
                sync_run(LocalStore(folder), run, 1)
            return super().stream(key, *given, **rest)

    with pytest.raises(VerificationError, match=r"metrics\.jsonl"):
        restore.restore(Overtaken(folder), ALL, target)
    assert restore.restore(LocalStore(folder), ALL, target).steps == (100, 200, 300)
    assert tree(target) == tree(run.path)


@pytest.mark.parametrize("times", [1, 99])
def test_an_object_that_is_replaced_while_it_is_read_is_read_again_and_named_in_the_end(
    folder: Path, run: RunDirectory, target: Path, times: int
) -> None:
    class Replaced(LocalStore):
        left = times

        def stream(self, key: str, *given: Any, **rest: Any) -> Any:
            yield from super().stream(key, *given, **rest)
            if key == "run-1/checkpoint-200/.metadata" and self.left:
                self.left -= 1
                raise ObjectChangedError(key)

    if times == 1:
        restore.restore(Replaced(folder), ALL, target)
        assert tree(target) == tree(run.path)
        return
    with pytest.raises(VerificationError, match=r"checkpoint-200/\.metadata: replaced while it was read"):
        restore.restore(Replaced(folder), ALL, target)
    assert not target.exists()


@pytest.mark.parametrize("change", [{"step": 7}, {"files": []}, {"files": 3}])
def test_a_checkpoint_whose_own_manifest_says_otherwise_is_not_restored(
    store: Store, folder: Path, make_run: Any, target: Path, change: dict[str, Any]
) -> None:
    run = make_run(steps=(100,))
    sync_run(store, run, 1)
    path = folder / "run-1/checkpoint-100/manifest.json"
    edit(path, **change)
    objects = json.loads((folder / MANIFEST).read_text())["objects"]
    entry = next(entry for entry in objects if entry["key"].endswith("checkpoint-100/manifest.json"))
    entry |= {"size": path.stat().st_size, "sha256": sha256_of_file(path)}
    edit(folder / MANIFEST, objects=objects)
    with pytest.raises(VerificationError, match=r"manifest\.json"):
        restore.restore(store, ALL, target)


HOSTILE = [
    "run-1/../../evil",
    "run-1/logs/../../../evil",
    "run-1//etc/evil",
    "/etc/evil",
    "run-1/.",
    "run-1/logs/",
    "run-1/a\0b",
    "run-1/a\ud800b",
    "run-2/run.json",
    "evil",
    "run-1/checkpoint-9/../../evil",
    "run-1/checkpoint-٣/../x",
]


@pytest.mark.parametrize("key", HOSTILE)
def test_a_hostile_key_writes_nothing_anywhere(
    store: Store, run: RunDirectory, folder: Path, target: Path, tmp_path: Path, key: str
) -> None:
    with pytest.raises((VerificationError, ValueError)):  # ValueError for a lone surrogate
        places_of([ManifestObject(key, 1, "0" * 64)], 1)
    objects = json.loads((folder / MANIFEST).read_text())["objects"]
    edit(folder / MANIFEST, objects=[*objects, {"key": key, "size": 0, "sha256": "0" * 64}])
    before = set(tmp_path.rglob("*"))
    with pytest.raises(VerificationError):
        restore.restore(store, ALL, target)
    assert set(tmp_path.rglob("*")) - before <= {target.parent}


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("run-1/logs/C:\\CON", "logs/C:\\CON"),
        ("run-1/logs/\u202egol", "logs/\u202egol"),
        ("run-1/checkpoint-007/x", "checkpoints/step-00000007/x"),
        ("run-1/checkpoint/latest.pt", "checkpoint/latest.pt"),
        ("metrics/metrics-1.json", "metrics.json"),
    ],
)
def test_a_strange_name_is_a_name(key: str, place: str) -> None:
    assert list(places_of([ManifestObject(key, 1, "0" * 64)], 1)) == [PurePosixPath(place)]


def test_two_objects_for_one_place_are_refused() -> None:
    keys = ("run-1/checkpoint-7/x", "run-1/checkpoint-007/x")
    with pytest.raises(VerificationError, match="has the same path as"):
        places_of([ManifestObject(key, 1, "0" * 64) for key in keys], 1)


def test_names_that_a_file_system_takes_for_one_are_noticed(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    os.link(tmp_path / "a", tmp_path / "A")
    entry = ManifestObject("run-1/a", 1, "0" * 64)
    with pytest.raises(VerificationError, match="as one name"):
        download.require_distinct(tmp_path, {PurePosixPath("a"): entry, PurePosixPath("A"): entry})


def test_a_selection_says_what_it_cannot_mean(store: Store, run: RunDirectory, target: Path) -> None:
    with pytest.raises(ConfigError, match="--run-number is missing"):
        parse_selection(store, None, "newest")
    with pytest.raises(ConfigError, match="neither a step, nor newest, nor a name"):
        parse_selection(store, 1, "Best")
    with pytest.raises(VerificationError, match=r"no checkpoint of step 150.*Steps: 100, 200\."):
        restore.restore(store, parse_selection(store, 1, "150"), target)
    assert parse_selection(store, 1, None) == ALL


names = st.text(st.characters(exclude_characters="/\0", codec="utf-8"), min_size=1, max_size=20).filter(
    lambda name: name not in (".", "..", "manifest.json")
)
paths = st.lists(names, min_size=1, max_size=3).map("/".join)


@settings(max_examples=settings().max_examples // 6)
@given(st.dictionaries(paths, st.binary(max_size=300), max_size=12))
def test_any_tree_comes_back(tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]) -> None:
    base = tmp_path_factory.mktemp("tree")
    directory = RunDirectory(base / "run")
    directory.create()
    write_identity(directory.run_file, "run-a", {})
    checkpoint = directory.checkpoint(1)
    checkpoint.mkdir()
    for name, content in files.items():
        path = checkpoint / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            continue  # one path's folder is another path's file
    write_manifest(checkpoint, CheckpointManifest(1, "run-a", 0.0, describe_files(checkpoint)))
    store = open_store((base / "store").as_uri())
    assert sync_run(store, directory, 1).problems == ()
    report = restore.restore(store, ALL, base / "back")
    assert report.steps == (1,)
    assert tree(base / "back") == tree(directory.path)
    shutil.rmtree(base)
