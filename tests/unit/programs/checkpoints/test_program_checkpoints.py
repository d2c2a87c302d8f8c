"""Which files are one checkpoint: of a folder, of a pattern, of a save that was reported or observed."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.cases import each_case
from tests.integration import checkpoint_shapes as shapes

from trainyard.programs.checkpoints.program_checkpoints import (
    ASIDE,
    ProgramCheckpoints,
    UnitFinder,
    move_partial_aside,
    newest_first,
    state_of,
)
from trainyard.programs.program_events import WrittenCheckpoint
from trainyard.programs.sources import Source


def write(root: Path, *names: str) -> None:
    """Write files; `NAME@T` was written at T seconds."""
    for each in names:
        name, _, at = each.partition("@")
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix in (".pt", ".pth", ".ckpt", ".tar", ".npz", ".keras"):
            shapes.archive(path, 50, {})
        elif path.suffix == ".safetensors":
            path.write_bytes(shapes.safetensors_bytes(9))
        else:
            path.write_text("{}")
        os.utime(path, (float(at or 1000), float(at or 1000)))


def shown(found: ProgramCheckpoints, root: Path) -> dict[str, list[str]]:
    return {
        each.path.relative_to(root).as_posix(): sorted(each.files())
        for each in (*found.complete, *found.partial)
    }


PARTS = ["discriminator.pt", "generator.pt", "optimizer.pt"]
SAVEDMODEL = ["assets/vocab.txt", "saved_model.pb", "variables/variables.index"]
NAMED: dict[str, tuple[list[str], str, dict[str, list[str]]]] = {
    "a folder of safetensors": (
        ["out/model.safetensors", "out/config.json"], "out", {"out": ["config.json", "model.safetensors"]},
    ),
    "several files": ([f"out/{each}" for each in PARTS], "out", {"out": PARTS}),
    "several files by a pattern": ([f"out/{each}" for each in PARTS], "out/*.pt", {"out": PARTS}),
    "a folder of any files": ([f"out/{each}" for each in SAVEDMODEL], "out", {"out": SAVEDMODEL}),
    "a folder of saves": (
        ["out/step_1/a.pt", "out/step_1/p.json", "out/step_2/a.pt", "out/step_2/p.json"], "out",
        {"out/step_1": ["a.pt", "p.json"], "out/step_2": ["a.pt", "p.json"]},
    ),
    "files with numbers": (
        ["out/g_1.pt", "out/d_1.pt", "out/g_2.pt", "out/d_2.pt", "out/log.txt"], "out/*.pt",
        {"out": ["d_1.pt", "g_1.pt"]},
    ),
    "a number in each name": (
        ["out/a_1.pt", "out/a_2.pt"], "out", {"out/a_1.pt": ["a_1.pt"], "out/a_2.pt": ["a_2.pt"]},
    ),
    "written at other times": (
        ["out/best.pt@1000", "out/last.pt@2000"], "out/*.pt",
        {"out/best.pt": ["best.pt"], "out/last.pt": ["last.pt"]},
    ),
    **{
        ending: ([f"out/m{ending}"], f"out/m{ending}", {f"out/m{ending}": [f"m{ending}"]})
        for ending in (".pth.tar", ".npz", ".keras", ".h5", ".json", ".joblib", ".pkl", "")
    },
    "logs beside it": (["out/m.pt", "out/train.log", "out/m.csv"], "out", {"out/m.pt": ["m.pt"]}),
    "orbax": (
        ["out/5/_CHECKPOINT_METADATA", "out/5/d/a", "out/9/_CHECKPOINT_METADATA", "out/9/d/a"], "out",
        {f"out/{step}": ["_CHECKPOINT_METADATA", "d/a"] for step in (5, 9)},
    ),
    "files that are called as an index": (
        ["out/step_1/a.pt", "out/step_1/x/.metadata", "out/step_1/t.index.json"], "out/step_1",
        {"out/step_1": ["a.pt", "t.index.json", "x/.metadata"]},
    ),
    "a part of a folder is none itself": (["out/step_1/a.pt"], "out/**", {"out/step_1": ["a.pt"]}),
    "nothing": (["other/m.pt"], "out", {}),
}  # fmt: skip


@each_case("name", NAMED)
def test_a_path_that_is_named_is_a_checkpoint_whatever_its_ending(name: str, tmp_path: Path) -> None:
    files, pattern, wanted = NAMED[name]
    write(tmp_path, *files)
    found = newest_first(UnitFinder().named(tmp_path, pattern))
    assert found.partial == ()
    if name == "files with numbers":  # two of one folder
        saves = sorted(sorted(each.files()) for each in found.complete)
        assert saves == [["d_1.pt", "g_1.pt"], ["d_2.pt", "g_2.pt"]]
        return
    assert shown(found, tmp_path) == wanted


SEARCHED: dict[str, tuple[list[str], dict[str, list[str]]]] = {
    "files together": ([f"out/{each}" for each in PARTS], {"out": PARTS}),
    "a state beside it": (["out/m.pt", "out/state.json", "out/log.txt"], {"out": ["m.pt", "state.json"]}),
    "of another time": (["out/m.pt", "out/state.json@5000"], {"out/m.pt": ["m.pt"]}),
    "with its number": (["out/m_5.pt", "out/m_5.json@5000", "out/x_6.json"], {"out": ["m_5.json", "m_5.pt"]}),
    "a folder with its folders": (
        ["out/step_5/model/w.pt", "out/step_5/o/o.pt", "out/step_5/note"],
        {"out/step_5": ["model/w.pt", "note", "o/o.pt"]},
    ),
    "the Trainer": (["out/checkpoint-5/model.safetensors"], {"out/checkpoint-5": ["model.safetensors"]}),
}


@each_case("name", SEARCHED)
def test_a_search_finds_weights_with_what_was_written_beside_them(name: str, tmp_path: Path) -> None:
    files, wanted = SEARCHED[name]
    write(tmp_path, *files)
    weights = [path for path in sorted(tmp_path.rglob("*")) if path.suffix in (".pt", ".safetensors")]
    assert shown(newest_first(UnitFinder().searched(weights, tmp_path)), tmp_path) == wanted


def observe(path: Path, step: int | None, call: str = "torch.save") -> WrittenCheckpoint:
    facts = path.stat()
    files: dict[str, tuple[int, ...]] = {
        path.name: (facts.st_size, facts.st_mtime_ns, facts.st_dev, facts.st_ino)
    }
    return WrittenCheckpoint(step, path, files, facts.st_mtime, Source.OBSERVED, call)


def rename(root: Path) -> None:
    (root / "out/tmp.pth.tar").rename(root / "out/last.pth.tar")


def write_again(root: Path) -> None:
    write(root, "out/m.pt@1100")


@dataclass(frozen=True)
class Save:
    """Saves that the observer saw, and the checkpoints that they are."""

    events: tuple[tuple[str, int | None], ...]
    wanted: dict[str, tuple[int | None, tuple[str, ...]]]
    """Path -> the step that was observed, and the files."""
    beside: tuple[str, ...] = ()
    after: Callable[[Path], object] = lambda _: None


SAVES = {
    "one file": Save((("out/m.pt", 7),), {"out/m.pt": (7, ("m.pt",))}),
    "any ending": Save((("out/m", 7),), {"out/m": (7, ("m",))}),
    "several files": Save(tuple((f"out/{each}", 7) for each in PARTS), {"out": (7, tuple(PARTS))}),
    "numbers in parts": Save((("out/a_0.pt", 7), ("out/a_1.pt", 7)), {"out": (7, ("a_0.pt", "a_1.pt"))}),
    "others beside": Save((("out/m.pt", 7),), {"out": (7, ("m.pt", "state.json"))}, ("out/state.json",)),
    "a state of each": Save(
        (("out/m_1.pt", 5), ("out/m_2.pt", 7)),
        {"out/m_1.pt": (5, ("m_1.pt",)), "out": (7, ("m_2.pt", "state_2.json"))},
        ("out/state_2.json", "out/state.json", "out/other_2.pt"),
    ),
    "parts of a folder": Save(
        (("out/step_5/model.pt", 7), ("out/step_5/optim.pt", 7)),
        {"out/step_5": (7, ("model.pt", "optim.pt", "progress.json"))},
        ("out/step_5/progress.json",),
    ),
    "a folder in a folder": Save((("out/step_5/m/m.pt", 7),), {"out/step_5": (7, ("m/m.pt",))}),
    "renamed": Save((("out/tmp.pth.tar", 7),), {"out/last.pth.tar": (7, ("last.pth.tar",))}, after=rename),
    "written since": Save((("out/m.pt", 7),), {"out/m.pt": (None, ("m.pt",))}, after=write_again),
    "in progress": Save((("d.pt", 5), ("g.pt", 7)), {"d.pt": (5, ("d.pt",)), "g.pt": (7, ("g.pt",))}),
    "a cache before the first step": Save((("c.pt", None), ("out/m.pt", 7)), {"out/m.pt": (7, ("m.pt",))}),
    "no step at all": Save((("out/m.pt", None),), {"out/m.pt": (None, ("m.pt",))}),
    "gone": Save((("out/m.pt", 7),), {}, after=lambda root: (root / "out/m.pt").unlink()),
}


@each_case("name", SAVES)
def test_the_files_of_one_save_are_one_checkpoint(name: str, tmp_path: Path) -> None:
    save = SAVES[name]
    write(tmp_path, *(path for path, _ in save.events), *save.beside)
    events = [observe(tmp_path / path, step) for path, step in save.events]
    save.after(tmp_path)
    found = UnitFinder().saved(events, tmp_path)
    shown = {
        each.path.relative_to(tmp_path).as_posix(): (
            each.event and each.event.step,
            tuple(sorted(each.files())),
        )
        for each in found
    }
    assert shown == save.wanted


@each_case(
    ("path", "files", "is_covered"),
    [
        ("out/m.pt", {}, True),
        ("out", {}, True),
        ("out/m.pt", {"m.pt": (1, 1)}, False),
        ("out/none.pt", {}, None),
    ],
)
def test_a_declared_path_is_a_checkpoint_while_its_files_are_those(
    path: str, files: dict[str, tuple[int, ...]], is_covered: bool | None, tmp_path: Path
) -> None:
    write(tmp_path, "out/m.pt", "out/o.pt")
    finder = UnitFinder(is_own=lambda _: False)
    found = finder.saved([WrittenCheckpoint(7, tmp_path / path, files, 1001.0)], tmp_path)
    assert [each.event is not None for each in found] == ([] if is_covered is None else [is_covered])


def test_an_archive_is_saved_part_by_part(tmp_path: Path) -> None:
    write(tmp_path, "a.zip")
    saves = [replace(observe(tmp_path / "a.zip", 5), weights=each) for each in ("given", "none")]
    [found] = UnitFinder().saved([replace(saves[0], has_nan=True), saves[1]], tmp_path)
    assert found.event is not None and (found.weights, found.event.has_nan) == ("given", True)


def test_a_save_that_lacks_a_file_of_the_one_before_names_it(tmp_path: Path) -> None:
    write(tmp_path, *(f"out/{name}" for name in PARTS))
    events = [observe(tmp_path / "out" / name, 5) for name in PARTS]
    events.append(observe(tmp_path / "out/generator.pt", 7))
    older, newest = sorted(UnitFinder().saved(events, tmp_path), key=lambda each: each.is_file)
    assert (sorted(newest.files()), newest.lacks) == (["generator.pt"], "discriminator.pt")
    assert older.found.why == "generator.pt of its save was written again"


def test_steps_decide_and_no_time_and_weights_alone_come_last(tmp_path: Path) -> None:
    for age, step in enumerate((100, 9, 20)):
        os.utime(shapes.trainer(tmp_path / f"checkpoint-{step}"), (age, age))
    found = newest_first(UnitFinder().named(tmp_path, "checkpoint-*"))
    assert [each.step for each in found.complete] == [100, 20, 9]
    (tmp_path / "checkpoint-100" / "trainer_state.json").unlink()
    (tmp_path / "checkpoint-9" / "trainer_state.json").unlink()
    found = newest_first(UnitFinder().named(tmp_path, "checkpoint-*"))
    assert found.newest is not None and found.newest.step == 20
    assert [each.path.name for each in found.skipped] == ["checkpoint-100"]
    assert found.rejections()[0].endswith("checkpoint-20 is the newest")


def test_a_link_is_counted_once_and_by_the_place_that_it_leads_to(tmp_path: Path) -> None:
    real = shapes.lightning_file(tmp_path, 7)
    (tmp_path / "last.ckpt").symlink_to(real.name)
    (tmp_path / "gone.ckpt").symlink_to("nowhere")
    for pattern in ("*.ckpt", "last.ckpt", str(tmp_path / "last.ckpt")):
        assert [each.path for each in UnitFinder().named(tmp_path, pattern)] == [real]


def test_partial_folders_newer_than_the_newest_complete_one_are_moved_aside(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for step in (2, 4, 6, 8):
        shapes.trainer(out / f"checkpoint-{step}")
    for step in (2, 6, 8):
        (out / f"checkpoint-{step}" / "trainer_state.json").unlink()
    (out / "checkpoint-10").mkdir()
    (out / "checkpoint-12").mkdir()
    (out / "checkpoint-12" / "checkpoint-is-incomplete.txt").write_text("x")
    (out / ASIDE / "checkpoint-8").mkdir(parents=True)
    before = (out / "checkpoint-4").stat().st_mtime_ns
    lines = move_partial_aside(newest_first(UnitFinder().named(tmp_path, "out/*")))
    assert len(lines) == 4 and all("moved to" in line for line in lines)
    assert sorted(path.name for path in out.iterdir()) == ["checkpoint-2", "checkpoint-4", ASIDE]
    assert "checkpoint-8.2" in {path.name for path in (out / ASIDE).iterdir()}
    assert (out / "checkpoint-4").stat().st_mtime_ns == before
    shapes.dcp(tmp_path / "step-7", done=False)
    assert move_partial_aside(newest_first(UnitFinder().named(tmp_path, "step*"))) == ()


@pytest.mark.parametrize("name", ["trainer", "file", "nanochat"])
def test_the_state_changes_when_a_file_is_written_again(name: str, tmp_path: Path) -> None:
    if name == "trainer":
        written = shapes.trainer(tmp_path / "checkpoint-7") / "optimizer.pt"
    else:
        written = shapes.lightning_file(tmp_path, 7) if name == "file" else shapes.nanochat(tmp_path, 7)
    [one] = UnitFinder().named(tmp_path, "*")
    before = state_of(one)
    assert before == state_of(UnitFinder().named(tmp_path, "*")[0])
    os.utime(written, (1, 1))
    assert before != state_of(one)
