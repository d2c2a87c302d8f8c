"""Checkpoints of a program that are copied into the run directory, while the program still writes."""

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.integration import checkpoint_shapes as shapes

from trainyard.errors import CheckpointError
from trainyard.programs.checkpoints import taken_checkpoint
from trainyard.programs.checkpoints.program_checkpoints import (
    ProgramCheckpoint,
    ProgramCheckpoints,
    UnitFinder,
    newest_first,
)
from trainyard.programs.checkpoints.taken_checkpoint import TakenCheckpoint, restorable_path, take_checkpoint
from trainyard.programs.program import Program
from trainyard.programs.program_records import begin
from trainyard.programs.run_checkpoints import Ending, RunCheckpoints
from trainyard.programs.sources import Source
from trainyard.run.checkpoint_manifest import MANIFEST_NAME, read_manifest, verify_checkpoint
from trainyard.run.directory import RunDirectory


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    found = RunDirectory(tmp_path / "run")
    begin(found, "llama", {"plan": {"steps": 20}}, "recipe: command\n", resumed_at=None)
    return found


def find(out: Path, pattern: str = "*") -> ProgramCheckpoints:
    return newest_first(UnitFinder().named(out, pattern))


def newest(out: Path, pattern: str = "*") -> ProgramCheckpoint:
    found = find(out, pattern).newest
    assert found is not None
    return found


def take_newest(out: Path, directory: RunDirectory, step: int = 0) -> TakenCheckpoint | None:
    checkpoints = RunCheckpoints(directory, Program("command", (), out, checkpoints="*"), keep_last=5)
    checkpoints.take(lambda _: step, end=Ending(is_well=True))
    return checkpoints.taken


def take(one: ProgramCheckpoint, directory: RunDirectory) -> TakenCheckpoint:
    return take_checkpoint(one, directory, "llama", step=20, source=Source.CHECKPOINT)


PLANTS: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "trainer": ("checkpoint-*", lambda out: shapes.trainer(out / "checkpoint-20", world=2)),
    "dcp": ("step-*", lambda out: shapes.dcp(out / "step-20", optimizer=True)),
    "deep": ("ep*", lambda out: shapes.lightning_deepspeed(out, 20)),
    "lightning": ("*.ckpt", lambda out: shapes.lightning_file(out, 20)),
    "nanochat": ("*_0*", lambda out: shapes.nanochat(out, 20)),
    "nanogpt": ("ckpt.pt", lambda out: shapes.nanogpt(out, 20)),
}


@pytest.mark.parametrize("shares", [True, False])
@pytest.mark.parametrize("name", PLANTS)
def test_a_checkpoint_is_copied_and_only_once(
    name: str, shares: bool, directory: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not shares:

        def refuse(*_: object) -> int:
            raise OSError("not on this file system")

        monkeypatch.setattr("os.copy_file_range", refuse)
    pattern, plant = PLANTS[name]
    out = tmp_path / "out"
    original = plant(out)
    for path in out.rglob("*.safetensors"):
        path.chmod(0o600)
    mask = os.umask(0o022)
    os.umask(mask)
    kept = {path: (path.stat().st_mtime_ns, path.stat().st_nlink) for path in out.rglob("*")}
    one = newest(out, pattern)
    shutil.copytree(one.base, directory.checkpoint(20) / "rest")  # from a copy that was cut off
    taken = take(one, directory)
    manifest = verify_checkpoint(directory.checkpoint(20), run_id="llama")
    assert [file.path for file in manifest.files] == sorted(one.files(), key=lambda each: Path(each).parts)
    for file in manifest.files:
        copy = directory.checkpoint(20) / file.path
        assert copy.read_bytes() == (one.base / file.path).read_bytes()
        assert stat.S_IMODE(copy.stat().st_mode) == 0o666 & ~mask
    times = directory.checkpoint(20).stat().st_mtime_ns
    assert take(newest(out, pattern), directory) == taken
    assert directory.checkpoint(20).stat().st_mtime_ns == times, "nothing was written"
    assert {path: (path.stat().st_mtime_ns, path.stat().st_nlink) for path in out.rglob("*")} == kept
    assert [path.name for path in directory.checkpoints.iterdir()] == ["step-00000020"]
    is_file = name in ("lightning", "nanogpt")  # a resume argument gets what the program wrote
    folder = directory.checkpoint(20)
    assert restorable_path(folder) == (folder / original.name if is_file else folder)


def test_a_folder_with_one_file_stays_a_folder(directory: RunDirectory, tmp_path: Path) -> None:
    (tmp_path / "out" / "step-20").mkdir(parents=True)
    (tmp_path / "out" / "step-20" / "model.safetensors").write_bytes(shapes.safetensors_bytes(9))
    take(newest(tmp_path / "out"), directory)
    assert restorable_path(directory.checkpoint(20)) == directory.checkpoint(20)
    with pytest.raises(CheckpointError, match=MANIFEST_NAME):
        restorable_path(directory.checkpoint(40))


def test_what_the_program_wrote_since_replaces_the_copy(directory: RunDirectory, tmp_path: Path) -> None:
    """It saves the same step again in place; the copy keeps its bytes until the next copy."""
    folder = shapes.trainer(tmp_path / "out" / "checkpoint-20")
    before = take(newest(tmp_path / "out"), directory)
    old = (folder / "optimizer.pt").read_bytes()
    shapes.archive(later := tmp_path / "later.pt", 3000, {})
    with (folder / "optimizer.pt").open("r+b") as file:  # the same inode
        file.write(later.read_bytes())
        file.truncate()
    verify_checkpoint(directory.checkpoint(20))
    assert (directory.checkpoint(20) / "optimizer.pt").read_bytes() == old
    after = take(newest(tmp_path / "out"), directory)
    assert after != before
    verify_checkpoint(directory.checkpoint(20), run_id="llama")
    assert (directory.checkpoint(20) / "optimizer.pt").read_bytes() == (folder / "optimizer.pt").read_bytes()


def touch(folder: Path) -> None:
    os.utime(folder / "config.json", (1, 1))


def truncate(folder: Path) -> None:
    os.truncate(folder / "optimizer.pt", 10)


def remove_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


CHANGES: list[Callable[[Path], Any]] = [touch, truncate, remove_weights, shutil.rmtree]


@pytest.mark.parametrize("file", [0, 3, 7])
@pytest.mark.parametrize("change", CHANGES)
def test_a_checkpoint_that_changes_while_it_is_copied_is_not_taken_and_the_next_one_is(
    change: Callable[[Path], Any],
    file: int,
    directory: RunDirectory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    out = tmp_path / "out"
    for step in (10, 20):
        shapes.trainer(out / f"checkpoint-{step}")
    copy, count = taken_checkpoint._copy_file, 0

    def copy_and_change(source: Path, target: Path) -> None:
        nonlocal count
        if count == file:
            change(out / "checkpoint-20")
        count += 1
        copy(source, target)

    monkeypatch.setattr(taken_checkpoint, "_copy_file", copy_and_change)
    taken = take_newest(out, directory)
    assert taken is not None and taken.step == 10
    assert "checkpoint-20: the checkpoint was not taken" in caplog.text
    assert [path.name for path in directory.checkpoints.iterdir()] == ["step-00000010"]
    verify_checkpoint(directory.checkpoint(10), run_id="llama")


def test_a_failed_copy_leaves_what_was_taken_before(
    directory: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shapes.trainer(tmp_path / "out" / "checkpoint-20")
    take(newest(tmp_path / "out"), directory)
    (folder / "optimizer.pt").write_bytes((folder / "scheduler.pt").read_bytes())

    def fail(_source: Path, _target: Path) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(taken_checkpoint, "_copy_file", fail)
    assert take_newest(tmp_path / "out", directory) is None
    verify_checkpoint(directory.checkpoint(20), run_id="llama")


def test_a_file_of_the_name_of_our_manifest_is_not_lost(directory: RunDirectory, tmp_path: Path) -> None:
    folder = shapes.lightning_deepspeed(tmp_path / "out", 20)
    (folder / "checkpoint" / MANIFEST_NAME).write_text("{}")
    take(newest(tmp_path / "out"), directory)
    assert f"checkpoint/{MANIFEST_NAME}" in {f.path for f in read_manifest(directory.checkpoint(20)).files}
    (folder / MANIFEST_NAME).write_text("{}")
    with pytest.raises(CheckpointError, match="needs this name"):
        take(newest(tmp_path / "out"), directory)
