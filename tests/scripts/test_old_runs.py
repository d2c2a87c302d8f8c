"""Old runs on the runner: which directories are removed, for each state at each kind of position."""

import fcntl
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.scripts.conftest import save, write_finished_run

from trainyard.artifacts.store.store_address import open_store
from trainyard.artifacts.upload.sync import sync_run
from trainyard.command import handler
from trainyard.commands import step_action
from trainyard.proof import PARTS
from trainyard.run.directory import RunDirectory
from trainyard.run.judged_records import digests_now

RUNS = [f"gh-{number}" for number in range(106, 100, -1)]
"""The newest first: its position is its index."""
KEPT = 3
NUMBERS = {name: int(name.removeprefix("gh-")) for name in RUNS}


def prove(layout: RunDirectory, store: str, **changes: Any) -> None:
    """The record that trainyard prove leaves."""
    run = json.loads(layout.run_file.read_text())
    record = {"proven": True, "run_id": run["run_id"], "run_number": NUMBERS.get(run["run_id"], 1)}
    record["parts"] = [{"name": name, "passed": True, "evidence": "", "fix": None} for name in PARTS]
    record |= {"finished": run["outcome"].get("finished"), "store": store, "records": digests_now(layout)}
    (layout.report / "proof.json").write_text(json.dumps(record | changes))


@pytest.fixture(scope="module")
def finished_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six finished and stored runs beside their store."""
    folder = tmp_path_factory.mktemp("runner")
    for age, name in enumerate(reversed(RUNS)):
        layout = RunDirectory(folder / "runs" / name)
        write_finished_run(layout, steps=2, saves=(1, 2), finished=1.7e9 + age)
        sync_run(open_store(f"file://{folder}/store"), layout, NUMBERS[name])
    return folder


@pytest.fixture
def world(finished_runs: Path, tmp_path: Path) -> Path:
    """A copy of them for one test, each run with its proof."""
    folder = tmp_path / "runner"
    shutil.copytree(finished_runs, folder)
    for name in RUNS:
        prove(RunDirectory(folder / "runs" / name), f"file://{folder}/store")
    return folder


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


Change = Callable[[Path, str], Any]


def run_of(world: Path, name: str) -> RunDirectory:
    return RunDirectory(world / "runs" / name)


def rewrite(layout: RunDirectory, **outcome: Any) -> None:
    """Change the outcome, and write a proof of it in which all parts hold."""
    run = json.loads(layout.run_file.read_text())
    run["outcome"] |= outcome
    layout.run_file.write_text(json.dumps(run))
    proof = json.loads((layout.report / "proof.json").read_text())
    prove(layout, proof["store"])


def lock(world: Path, name: str) -> Any:
    file = (run_of(world, name).path / ".lock").open("a+")
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return file


def interrupt(world: Path, name: str) -> Any:
    """A run in progress: no outcome yet, and its trainer holds the lock."""
    rewrite(run_of(world, name), status=None, finished=None)
    return lock(world, name)


def replace_by_link(path: Path, elsewhere: Path) -> None:
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def remove_object(world: Path, pattern: str) -> None:
    found = list((world / "store").glob(pattern))
    assert found, pattern
    for path in found:
        path.unlink()


def change_object(world: Path, pattern: str) -> None:
    path = next((world / "store").glob(pattern))
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1] + b"?")


STATES: dict[str, Change | None] = {
    "proven and stored": None,
    "proven and stored, lock left behind": lambda w, n: (run_of(w, n).path / ".lock").write_text("1"),
    "proven, the store lost its manifest": lambda w, n: remove_object(w, f"manifests/run-{NUMBERS[n]}-*"),
    "proven, the store lost a shard": lambda w, n: remove_object(
        w, f"run-{NUMBERS[n]}/checkpoint-*1/state.bin"
    ),
    "proven, the store's bytes changed": lambda w, n: change_object(
        w, f"run-{NUMBERS[n]}/checkpoint-*2/state.bin"
    ),
    "proven, with one more checkpoint": lambda w, n: save(run_of(w, n), 3, recorded=False),
    "proven, with an unfinished checkpoint": lambda w, n: run_of(w, n).checkpoint(3).mkdir(),
    "proven, with another checkpoint of a step": lambda w, n: (
        run_of(w, n).checkpoint(1) / "manifest.json"
    ).write_text("{}"),
    "proven, with a checkpoint set aside": lambda w, n: (run_of(w, n).checkpoints / ".set-aside-x").mkdir(),
    "proven, its checkpoints behind a link": lambda w, n: replace_by_link(
        run_of(w, n).checkpoints, w / "checkpoints"
    ),
    "proven, with a file of somebody": lambda w, n: (run_of(w, n).path / "notes.md").write_text("mine"),
    "proven, with a folder of somebody": lambda w, n: (run_of(w, n).path / "export").mkdir(),
    "proven, with a link of somebody": lambda w, n: (run_of(w, n).path / "data").symlink_to(w),
    "proven, with what the code leaves": lambda w, n: [
        (run_of(w, n).path / name).write_text("{}") for name in ("slack.json", "node.json", ".lock")
    ],
    "proven in another store": lambda w, n: prove(run_of(w, n), "s3://elsewhere"),
    "proven under the number of another run": lambda w, n: prove(
        run_of(w, n), f"file://{w}/store", run_number=next(NUMBERS[x] for x in RUNS if x != n)
    ),
    "changed after its proof": lambda w, n: run_of(w, n).metrics_file.write_text("{}\n"),
    "not proven": lambda w, n: prove(run_of(w, n), f"file://{w}/store", proven=False),
    "proven in three parts": lambda w, n: prove(run_of(w, n), f"file://{w}/store", parts=[]),
    "without a proof": lambda w, n: (run_of(w, n).report / "proof.json").unlink(),
    "with a torn proof": lambda w, n: (run_of(w, n).report / "proof.json").write_text('{"proven": tr'),
    "failed": lambda w, n: rewrite(run_of(w, n), status="failed", exit_code=1),
    "stopped, 75": lambda w, n: rewrite(run_of(w, n), status="stopped", exit_code=75),
    "running": lambda w, n: interrupt(w, n),
    "proven and in use": lock,
    "without run.json": lambda w, n: run_of(w, n).run_file.unlink(),
    "with a damaged run.json": lambda w, n: run_of(w, n).run_file.write_text('{"run_id": "'),
    "with a run.json behind a link": lambda w, n: replace_by_link(run_of(w, n).run_file, w / "run.json"),
    "a link": lambda w, n: replace_by_link(run_of(w, n).path, w / "elsewhere"),
    "with the run.json of another": lambda w, n: rewrite_id(run_of(w, n)),
    "the run of this job": None,
}
RANKS = {
    *("proven and stored", "the run of this job"),
    *(state for state in STATES if state.startswith("proven") and state not in ("proven and in use",)),
} - {"proven in another store", "proven in three parts"}
"""States in which the record proves the run, so that it counts among the newest."""
REMOVABLE = {
    *("proven and stored", "proven and stored, lock left behind"),
    "proven, with what the code leaves",
}


def rewrite_id(layout: RunDirectory) -> None:
    run = json.loads(layout.run_file.read_text())
    layout.run_file.write_text(json.dumps(run | {"run_id": "gh-999"}))
    prove(layout, json.loads((layout.report / "proof.json").read_text())["store"])


@pytest.fixture
def held() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def pruned(world: Path, *, keep: int = KEPT, current: str = "gh-current") -> int:
    """Remove old runs beside the run `current`; return the exit code."""
    run_dir, store = world / "runs" / current, f"file://{world}/store"
    return int(handler.exit_code_of(lambda: step_action.prune(run_dir, store=store, keep=str(keep))))


# The last kept by rank and the first removed; others are as their neighbours.
@pytest.mark.parametrize("position", [KEPT - 1, KEPT])
@pytest.mark.parametrize("state", STATES)
def test_each_state_at_each_position_is_kept_or_removed(
    world: Path, held: ExitStack, state: str, position: int
) -> None:
    name = RUNS[position]
    change = STATES[state]
    found = change(world, name) if change else None
    if found is not None and hasattr(found, "close"):
        held.callback(found.close)
    current = name if state == "the run of this job" else "gh-current"
    ranked = [run for run in RUNS if run != name or state in RANKS]
    expected = {run for run in ranked[KEPT:] if run != name or state in REMOVABLE}
    assert pruned(world, current=current) == 0
    assert set(RUNS) - names_in(world / "runs") == expected


@pytest.mark.parametrize(
    "name", ["20261120-214501-7c1f", "gh-101.until-00000002", "gh-", "gh-1a", "data", ".removing-x", "GH-7"]
)
def test_a_folder_of_another_name_stays_whatever_is_in_it(world: Path, name: str) -> None:
    oldest = run_of(world, RUNS[-1])
    shutil.move(oldest.path, world / "runs" / name)
    (world / "runs" / "a file").write_text("")
    assert pruned(world, keep=1) == 0
    assert names_in(world / "runs") == {RUNS[0], name, "a file"}


def test_a_reason_is_given_for_each(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run_of(world, RUNS[1]).report / "proof.json").unlink()
    assert pruned(world) == 0
    lines = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
    assert lines[RUNS[0]] == "kept: it is one of the newest 3 proven runs"
    assert lines[RUNS[1]] == "kept: no proof of this run is on record"
    assert lines[RUNS[5]].startswith("removed: it is proven, and run 101 in file://")


def test_a_store_that_cannot_be_reached_keeps_everything(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.move(world / "store", world / "gone")
    assert pruned(world) in (0, 4)
    assert names_in(world / "runs") == set(RUNS)


def test_an_interrupted_removal_is_finished_by_the_next_call(world: Path) -> None:
    left = world / "runs" / f".removing-{RUNS[5]}"
    run_of(world, RUNS[5]).path.rename(left)
    shutil.rmtree(left / "report")
    target = world / "target"
    target.mkdir()
    (world / "runs" / ".removing-gh-7").symlink_to(target)
    assert pruned(world, keep=9) == 0
    assert not left.exists()
    assert target.is_dir()
    assert names_in(world / "runs") == {*RUNS[:5], ".removing-gh-7"}


def test_what_cannot_be_removed_is_named(
    world: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(shutil, "rmtree", refuse)
    assert pruned(world) == 1
    assert "Permission denied" in capsys.readouterr().err


def test_a_run_whose_checkpoints_cannot_be_read_stays_and_the_others_go(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unreadable, entries = run_of(world, RUNS[5]).checkpoints, Path.iterdir

    def iterdir(path: Path) -> Iterator[Path]:
        if path == unreadable:
            raise PermissionError(13, "Permission denied", str(path))
        return entries(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    assert pruned(world) == 0
    assert names_in(world / "runs") == {*RUNS[:KEPT], RUNS[5]}


def test_a_file_that_vanishes_while_it_is_counted_is_no_reason_to_stop(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of another program, or the one that has its directory open, removes its own temporary files."""
    found = Path.lstat

    def lstat(path: Path) -> Any:
        if path.name == "vanishing":
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return found(path)

    (run_of(world, RUNS[5]).logs / "vanishing").write_text("x")
    monkeypatch.setattr(Path, "lstat", lstat)
    assert pruned(world, keep=5) == 0
    assert not run_of(world, RUNS[5]).path.exists()


def test_a_link_within_a_run_is_removed_and_not_followed(world: Path) -> None:
    outside = world / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    (run_of(world, RUNS[5]).logs / "link").symlink_to(outside)
    assert pruned(world, keep=5) == 0
    assert (outside / "precious").is_file()
    assert not run_of(world, RUNS[5]).path.exists()
