"""A folder as a store, the list of its runs, and the records that GitHub keeps: bounded, for people."""

import contextlib
import errno
import os
import resource
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.cases import each_case

from trainyard.artifacts import gathering, inventory
from trainyard.artifacts.gathering import LARGEST_FILE, LARGEST_LOG, LARGEST_LOGS, gather_records
from trainyard.artifacts.inventory import inventory_table, list_runs
from trainyard.artifacts.promotion import find_promotable, promote
from trainyard.artifacts.store.layout import READINESS, READINESS_SMALL
from trainyard.artifacts.store.object_store import Store
from trainyard.artifacts.store.store_address import open_store
from trainyard.artifacts.store_probe import Probe, probe_store, standing_of
from trainyard.artifacts.upload.sync import sync_run
from trainyard.artifacts.verify.comparison import Depth
from trainyard.errors import ConfigError
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import write_outcome

KEPT = (
    "run.json",
    "config.yaml",
    "metrics.jsonl",
    "events.jsonl",
    "report/index.html",
    "report/pictures/curve.svg",
    "logs/nccl-rank-0.log",
    "logs/hang-rank-3.txt",
    "logs/hang-nccl-rank-3",
    "logs/trace-10-12.json",
)
NOT_KEPT = (
    "checkpoints/step-00000500/manifest.json",
    "checkpoints/step-00000500/__0_0.distcp",
    "tensorboard/events.out.tfevents.1.host",
    "logs/wandb/offline-run-1/run-1.wandb",
    "slack.json",
    ".lock",
    "prepared/tokens.bin",
)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A run with one file of every kind."""
    directory = RunDirectory(tmp_path / "gh-1")
    for name in (*KEPT, *NOT_KEPT):
        path = directory.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name}\n")
    return directory


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def grown(path: Path, size: int) -> None:
    """Make a file larger by a hole, which takes no space on the disk."""
    os.truncate(path, size)


def test_records_and_reports_are_copied_and_nothing_else(run: RunDirectory, tmp_path: Path) -> None:
    gathered = gather_records(run, tmp_path / "kept")
    assert files(tmp_path / "kept") == set(gathered.names) == set(KEPT)
    assert (gathered.shortened, gathered.left_out) == ([], [])
    assert gathered.size == sum((run.path / name).stat().st_size for name in KEPT)
    for name in KEPT:
        assert (tmp_path / "kept" / name).read_bytes() == (run.path / name).read_bytes()


def test_it_stays_bounded_however_large_every_file_grows(run: RunDirectory, tmp_path: Path) -> None:
    for name in (*KEPT, *NOT_KEPT):
        grown(run.path / name, LARGEST_FILE + 1)
    gathered = gather_records(run, tmp_path / "kept")
    whole = {"run.json", "config.yaml", "report/index.html", "report/pictures/curve.svg"}
    assert set(gathered.left_out) == whole | {"logs/hang-nccl-rank-3", "logs/trace-10-12.json"}
    assert set(gathered.shortened) == set(gathered.names) == set(KEPT) - set(gathered.left_out)
    assert gathered.size <= 2 * LARGEST_FILE + LARGEST_LOGS


def test_of_many_rows_the_last_whole_ones_are_kept(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "LARGEST_FILE", 100)
    rows = [f'{{"step": {step}}}\n' for step in range(100)]
    run.metrics_file.write_text("".join(rows))
    assert gather_records(run, tmp_path / "kept").shortened == ["metrics.jsonl"]
    kept = (tmp_path / "kept" / "metrics.jsonl").read_text().splitlines(keepends=True)
    assert kept == rows[-len(kept) :]
    assert 80 < sum(map(len, kept)) <= 100


def test_of_a_large_log_both_ends_are_kept(run: RunDirectory, tmp_path: Path) -> None:
    """The first error of the first rank may be in its beginning."""
    log = run.logs / "nccl-rank-0.log"
    log.write_bytes(b"first\n" + b"." * (2 * LARGEST_LOG) + b"\nlast\n")
    gather_records(run, tmp_path / "kept")
    kept = (tmp_path / "kept" / "logs" / "nccl-rank-0.log").read_bytes()
    assert kept.startswith(b"first\n") and kept.endswith(b"\nlast\n") and len(kept) <= LARGEST_LOG


def test_of_many_logs_the_smallest_are_kept(run: RunDirectory, tmp_path: Path) -> None:
    count = LARGEST_LOGS // LARGEST_LOG + 8
    for rank in range(count):
        grown_log = run.logs / f"nccl-rank-{100 + rank}.log"
        grown_log.touch()
        grown(grown_log, LARGEST_LOG)
    gathered = gather_records(run, tmp_path / "kept")
    logs = [path.stat().st_size for path in (tmp_path / "kept" / "logs").iterdir()]
    assert LARGEST_LOGS - LARGEST_LOG < sum(logs) <= LARGEST_LOGS
    assert {"logs/nccl-rank-0.log", "logs/trace-10-12.json"} <= set(gathered.names)
    assert all(name.startswith("logs/nccl-rank-1") for name in gathered.left_out)


def test_a_link_is_not_followed_out_of_the_run(run: RunDirectory, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("key")
    (run.logs / "link.txt").symlink_to(tmp_path / "secret")
    run.config_file.unlink()
    run.config_file.symlink_to(tmp_path / "secret")
    gather_records(run, tmp_path / "kept")
    assert files(tmp_path / "kept") == set(KEPT) - {"config.yaml"}


def test_a_run_that_left_nothing_gives_an_empty_folder(tmp_path: Path) -> None:
    gathered = gather_records(RunDirectory(tmp_path / "none"), tmp_path / "kept")
    assert (gathered.names, files(tmp_path / "kept")) == ([], set())


def test_a_folder_that_exists_is_not_mixed_with(run: RunDirectory, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    with pytest.raises(ConfigError, match="exists already"):
        gather_records(run, tmp_path / "kept")


def test_runs_are_listed_with_their_checkpoints(make_run: Callable[..., Any], store: Store) -> None:
    sync_run(store, make_run("one"), 1)
    sync_run(store, make_run("two", steps=(300,)), 2)
    one, two = list_runs(store, [1, 2], judge=lambda *_: ())
    assert one.ok
    assert two.ok
    text = inventory_table([one, two])
    assert "run-1" in text or "1" in text.split()
    assert "300" in text
    assert [len(run.to_json()["checkpoints"]) for run in (one, two)] == [2, 1]


def test_many_runs_take_one_listing_and_the_newest_are_read_and_judged(
    make_run: Callable[..., Any], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, listings, list_objects = list[int](), list[str](), type(store).list_objects
    read, read_object = set[str](), type(store).read_object
    for number in range(1, 5):
        run = make_run(f"run-{number}", steps=(100,))
        write_outcome(run.run_file, {"status": "succeeded"})
        sync_run(store, run, number)

    def judge(_: Store, number: int) -> tuple[str, ...]:
        asked.append(number)
        return ()

    def noted(self: Any, prefix: str) -> Any:
        listings.append(prefix)
        return list_objects(self, prefix)

    def noted_read(self: Any, key: str) -> Any:
        read.add(key)
        return read_object(self, key)

    _, checkpoint = find_promotable(store, 2, 100, depth=Depth.LISTING)
    promote(store, "best", checkpoint, run_id="run-2", by="ada", depth=Depth.LISTING)
    store.delete("run-1/identity.json")
    monkeypatch.setattr(type(store), "list_objects", noted)
    monkeypatch.setattr(type(store), "read_object", noted_read)
    monkeypatch.setattr(inventory, "MOST_JUDGED", 1)
    runs = list_runs(store, [1, 2, 3, 4], judge=judge, most_read=2)
    assert [run.proof for run in runs] == ["not judged", "not judged", "not judged", "proven"]
    assert (asked, listings) == ([4], [""])
    assert len(read) == 5 and not [key for key in read if "run-1" in key or "run-2" in key]
    assert [run.ok for run in runs] == [False, True, True, True]
    assert "not read" in inventory_table(runs).splitlines()[2]
    monkeypatch.setattr(inventory, "MOST_JUDGED", 3)
    every = list_runs(store, [2, 3, 4], judge=judge)
    assert [run.proof for run in every] == ["proven"] * 3
    assert [each.step for each in runs[1].checkpoints] == [100] and runs[1].bytes == every[0].bytes
    assert runs[1].checkpoints[0].promoted == every[0].checkpoints[0].promoted == ("best",)
    assert runs[1].checkpoints[0].bytes == every[0].checkpoints[0].bytes


def test_a_run_that_lost_an_object_is_named_and_not_ok(make_run: Callable[..., Any], store: Store) -> None:
    sync_run(store, make_run("one"), 1)
    lost = next(found.key for found in store.list_objects("run-1/") if "checkpoint-200" in found.key)
    store.delete(lost)
    (listed,) = list_runs(store, [1], judge=lambda *_: ())
    assert not listed.ok
    assert listed.proof == "not proven"
    assert any(lost in problem for problem in listed.problems)


def probed(path: Path) -> Probe:
    return probe_store(open_store(f"file://{quote(str(path))}"), writes=True)


@each_case(
    "name", ["store", "with space", "100%", "#?&;", "ö 试", "'\"$(x)", "a\nb", "file:", "%41", "-rf", "..."]
)
def test_a_folder_of_any_name_is_ready(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "missing" / "parents" / name
    assert probed(folder) == Probe()
    assert probed(folder) == Probe()
    assert {path.name for path in folder.rglob("*") if path.is_file()} == {READINESS, READINESS_SMALL}


def test_with_nothing_to_write_the_folder_is_not_even_made(tmp_path: Path) -> None:
    assert probe_store(open_store(f"file://{tmp_path}/store"), writes=False) == Probe()
    assert list(tmp_path.iterdir()) == []


def test_a_limit_of_file_sizes_is_refused(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        (problem,) = probed(tmp_path / "store").problems
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert os.strerror(errno.EFBIG) in problem
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Root may do everything, so tests that run as root access folders as another user."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("mode", [0o000, 0o500, 0o600])
def test_a_folder_that_this_user_may_not_use_is_refused(mode: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        folder = Path(name) / "store"
        with as_nobody():
            if os.geteuid() != Path(name).stat().st_uid:
                (problem, *_) = probed(folder).problems
                assert "Permission denied" in problem
        folder.mkdir()
        if os.geteuid() == 0:
            os.chown(folder, 65534, 65534)
        folder.chmod(mode)
        with as_nobody():
            found = probed(folder)
        folder.chmod(0o700)
        assert found.problems
        assert all("Permission denied" in problem for problem in found.problems)
        assert list(folder.iterdir()) == []


def test_a_store_that_loses_or_changes_what_it_is_given_is_refused(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is a real one, but a patch changes what is read from it."""
    for given in (None, b"{", b""):
        with monkeypatch.context() as patch:
            patch.setattr(type(store), "read_object", lambda _store, _key, given=given: given)
            (problem,) = probe_store(store, writes=True).problems
        assert "is missing or has other bytes" in problem


@pytest.mark.parametrize("wanted", [None, 1, 2, 7])
@pytest.mark.parametrize("claims", [{}, {1: "other"}, {1: "mine"}, {1: "other", 3: "mine"}, {2: ""}])
def test_whose_a_number_is(store: Store, wanted: int | None, claims: dict[int, str]) -> None:
    for number, run_id in claims.items():
        content = f'{{"run_id": "{run_id}"}}' if run_id else "torn"
        store.put_new(f"run-{number}/identity.json", content.encode(), metadata={})
        if run_id:
            by_id = f'{{"run_id": "{run_id}", "run_number": {number}}}'
            store.put_new(f"ids/{run_id}.json", by_id.encode(), metadata={})
    found = standing_of(store, "mine", wanted, may_be_stored=True)
    next_free = max(claims, default=0) + 1
    if wanted is None:
        had = next((number for number, run_id in claims.items() if run_id == "mine"), None)
        assert (found.number, found.owner) == ((had, "mine") if had else (next_free, None))
    else:
        assert (found.number, found.owner) == (wanted, claims.get(wanted))
        assert found.free == (None if found.owner in (None, "mine") else next_free)
    unread = standing_of(store, "mine", None, may_be_stored=False)
    assert (unread.number, unread.owner) == (next_free, None)
    if claims:
        assert len(list(store.list_objects(""))) == len(claims) + sum(map(bool, claims.values()))
