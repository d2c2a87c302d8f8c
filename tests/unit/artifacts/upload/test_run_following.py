"""A run that is stored while it is trained: what is complete at any time, and the end of following."""

import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainyard.artifacts.store.object_store import Store
from trainyard.artifacts.upload import run_following
from trainyard.artifacts.upload.run_following import (
    Ending,
    FollowReport,
    Patience,
    RunningRun,
    follow_run,
    wait_for_run,
)
from trainyard.artifacts.upload.sync import sync_run
from trainyard.artifacts.upload.upload import RateLimit
from trainyard.artifacts.verify.verify import Depth, verify_run
from trainyard.errors import ExitCode, ServiceError, StoppedError, WaitTimeoutError
from trainyard.gateways.local_store.folder import LocalStore, LocalUpload
from trainyard.run import identity
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import write_outcome

NONE: frozenset[str] = frozenset()


class Follower:
    """`follow_run` in a thread of its own."""

    def __init__(self, store: Store, run: RunDirectory, **patience: float) -> None:
        self.stop = threading.Event()
        self.result: FollowReport | None = None
        self.error: Exception | None = None
        self._limits = Patience(**{"poll_seconds": 0.01, **patience})
        self._thread = threading.Thread(target=self._follow, args=(store, run))
        self._thread.start()

    def _follow(self, store: Store, run: RunDirectory) -> None:
        try:
            self.result = follow_run(store, run, 1, stop=self.stop, patience=self._limits)
        except ServiceError as error:
            self.error = error

    def end(self) -> FollowReport:
        self._thread.join(20)
        assert self.result is not None
        return self.result


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def verifies(store: Store) -> bool:
    return verify_run(store, 1, depth=Depth.FULL).ok


def test_each_checkpoint_is_provable_once_it_is_stored(store: Store, folder: Path, make_run: Any) -> None:
    run = make_run(steps=(100,))
    follower = Follower(store, run)
    first, second = (folder / "manifests" / name for name in ("run-1-open-1.json", "run-1-open-2.json"))
    wait_until(first.is_file)
    assert verifies(store)
    make_run(steps=(200,))
    wait_until(second.is_file)
    assert verifies(store)
    value = json.loads(second.read_bytes())
    keys = {entry["key"] for entry in value["objects"]}
    assert value["records"] == "run-1/records-2/"
    assert {
        "run-1/checkpoint-200/__0_0.distcp",
        "run-1/records-2/run.json",
        "run-1/records-1/run.json",
    } <= keys
    assert "run-1/run.json" not in keys
    write_outcome(run.run_file, {"status": "succeeded"})
    done = follower.end()
    assert (done.ending, done.checkpoints, done.exit_code) == (Ending.OUTCOME, 2, ExitCode.DONE)
    assert "2 checkpoints while it was trained" in done.summary()
    assert done.last is not None and done.last.manifest_key == "manifests/run-1-manifest.json"
    assert verify_run(store, 1, depth=Depth.FULL, run_directory=run).ok


def test_a_save_that_is_not_completed_is_waited_for(store: Store, folder: Path, make_run: Any) -> None:
    run = make_run(steps=(100, 200))
    marker = run.checkpoint(200) / "manifest.json"
    marker.rename(run.path / "later")
    follower = Follower(store, run)
    wait_until((folder / "manifests/run-1-open-1.json").is_file)
    assert not (folder / "run-1/checkpoint-200").exists()
    (run.path / "later").rename(marker)
    wait_until((folder / "manifests/run-1-open-2.json").is_file)
    follower.stop.set()
    done = follower.end()
    assert (done.ending, done.checkpoints, done.exit_code) == (Ending.STOPPED, 2, ExitCode.STOPPED)
    assert verifies(store)


def test_a_checkpoint_that_retention_removes_while_it_is_read_is_passed_over(
    store: Store, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(steps=(100, 200))
    stage = LocalStore.stage

    def slow(self: LocalStore, path: Path, key: str, **how: Any) -> LocalUpload:
        if key == "run-1/checkpoint-200/__0_0.distcp":
            shutil.rmtree(run.checkpoint(200))
        return stage(self, path, key, **how)

    monkeypatch.setattr(LocalStore, "stage", slow)
    write_outcome(run.run_file, {"status": "succeeded"})
    report = sync_run(store, run, 1)
    assert report.problems == ()
    assert report.notes == ("checkpoint-200: removed by the run while it was read; passed over",)
    assert verify_run(store, 1, depth=Depth.FULL, run_directory=run).ok


class DeathError(Exception):
    """The machine is gone."""


class Mortal:
    """A store whose client dies before operation number `left`."""

    def __init__(self, store: LocalStore, left: int) -> None:
        self._store, self._left = store, left
        self.url, self.prefix = store.url, store.prefix

    def __getattr__(self, name: str) -> Any:
        def operation(*arguments: Any, **named: Any) -> Any:
            self._left -= 1
            if self._left < 0:
                raise DeathError
            done = getattr(self._store, name)(*arguments, **named)
            return MortalUpload(done, self) if name == "stage" else done

        return operation

    def tick(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise DeathError


class MortalUpload:
    def __init__(self, upload: LocalUpload, store: Mortal) -> None:
        self._upload, self._store = upload, store
        self.size, self.sha256 = upload.size, upload.sha256

    def commit(self) -> Any:
        self._store.tick()
        return self._upload.commit()

    def abort(self) -> None:
        """Do nothing: a dead client cleans nothing up."""


@pytest.mark.slow
def test_a_death_loses_only_the_checkpoint_in_flight(folder: Path, make_run: Any, tmp_path: Path) -> None:
    """Also when a stopped run was stored before and has resumed: its first manifest is not an open one."""
    first, run = make_run("first", steps=(100,)), make_run(steps=(100, 200))
    template = LocalStore(tmp_path / "template")
    shutil.copytree(run.path, first.path, dirs_exist_ok=True)
    shutil.rmtree(first.checkpoint(200))
    write_outcome(first.run_file, {"status": "stopped"})
    sync_run(template, first, 1)
    deaths = 0
    for left in range(200):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(tmp_path / "template", folder)
        store: Any = Mortal(LocalStore(folder), left)
        try:
            report = RunningRun(store, run, 1).store_newest(NONE)
        except DeathError:
            deaths += 1
            found = verify_run(LocalStore(folder), 1, depth=Depth.FULL)
            assert found.ok, (left, found.problems)
            continue
        assert report is not None and report.problems == ()
        assert "run-1/checkpoint-200/manifest.json" in {
            o.key for o in LocalStore(folder).list_objects("run-1/")
        }
        break
    assert deaths > 20
    assert RunningRun(LocalStore(folder), run, 1).store_newest(NONE) is None


def test_a_store_that_is_away_is_waited_for(
    store: Store, folder: Path, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_following, "_FIRST_PAUSE", 0.01)
    run = make_run(steps=(100,))
    away = threading.Event()
    away.set()
    stage = LocalStore.stage

    def brittle(self: LocalStore, path: Path, key: str, **how: Any) -> LocalUpload:
        if away.is_set():
            raise ServiceError("The store is away.")
        return stage(self, path, key, **how)

    monkeypatch.setattr(LocalStore, "stage", brittle)
    follower = Follower(store, run)
    wait_until(lambda: (folder / "run-1/identity.json").is_file())
    time.sleep(0.1)
    away.clear()
    wait_until((folder / "manifests/run-1-open-1.json").is_file)
    away.set()
    make_run(steps=(200,))
    time.sleep(0.1)
    follower.stop.set()  # after a request to stop, an unreachable store is not waited for
    follower._thread.join(20)
    assert isinstance(follower.error, ServiceError)
    assert "When this is fixed, run: " in str(follower.error)
    assert verifies(store)


def test_a_long_outage_is_given_up(store: Store, make_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_following, "_FIRST_PAUSE", 0.01)

    def away(*_: Any, **__: Any) -> None:
        raise ServiceError("The store is away.")

    run = make_run(steps=(100,))
    monkeypatch.setattr(LocalStore, "stage", away)
    follower = Follower(store, run, outage_seconds=0.05)
    follower._thread.join(20)
    assert isinstance(follower.error, ServiceError)


def test_a_run_that_falls_silent_has_its_checkpoints_stored(store: Store, make_run: Any) -> None:
    done = Follower(store, make_run(), silence_seconds=0.3).end()
    assert (done.ending, done.checkpoints, done.exit_code) == (Ending.SILENT, 2, ExitCode.TIMED_OUT)
    assert "stopped writing" in done.summary()
    assert verifies(store)


def test_a_damaged_checkpoint_is_named_once_and_the_others_are_stored(store: Store, make_run: Any) -> None:
    run = make_run()
    data = run.checkpoint(200) / "__0_0.distcp"
    data.write_bytes(bytes(data.stat().st_size))
    done = Follower(store, run, silence_seconds=0.3).end()
    assert (done.checkpoints, done.exit_code) == (1, ExitCode.NO)
    assert len(done.problems) == 1
    assert done.problems[0].startswith("checkpoint-200 was not uploaded: ")


def test_an_old_outcome_is_waited_upon_before_the_run_counts_as_over(
    store: Store, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, seen = make_run(steps=(100,)), []

    def read_run(path: Path) -> dict[str, Any]:
        value = identity.read_run(path)
        seen.append("outcome" in value)
        return value

    write_outcome(run.run_file, {"status": "stopped"})
    monkeypatch.setattr(run_following, "_SETTLE_SECONDS", 3600.0)
    monkeypatch.setattr(run_following, "read_run", read_run)
    follower = Follower(store, run)
    wait_until(lambda: seen.count(True) > 1)
    assert follower.result is None
    write_outcome(run.run_file, None)  # the trainer continues
    wait_until(lambda: False in seen)
    write_outcome(run.run_file, {"status": "succeeded"})
    assert follower.end().ending is Ending.OUTCOME


def test_a_run_is_waited_for(tmp_path: Path) -> None:
    stop = threading.Event()
    with pytest.raises(WaitTimeoutError, match=r"run\.json: no trainer has written it"):
        wait_for_run(RunDirectory(tmp_path), Patience(silence_seconds=0, poll_seconds=0.01), stop)
    stop.set()
    with pytest.raises(StoppedError, match="a stop was requested"):
        wait_for_run(RunDirectory(tmp_path), Patience(), stop)


def test_a_pace_is_kept_over_time() -> None:
    now, slept = [0.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    pace = RateLimit(1000, clock=lambda: now[0], sleep=sleep)
    for _ in range(10):
        pace(500)
    assert now[0] == pytest.approx(4.5)
    now[0] = 100.0  # the unused rate of the pause does not add up
    slept.clear()
    for _ in range(4):
        pace(500)
    assert sum(slept) == pytest.approx(1.4)


def test_a_run_that_begins_while_we_are_asked_to_stop_is_not_lost(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)

    class AskedWhileWaiting(threading.Event):
        """The trainer writes its first record in the pause in which the stop is requested."""

        def wait(self, timeout: float | None = None) -> bool:
            directory.run_file.write_text("{}")
            return True

    wait_for_run(directory, Patience(), AskedWhileWaiting())
