"""Which files of a program become the checkpoint of a run: its own, within its rows, undamaged."""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.cases import each_case
from tests.integration import checkpoint_shapes as shapes

from trainyard.programs import run_checkpoints
from trainyard.programs.own_files import OwnFiles
from trainyard.programs.program import Program
from trainyard.programs.program_events import WrittenCheckpoint
from trainyard.programs.program_records import Reach, begin
from trainyard.programs.run_checkpoints import RunCheckpoints
from trainyard.run.directory import RunDirectory
from trainyard.run.records import read_rows


@dataclass(frozen=True)
class Case:
    """What lies in the folder of a program, and which step is taken."""

    name: str
    before: tuple[str, ...] = ()
    """Files that were there before the run; `run/` is the run directory."""
    after: tuple[str, ...] = ()
    checkpoints: str = "auto"
    rows: tuple[int, ...] = (10, 20, 30)
    declared: tuple[tuple[str, int], ...] = ()
    command: tuple[str, ...] = ()
    step: int | None = None
    reason: str = ""
    is_red: bool = False


CASES = [
    Case("found by a search", after=("out/ckpt_20.pt", "out/ckpt_30.pt"), step=30),
    Case("of an earlier run", before=("out/ckpt_30.pt",)),
    Case(
        "given weights",
        after=("pretrained/ckpt_5000.pt", "out/ckpt_30.pt"),
        step=30,
        reason="beyond the rows",
    ),
    Case("given weights alone", after=("pretrained/ckpt_5000.pt",), reason="beyond the rows"),
    Case("named, of an earlier run", ("out/ckpt_30.pt",), (), "out/*.pt", reason="was there before this run"),
    Case("a date", after=("out/model_20261128.pt",), checkpoints="out/*.pt", step=20261128, is_red=True),
    Case(
        "named, and others beside", after=("out/ckpt_30.pt", "given/ckpt_31.pt"), checkpoints="out/*", step=30
    ),
    Case("saved after the last row", after=("out/ckpt_36.pt",), step=36),
    Case("saved long after the last row", after=("out/ckpt_41.pt",), reason="beyond the rows"),
    Case(
        "another run's directory", after=("runs/b/run.json", "runs/b/config.yaml", "runs/b/output/ckpt_30.pt")
    ),
    Case("its output folder", after=("run/output/ckpt_20.pt", "out/ckpt_30.pt"), step=20),
    Case(
        "{run_dir} named", after=("out/ckpt_30.pt",), command=("{run_dir}",), reason="program.command names"
    ),
    Case("{run_dir} used", after=("run/x/ckpt_30.pt", "out/ckpt_31.pt"), command=("{run_dir}/x",), step=30),
    Case("{run_dir}", after=("run/output/ckpt_30.pt",), checkpoints="{run_dir}/output/*.pt", step=30),
    Case("declared", after=("out/model.pt",), declared=(("out/model.pt", 20),), step=20),
    Case("declared with a number", after=("x/m_9312.pt",), declared=(("x/m_9312.pt", 30),), step=30),
    Case("no rows, at the end", after=("out/ckpt_30.pt",), rows=(), step=30),
    Case("damaged", after=("out/ckpt_20.pt", "out/ckpt_30.pt!"), step=20, reason="differs from its CRC-32"),
]


def write(folder: Path, names: tuple[str, ...]) -> None:
    for name in names:
        path = folder / name.rstrip("!")
        path.parent.mkdir(parents=True, exist_ok=True)
        shapes.archive(path, 5000, {})
        if name.endswith("!"):
            with path.open("r+b") as file:
                file.seek(2000)
                file.write(bytes(1000))


@each_case("case", CASES, ids=lambda case: case.name)
def test_a_file_counts_that_the_run_has_written_within_its_rows(case: Case, tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    begin(directory, "llama", {}, "recipe: command\n", resumed_at=None)
    write(tmp_path, case.before)
    time.sleep(0.02)  # a tick of the file system's clock
    (marker := tmp_path / "marker").touch()
    own = OwnFiles({}, marker.stat().st_ctime_ns)
    write(tmp_path, case.after)
    reach = Reach()
    for step in case.rows:
        reach.note({"step": step})
    program = Program("command", case.command, tmp_path, checkpoints=case.checkpoints)
    found = RunCheckpoints(directory, program, keep_last=5, own=own)
    found.declared = {
        tmp_path / name: WrittenCheckpoint(step, tmp_path / name, time=time.time())
        for name, step in case.declared
    }

    found.take(lambda _: 0, reach=reach.step, is_over=True)

    assert (found.taken and found.taken.step) == case.step
    assert case.reason in "; ".join(found.skipped) and bool(case.reason) == bool(found.skipped)
    assert (found.beyond is not None) is case.is_red


def test_a_number_in_a_name_counts_only_when_rows_show_it(tmp_path: Path) -> None:
    """Given weights are copied before the first row; taken early, they would displace all later ones."""
    directory = RunDirectory(tmp_path / "run")
    begin(directory, "llama", {}, "recipe: command\n", resumed_at=None)
    found = RunCheckpoints(directory, Program("command", (), tmp_path), keep_last=1, own=OwnFiles())
    write(tmp_path, ("pretrained/ckpt_5000.pt", "out/ckpt_10.pt"))
    for path in tmp_path.rglob("*.pt"):
        os.utime(path, (1, 1))  # not in this moment
    found.take(lambda _: 0, reach=None)
    assert found.taken is None
    found.take(lambda _: 0, reach=20)
    assert found.taken is not None and found.taken.step == 10


def test_a_run_does_not_resume_from_a_damaged_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = RunDirectory(tmp_path / "run")
    begin(directory, "llama", {}, "recipe: command\n", resumed_at=None)
    directory.metrics_file.write_text(json.dumps({"step": 30, "time": 1.0, "loss": 1.0}) + "\n")
    write(tmp_path, ("out/ckpt_20.pt", "out/ckpt_30.pt!"))
    found = RunCheckpoints(directory, Program("command", (), tmp_path), keep_last=1, own=OwnFiles())
    point = found.find_resume_point("auto")
    assert point is not None and point.path.name == "ckpt_20.pt"
    assert "ckpt_30.pt: " in caplog.text and "does not resume" in caplog.text


@pytest.mark.parametrize("is_cut", [False, True])
def test_folders_of_data_hide_no_checkpoint_and_a_search_that_was_cut_says_so(
    is_cut: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(150):
        (tmp_path / "data" / f"n{number:08}").mkdir(parents=True)
    write(tmp_path, ("z/a/b/c/ckpt_30.pt",))
    monkeypatch.setattr(run_checkpoints, "_MOST_PLACES", (0, 20 if is_cut else 1000))
    directory = RunDirectory(tmp_path / "run")
    begin(directory, "llama", {}, "recipe: command\n", resumed_at=None)
    found = RunCheckpoints(directory, Program("command", (), tmp_path), keep_last=1).find(
        quiet_seconds=0, is_over=True
    )
    assert [each.path.name for each in found.complete] == ["ckpt_30.pt"]
    assert ["was cut after 20 folders" in note for note in found.rejections()] == ([True] if is_cut else [])


SAVES: dict[str, tuple[list[dict[str, Any]], str]] = {
    "trained": ([{"w": [1.0, 2.0]}, {"w": [1.5, 2.0]}], ""),
    "NaN": ([{"w": [1.0, 2.0]}, {"w": [float("nan"), 2.0], "x": [1.0]}], "has NaN in w"),
    "equal": ([{"w": [1.0, 2.0]}, {"w": [1.0, 2.0]}], "equal to the first save"),
    "some equal": ([{"w": [1.0], "frozen": [3.0]}, {"w": [2.0], "frozen": [3.0]}], ""),
    "a mask": ([{"m": [float("-inf")], "w": [1.0]}, {"m": [float("-inf")], "w": [2.0]}], ""),
    "diverged": ([{"m": [0.0], "w": [1.0]}, {"m": [float("inf")], "w": [2.0]}], "infinite numbers in m"),
    "one save": ([{"w": [float("inf")]}], ""),
}


@each_case("name", SAVES)
@each_case("is_fast", [False, True])
def test_the_last_weights_are_finite_and_not_those_of_the_first_save(
    name: str, is_fast: bool, tmp_path: Path
) -> None:
    """A fast program has ended before its first save was copied. Uses torch, whose files are read."""
    import torch

    from trainyard.programs.program_records import weights_fault

    states, fault = SAVES[name]
    directory = RunDirectory(tmp_path / "run")
    begin(directory, "llama", {}, "recipe: command\n", resumed_at=None)
    found = RunCheckpoints(directory, Program("command", (), tmp_path), keep_last=5, own=OwnFiles())
    (tmp_path / "out").mkdir()
    for step, state in enumerate(states, 1):
        file = tmp_path / f"out/ckpt_{step}.pt"
        torch.save({key: torch.tensor(value) for key, value in state.items()}, file)
        os.utime(file, (step, step))
        if not is_fast:
            found.take(lambda _: 0, reach=9)
    found.take(lambda _: 0, reach=9, is_over=True)
    assert found.taken is not None and found.taken.step == len(states)
    said = weights_fault(directory, found.taken, found.first, is_complete=True) or ""
    assert fault in said and bool(fault) == bool(said)
    if fault.startswith("equal"):
        assert weights_fault(directory, found.taken, found.first, is_complete=False) is None
    saved = [each["tensors"]["count"] for each in read_rows(directory.events_file) if "tensors" in each]
    assert saved[-1] == len(states[-1])
