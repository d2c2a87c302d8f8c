"""The checkpoints of one run: which step one has that shows none, and which ones other runs have left."""

import os
from pathlib import Path

import pytest

from trainyard.programs.checkpoints.program_checkpoints import ProgramCheckpoint, find_program_checkpoints
from trainyard.programs.run_checkpoints import StepTimes, numbered_of_before


def written_at(path: Path, when: float) -> ProgramCheckpoint:
    path.write_bytes(b"PK\x03\x04" + bytes(64))
    os.utime(path, (when, when))
    found = find_program_checkpoints(path.parent, path.name, quiet_seconds=0)
    return (*found.complete, *found.partial)[0]


@pytest.mark.parametrize(
    ("when", "step"), [(50.0, None), (100.0, 10), (119.0, 10), (120.0, 20), (500.0, 30), (125.0, 20)]
)
def test_a_checkpoint_has_the_last_step_that_was_logged_when_it_was_written(
    when: float, step: int | None, tmp_path: Path
) -> None:
    checkpoint = written_at(tmp_path / "model.pt", when)
    rows = [{"step": 10 * number, "time": 80.0 + 20 * number} for number in (1, 2, 3)]
    assert StepTimes([*rows, {"step": 99}, {"loss": 1.0, "time": 1.0}]).step_of(checkpoint) == step
    times = StepTimes()
    for row in rows:
        for _ in range(3):  # a step that is polled again stays at its first time
            times.note(int(row["step"]), row["time"])
        times.note(0, row["time"] + 1)
    assert times.step_of(checkpoint) == step


def test_only_the_newest_steps_are_kept(tmp_path: Path) -> None:
    times = StepTimes()
    for step in range(1, 50_000):
        times.note(step, float(step))
    assert times.step_of(written_at(tmp_path / "new.pt", 49_000.5)) == 49_000
    assert times.step_of(written_at(tmp_path / "old.pt", 3.5)) is None


def test_folders_with_numbers_of_another_run_are_found(tmp_path: Path) -> None:
    def older(before: float) -> Path | None:
        return numbered_of_before(tmp_path, "out/*", before=before, ignored=())

    assert older(1e12) is None
    for name in ("checkpoint-20", "checkpoint-100", "step-500"):
        folder = tmp_path / "out" / name
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
        (folder / "config.json").write_text("{}")
        (folder / "trainer_state.json").write_text(f'{{"global_step": {name.split("-")[1]}}}')
    found = older(1e12)
    assert found is not None and found.name == "checkpoint-100"
    assert older(1.0) is None
