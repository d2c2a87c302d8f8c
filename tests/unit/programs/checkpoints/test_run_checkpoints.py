"""Which files of a program become the checkpoint of a run: its own, complete, undamaged, of which step."""

import os
import time
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tests.cases import each_case
from tests.integration import checkpoint_shapes as shapes

from trainyard.programs import run_checkpoints
from trainyard.programs.metric_rows import LastRow
from trainyard.programs.own_files import OwnFiles
from trainyard.programs.program import Program
from trainyard.programs.program_events import WrittenCheckpoint
from trainyard.programs.program_records import begin
from trainyard.programs.run_checkpoints import Ending, RunCheckpoints
from trainyard.programs.sources import Source
from trainyard.run.directory import RunDirectory
from trainyard.run.records import append_event, append_rows, read_rows

LAST = LastRow(40, 1000.0, Source.PRINTED)
WELL, KILLED = Ending(is_well=True), Ending(is_well=False)


def make(root: Path, **changes: Any) -> RunCheckpoints:
    directory = RunDirectory(root / "run")
    if not directory.run_file.exists():
        begin(directory, "llama", {}, "recipe: command\n", resumed_at=None)
    own = changes.pop("own", OwnFiles())
    command = changes.pop("command", ())
    return RunCheckpoints(directory, Program("command", command, root, **changes), keep_last=9, own=own)


def write(folder: Path, *names: str) -> None:
    """Write files; `NAME=N` holds step N, `NAME!` is damaged inside, `NAME<` is cut off."""
    for each in names:
        name, _, step = each.rstrip("!<").partition("=")
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix in (".json", ".h5"):
            path.write_text("{}")
            continue
        shapes.archive(path, 5000, {"step": int(step)} if step else {})
        if each.endswith("!"):
            with path.open("r+b") as file:
                file.seek(2000)
                file.write(bytes(1000))
        elif each.endswith("<"):
            os.truncate(path, 2000)


@dataclass(frozen=True)
class Case:
    """What lies in the folder of a program, and which step is taken."""

    before: tuple[str, ...] = ()
    """Files that were there before the run; `run/` is the run directory."""
    after: tuple[str, ...] = ()
    program: dict[str, Any] = field(default_factory=dict)
    reach: int | None = 40
    step: int | None = None
    reason: str = ""


CASES = {
    "found by a search": Case(after=("out/a.pt=20", "out/b.pt=30"), step=30),
    "of an earlier run": Case(before=("out/a.pt=30",)),
    "given weights": Case(after=("given/a.pt=5000", "out/b.pt=30"), step=30, reason="beyond the rows"),
    "given weights alone": Case(after=("given/a.pt=5000",), reason="beyond the rows"),
    "named, of an earlier run": Case(
        ("out/a.pt=30",), (), {"checkpoints": "out/*.pt"}, reason="was there before"
    ),
    "named, beyond the rows": Case(after=("out/a.pt=50",), program={"checkpoints": "out/*.pt"}, step=50),
    "named, and others": Case(
        after=("out/a.pt=30", "given/b.pt=31"), program={"checkpoints": "out/*"}, step=30
    ),
    "named, and nothing there": Case(
        after=("out/model.pt=30",),
        program={"checkpoints": "out/ckpt_*.pt"},
        reason="out/ckpt_*.pt names nothing that this run has written",
    ),
    "data": Case(after=("data/cached_10000.pt=9", "out/a.pt=5"), program={"data": ("data",)}, step=5),
    "a file of data": Case(after=("c.pt=9",), program={"data": ("*.pt",)}),
    "another run's directory": Case(after=("runs/b/run.json", "runs/b/config.yaml", "runs/b/output/a.pt=30")),
    "a run in a store": Case(after=("any/run-1/identity.json", "any/run-1/checkpoint-30/a.pt=30")),
    "its output folder": Case(after=("run/output/a.pt=20", "out/b.pt=30"), step=20),
    "{run_dir} named": Case(
        after=("out/a.pt=30",), program={"command": ("{run_dir}",)}, reason="program.command names"
    ),
    "{run_dir} used": Case(
        after=("run/x/a.pt=30", "out/b.pt=31"), program={"command": ("{run_dir}/x",)}, step=30
    ),
    "{run_dir}": Case(
        after=("run/output/a.pt=30",), program={"checkpoints": "{run_dir}/output/*.pt"}, step=30
    ),
    "no rows": Case(after=("out/a.pt=30",), reach=None, step=30),
    "damaged inside": Case(after=("out/a.pt=20", "out/b.pt=30!"), step=20, reason="differs from its CRC-32"),
    "cut off": Case(
        after=("out/step-200.pt<",), reason="step-200.pt is not complete: step-200.pt is cut off"
    ),
}


@each_case("name", CASES)
def test_a_file_counts_that_the_run_has_written(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    write(tmp_path, *case.before)
    time.sleep(0.02)  # a tick of the file system's clock
    (marker := tmp_path / "marker").touch()
    found = make(tmp_path, own=OwnFiles({}, marker.stat().st_ctime_ns), **case.program)
    write(tmp_path, *case.after)

    found.take(lambda _: 0, reach=case.reach, end=WELL)

    assert (found.taken and found.taken.step) == case.step, found.skipped
    reason = case.reason.format(root=tmp_path) if "{root}" in case.reason else case.reason
    assert reason in "; ".join(found.skipped) and bool(reason) == bool(found.skipped), found.skipped


def event(path: Path, step: int | None, source: Source) -> WrittenCheckpoint:
    facts, files = path.stat(), dict[str, tuple[int, ...]]()
    if source is Source.OBSERVED:
        files = {path.name: (facts.st_size, facts.st_mtime_ns, facts.st_dev, facts.st_ino)}
    return WrittenCheckpoint(step, path, files, facts.st_mtime, source)


STEPS: dict[str, tuple[str, int | None, Source | None, bool, tuple[int, Source]]] = {
    "declared": ("m.pt=3", 500, Source.DECLARED, True, (500, Source.DECLARED)),
    "declared, no step of the observer's": ("m.pt=3", 500, Source.DECLARED, False, (500, Source.DECLARED)),
    "observed": ("m.pt=3", 500, Source.OBSERVED, True, (500, Source.OBSERVED)),
    "observed, and steps are counted otherwise": (
        "m.pt=3",
        500,
        Source.OBSERVED,
        False,
        (3, Source.CHECKPOINT),
    ),
    "observed before the first step": ("m.pt", None, Source.OBSERVED, True, (900, Source.GUESSED)),
    "inside": ("m.pt=3", None, None, True, (3, Source.CHECKPOINT)),
    **{
        name: (name, None, None, True, (900, Source.GUESSED))
        for name in (
            *("resnet18.pt", "model_20261128.pt", "best_acc_0.9312.pt", "iter_500_loss_2.31.pt", "step_7.pt"),
            *("m.h5", "checkpoint_5.pt", "m.pth.tar"),
        )
    },
}


@each_case("name", STEPS)
def test_a_step_is_of_the_best_source_and_a_number_in_a_name_is_none(name: str, tmp_path: Path) -> None:
    file, step, source, counts, wanted = STEPS[name]
    found = make(tmp_path, checkpoints="out/*")
    write(tmp_path / "out", file)
    path = tmp_path / "out" / file.partition("=")[0]
    found.saved = [] if source is None else [event(path, step, source)]
    found.optimizer_shift = 0 if counts else None
    found.take(lambda _: 900, end=WELL)
    assert found.taken is not None and (found.taken.step, found.taken.source) == wanted
    [saved] = [row for row in read_rows(tmp_path / "run/events.jsonl") if row["event"] == "checkpoint_saved"]
    assert (saved["source"], saved.get("on_record")) == (wanted[1], 900 if wanted[1] == "guessed" else None)


@each_case(
    ("content", "wanted"), [({"epoch": 3, "step": 300}, (3, "checkpoint")), ({"step": 300}, (2, "guessed"))]
)
def test_a_run_that_counts_epochs_takes_the_epoch_inside(
    content: dict[str, int], wanted: tuple[int, str], tmp_path: Path
) -> None:
    found = make(tmp_path)
    shapes.archive(tmp_path / "out/a.pt", 50, content)
    found.counts_epochs = True
    found.take(lambda _: 2, end=WELL)
    assert found.taken is not None and (found.taken.step, found.taken.source) == wanted


def test_saves_that_follow_fast_are_all_copied_and_those_of_other_steps_are_not(tmp_path: Path) -> None:
    found = make(tmp_path)
    for step in (5, 10, 15):  # several files each, as of a GAN
        write(tmp_path, f"out/G_{step}.pt", f"out/D_{step}.pt")
        for name in "GD":
            path = tmp_path / f"out/{name}_{step}.pt"
            os.utime(path, (1000 + step, 1000 + step))
            found.saved = [*found.saved, event(path, step, Source.OBSERVED)]
    found.take(lambda _: 0, end=WELL)
    folders = {path.name: len([*path.glob("*.pt")]) for path in (tmp_path / "run/checkpoints").iterdir()}
    assert folders == {"step-00000005": 2, "step-00000010": 2, "step-00000015": 2}
    assert found.taken is not None and found.taken.step == 15


@each_case(
    ("weights", "step", "fault"),
    [
        (("trained", "other"), 5, ""),
        (("other", "other"), 6, "is not of the model that was trained"),
        (("near", "unknown"), 6, ""),
        (("trained", "none"), 5, ""),
        (("none", "none"), 6, "has no tensor"),
    ],
)
def test_other_tensors_are_a_checkpoint_only_if_nothing_else_is(
    weights: tuple[str, ...], step: int, fault: str, tmp_path: Path
) -> None:
    """Predictions, or the losses, that are saved behind the model are none of its checkpoints."""
    from trainyard.programs.program_records import weights_fault

    found = make(tmp_path)
    for number, relation in enumerate(weights, 5):
        path = tmp_path / f"out{number}/a.pt"
        write(tmp_path, f"out{number}/a.pt")
        found.saved = [*found.saved, replace(event(path, number, Source.OBSERVED), weights=relation)]
    found.saved = [*found.saved, event(path, number, Source.DECLARED)]  # it is not better for that
    found.take(lambda _: 0, end=WELL)
    assert found.taken is not None and found.taken.step == step
    copy = replace(found.taken, weights="")  # as a later start knows it
    for taken in (found.taken, copy):
        found_fault = weights_fault(RunDirectory(tmp_path / "run"), taken, is_complete=True) or ""
        assert fault in found_fault and bool(fault) is bool(found_fault)


def test_bytes_show_the_weights_of_a_file_whose_save_was_not_seen(tmp_path: Path) -> None:
    """Also of one that was copied while the program trained, when its last weights were not known yet."""
    first, last = bytes(range(64)), bytes(range(64, 128))
    for name, content, relation in (("a", last, "trained"), ("b", first, "given"), ("c", b"", "unknown")):
        found = make(tmp_path / name, checkpoints="out.bin")
        (tmp_path / name / "out.bin").write_bytes(b"head" + content)
        found.take(lambda _: 7)
        found.take(lambda _: 7)
        found.excerpts = [(first, last)]
        found.take(lambda _: 7, end=WELL)
        assert found.taken is not None and found.taken.weights == relation
        events = read_rows(tmp_path / name / "run/events.jsonl")
        saved = [each.get("weights") for each in events if each["event"] == "checkpoint_saved"]
        assert saved == [None, relation]


def test_guessed_steps_are_unique_and_the_last_write_is_the_newest(tmp_path: Path) -> None:
    found = make(tmp_path)
    taken = []
    for number in range(3):
        write(tmp_path, "out/latest.ckpt")
        os.utime(tmp_path / "out/latest.ckpt", (1000 + number, 1000 + number))
        found.take(lambda _: 100, end=WELL)
        assert found.taken is not None
        taken.append(found.taken.step)
    assert taken == [100, 101, 102]
    again = make(tmp_path)
    again.resume_from(None)
    again.take(lambda _: 300, end=WELL)
    assert again.taken is not None and again.taken.step == 102, "this state is known"


COMPLETE: dict[str, tuple[tuple[str, ...], Source | None, dict[str, Any], bool]] = {
    "declared": (("a.pt",), Source.DECLARED, {}, True),
    "seen for the first time": (("a.pt",), None, {}, False),
    "observed, the others may follow": (("a.pt",), Source.OBSERVED, {}, False),
    "observed, and quiet": (("a.h5",), Source.OBSERVED, {"polls": 2, "last_sign": 999.0}, True),
    "quiet": (("a.pt",), None, {"polls": 2}, True),
    "quiet, of no known kind": (("a.h5",), None, {"polls": 2}, True),
    "quiet, where open files cannot be seen": (("a.pt",), None, {"polls": 2, "is_open": None}, True),
    "quiet, and open for writing": (("a.pt",), None, {"polls": 2, "is_open": True}, False),
    "quiet, and the program did nothing since": (("a.pt",), None, {"polls": 2, "last_sign": 999.0}, False),
    "ended with 0": (("a.h5",), None, {"end": WELL, "last_sign": 999.0}, True),
    "killed, and did something later": (("a.h5",), None, {"end": KILLED, "last_sign": 1001.0}, True),
    "killed, and nothing shows its end": (("a.h5",), None, {"end": KILLED, "last_sign": 999.0}, False),
    "killed, and its format shows its end": (("a.pt",), None, {"end": KILLED, "last_sign": 999.0}, True),
    "killed, and its save was seen": (("a.h5",), Source.OBSERVED, {"end": KILLED, "last_sign": 999.0}, True),
    "killed between two files": (("a.pt", "b.pt"), None, {"end": KILLED, "last_sign": 999.0}, False),
    "cut off": (("a.pt<",), None, {"end": WELL}, False),
}


@each_case("name", COMPLETE)
def test_a_checkpoint_is_complete_by_a_report_by_its_format_or_by_silence(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files, source, how, wanted = COMPLETE[name]
    how = dict(how)
    found = make(tmp_path, checkpoints="out/*")
    write(tmp_path / "out", *files)
    paths = sorted((tmp_path / "out").iterdir())
    for path in paths:
        os.utime(path, (1000, 1000))
    found.saved = [event(path, 5, source) for path in paths] if source else []
    inode = (paths[0].stat().st_dev, paths[0].stat().st_ino)
    is_open = how.pop("is_open", False)
    found.being_written = lambda: None if is_open is None else frozenset([inode] if is_open else [])
    for _ in range(how.pop("polls", 1)):
        found.take(lambda _: 7, **how)
    assert (found.taken is not None) is wanted, found.skipped
    assert found.is_waiting is (not wanted and "end" not in how and not is_open)
    assert ("which is a guess" in caplog.text) is (is_open is None)


def test_a_problem_is_logged_once_while_it_trains(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = make(tmp_path, checkpoints="out/ckpt_*.pt")
    found.take(lambda _: 7)
    assert caplog.text == "", "nothing was saved yet"
    write(tmp_path, "out/step-200.pt<", "out/b.pt")
    for name in ("step-200.pt", "b.pt", "b.pt"):
        found.saved = [*found.saved, event(tmp_path / "out" / name, 200, Source.OBSERVED)]
        found.take(lambda _: 7)
    assert caplog.text.count("that this run has written; it has saved out/step-200.pt\n") == 1
    found.take(lambda _: 7, end=WELL)
    assert caplog.text.count("program.checkpoints") == 1, "the verdict says the last one"
    found = make(tmp_path)
    for _ in range(3):
        found.take(lambda _: 7)
    assert caplog.text.count("step-200.pt is cut off") == 1


def test_a_step_that_is_trained_again_keeps_its_first_save_until_the_last(tmp_path: Path) -> None:
    """The store may have listed it, and what is listed never changes."""
    found = make(tmp_path)
    write(tmp_path, "out/a.pt=5")
    found.take(lambda _: 0, end=WELL)
    first = found.taken
    again = make(tmp_path)
    append_event(tmp_path / "run/events.jsonl", "started")
    again.resume_from(None)
    write(tmp_path, "out/a.pt=5")
    again.take(lambda _: 0)
    again.take(lambda _: 0)
    assert again.taken is None
    write(tmp_path, "out/a.pt=6")
    again.take(lambda _: 0, end=WELL)
    assert again.taken is not None and first is not None and again.taken.step == 6
    assert sorted(path.name for path in (tmp_path / "run/checkpoints").iterdir()) == [
        *("step-00000005", "step-00000006")
    ]


@each_case(
    ("files", "wanted"),
    [
        (("out/a.pt=20", "out/b.pt=30!"), "out/a.pt"),
        (("out/a.pt=20", "new/b.pt=30<"), "out/a.pt"),
        (("out/a.pt=20", "new/b.h5"), "out/a.pt"),
    ],
)
def test_a_run_does_not_resume_from_what_is_damaged_or_may_be_incomplete(
    files: tuple[str, ...], wanted: str, tmp_path: Path
) -> None:
    found = make(tmp_path, checkpoints="*/*")
    write(tmp_path, *files)
    RunDirectory(tmp_path / "run").metrics_file.write_text('{"epoch": 0.5, "loss": 1.0, "time": 1.0}\n')
    point = found.find_resume_point("auto")
    assert point is not None and point.path == tmp_path / wanted


@pytest.mark.parametrize("is_cut", [False, True])
def test_folders_of_data_hide_no_checkpoint_and_a_search_that_was_cut_says_so(
    is_cut: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(150):
        (tmp_path / "data" / f"n{number:08}").mkdir(parents=True)
    write(tmp_path, "z/a/b/c/ckpt_30.pt")
    monkeypatch.setattr(run_checkpoints, "_MOST_PLACES", (0, 20 if is_cut else 1000))
    found = make(tmp_path).find(is_over=True)
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
def test_the_last_weights_are_finite_and_not_the_first(name: str, is_fast: bool, tmp_path: Path) -> None:
    """A fast program has ended before its first save was copied. Uses torch, whose files are read."""
    import torch

    from trainyard.programs.program_records import weights_fault

    states, fault = SAVES[name]
    found, directory = make(tmp_path), RunDirectory(tmp_path / "run")
    (tmp_path / "out").mkdir()
    for step, state in enumerate(states, 1):
        file = tmp_path / f"out/ckpt_{step}.pt"
        torch.save({"step": step, **{key: torch.tensor(value) for key, value in state.items()}}, file)
        os.utime(file, (step, step))
        if not is_fast:
            found.take(lambda _: 0, end=WELL)
    found.take(lambda _: 0, end=WELL)
    assert found.taken is not None and found.taken.step == len(states)
    said = weights_fault(directory, found.taken, is_complete=True) or ""
    assert fault in said and bool(fault) == bool(said)
    if fault.startswith("equal"):
        assert weights_fault(directory, found.taken, is_complete=False) is None
    saved = [each["tensors"]["count"] for each in read_rows(directory.events_file) if "tensors" in each]
    assert saved[-1] == len(states[-1])


@each_case("is_copied", [False, True])
@each_case(("nan", "wanted"), [((), 3), ((3,), 2), ((2, 3), 1), ((1, 2, 3), 3)])
def test_a_run_resumes_before_its_weights_became_nan_if_any_are_finite(
    nan: tuple[int, ...], wanted: int, is_copied: bool, tmp_path: Path
) -> None:
    """Uses torch, whose files are read."""
    import torch

    found = make(tmp_path)
    (tmp_path / "out").mkdir()
    for step in (1, 2, 3):
        file = tmp_path / f"out/ckpt_{step}.pt"
        torch.save({"step": step, "w": torch.tensor([float("nan") if step in nan else step])}, file)
        os.utime(file, (step, step))
        if is_copied:
            found.take(lambda _: 0, end=WELL)
            file.unlink()
    point = found.find_resume_point("auto")
    assert point is not None and point.step == wanted
    # Where a row shows that the training diverged, NaN is not the model's own: no training recovers from it.
    append_rows(RunDirectory(tmp_path / "run").metrics_file, [{"step": 2, "loss": "nan"}])
    point = found.find_resume_point("auto")
    assert point is None if len(nan) == 3 else point is not None and point.step == wanted


@each_case(("event_step", "wanted"), [(30, Source.OBSERVED), (None, Source.GUESSED)])
@each_case("is_copied", [False, True])
@each_case("is_there", [True, False])
def test_a_checkpoint_keeps_the_source_of_its_step_in_the_next_attempt(
    event_step: int | None, wanted: Source, is_copied: bool, is_there: bool, tmp_path: Path
) -> None:
    """A program that was killed after its last save has nothing left to do when it starts again."""
    write(tmp_path, "out/last.pt")
    path = tmp_path / "out/last.pt"
    facts = path.stat()
    state = (facts.st_size, facts.st_mtime_ns, facts.st_dev, facts.st_ino)
    saved = [WrittenCheckpoint(event_step, path, {path.name: state}, 1001.0, Source.OBSERVED)]
    first = make(tmp_path)
    first.saved = saved
    if is_copied:
        first.take(lambda _: 30, end=WELL)
    else:
        RunDirectory(tmp_path / "run").metrics_file.write_text('{"step": 30, "loss": 1.0, "time": 1.0}\n')
    if not is_there and is_copied:
        path.unlink()
    again, directory = make(tmp_path), RunDirectory(tmp_path / "run")
    again.saved = saved
    point = again.find_resume_point("auto")
    assert point is not None and point.step == 30
    again.resume_from(point)
    append_event(directory.events_file, "resumed", step=30, state=point.state)
    again.saved = ()
    again.take(lambda _: 0, end=WELL)
    taken = again.taken or run_checkpoints.copy_of(directory, point)
    assert taken is not None and (taken.step, taken.source) == (30, wanted)


def test_the_step_in_a_file_of_numpy_counts(tmp_path: Path) -> None:
    import numpy as np

    (tmp_path / "out").mkdir()
    for number, step in enumerate(map(np.asarray, (400, np.int32(500), [0, 1], 1.5, -1))):
        np.savez(tmp_path / f"out/{number}.npz", w=np.ones(3), step=step)
    found = make(tmp_path, checkpoints="out/*.npz").find(is_over=True)
    assert {each.path.name: each.step for each in found.complete} == {
        "0.npz": 400,
        "1.npz": 500,
        **dict.fromkeys(("2.npz", "3.npz", "4.npz")),
    }


def test_a_run_resumes_from_what_it_saved_last_where_no_step_is_known(tmp_path: Path) -> None:
    """Of the saves of a fast program one was copied; those that were not have the time of their rows."""
    directory, found = RunDirectory(tmp_path / "run"), make(tmp_path)
    rows = "".join(f'{{"step": {step}, "loss": 1.0, "time": {1000 + step}}}\n' for step in range(10, 60, 10))
    directory.metrics_file.write_text(rows)
    for name, at in (("step-1.pt", 1010), ("step-2.pt", 1020), ("step-3.pt", 1030)):
        write(tmp_path / "out", name)
        os.utime(tmp_path / "out" / name, (at, at))
    found.take(lambda _: 30, end=WELL)
    point = make(tmp_path).find_resume_point("auto")
    assert point is not None and point.path.name == "step-3.pt"


def test_a_named_checkpoint_that_was_written_after_the_last_row_is_of_its_step(tmp_path: Path) -> None:
    wrong = list[object]()
    for number, (is_named, written, is_well, ahead) in enumerate(
        product((True, False), (990, 1010), (True, False), (0, 300))
    ):
        folder = tmp_path / str(number)
        own = OwnFiles({tmp_path.stat().st_dev: ahead * 10**9})  # the clock of the file system
        found = make(folder, own=own, **({"checkpoints": "model.pt"} if is_named else {}))
        write(folder, "model.pt")
        os.utime(folder / "model.pt", (written, written))
        found.take(lambda _: 30, end=Ending(is_well=is_well, last=LAST))
        is_final = is_named and written > LAST.time and is_well and not ahead
        wanted = (40, Source.PRINTED) if is_final else (30, Source.GUESSED)
        if found.taken is not None and (found.taken.step, found.taken.source) != wanted:
            wrong.append((is_named, written, is_well, ahead, found.taken))
        if found.taken is None and is_final:
            wrong.append((is_named, written, is_well, ahead, None))
    assert wrong == []
