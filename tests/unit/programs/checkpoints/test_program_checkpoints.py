"""Checkpoints of programs by rule: every format × world size × file × damage, and the one to resume from.

The rule of each format is a list of the files that it may lack; everything else that is missing, empty or cut
short makes it partial. `test_completeness` has the same for the formats that volumes have.
"""

import fnmatch
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.cases import each_case
from tests.integration import checkpoint_shapes as shapes

from trainyard.programs.checkpoints.found_checkpoint import CheckpointFormat as Format
from trainyard.programs.checkpoints.program_checkpoints import (
    ASIDE,
    ProgramCheckpoint,
    ProgramCheckpoints,
    find_program_checkpoints,
    move_partial_aside,
    state_of,
)


@dataclass(frozen=True)
class Program:
    """A format as one program writes it."""

    format: Format
    pattern: str
    plant: Callable[[Path, int, int], Path]
    """Folder, step, world size -> the checkpoint."""
    free: tuple[str, ...] = ()
    """Files of the folder that may be missing; `{last}` is the last rank."""
    text: tuple[str, ...] = ()
    """Files that may be cut short."""
    step: int | None = 7
    resumable: bool | None = True
    one_rank: bool = False
    """Only one process writes."""


def trainer(run: Path, step: int, world: int) -> Path:
    return shapes.trainer(run / f"checkpoint-{step}", world=world)


def torchtitan(run: Path, step: int, world: int) -> Path:
    return shapes.dcp(run / f"step-{step}", world=world, optimizer=True)


def plain(name: str) -> Callable[[Path, int, int], Path]:
    def plant(run: Path, step: int, _world: int) -> Path:
        path = run / name.format(step)
        if path.suffix == ".safetensors":
            path.write_bytes(shapes.safetensors_bytes(500))
        else:
            shapes.archive(path, 500, {"model": {}})
        return path

    return plant


PROGRAMS = {
    "trainer": Program(
        Format.HUGGING_FACE,
        "checkpoint-*",
        trainer,
        free=("config.json", "tokenizer.json", "training_args.bin", "rng_state_{last}.pth"),
        text=("tokenizer.json",),
    ),
    "accelerate": Program(
        Format.ACCELERATE,
        "checkpoints/checkpoint_*",
        lambda run, step, world: shapes.accelerate(run / "checkpoints" / f"checkpoint_{step}", world=world),
        free=("optimizer.bin", "scheduler.bin", "random_states_{last}.pkl"),
        step=None,
    ),
    "diffusers": Program(
        Format.ACCELERATE,
        "checkpoint-*",
        lambda run, step, _world: shapes.accelerate_diffusers(run / f"checkpoint-{step}"),
        free=("optimizer.bin", "scheduler.bin", "unet/config.json"),
        one_rank=True,
    ),
    "lightning": Program(
        Format.LIGHTNING,
        "*.ckpt",
        lambda run, step, _world: shapes.lightning_file(run, step),
        one_rank=True,
    ),
    "lightning-fsdp": Program(
        Format.LIGHTNING, "*.ckpt", lambda run, step, world: shapes.lightning_fsdp(run, step, world=world)
    ),
    "lightning-deepspeed": Program(
        Format.LIGHTNING,
        "*.ckpt",
        lambda run, step, world: shapes.lightning_deepspeed(run, step, world=world),
        free=("zero_to_fp32.py",),
        text=("zero_to_fp32.py",),
    ),
    "nanogpt": Program(
        Format.NANOGPT, "ckpt.pt", lambda run, step, _world: shapes.nanogpt(run, step), one_rank=True
    ),
    "nanochat": Program(
        Format.NANOCHAT,
        "*_0*",
        lambda run, step, world: shapes.nanochat(run, step, world=world),
        free=("optim_000007_rank{last}.pt",),
    ),
    "automodel": Program(
        Format.AUTOMODEL,
        "epoch_*_step_*",
        lambda run, step, world: shapes.automodel(run, step, world=world),
        free=("rng.pt", "config.yaml", "model/config.json"),
        text=("config.yaml",),
    ),
    "olmo-core": Program(
        Format.OLMO_CORE,
        "step*",
        lambda run, step, world: shapes.olmo_core(run, step, world=world),
        free=tuple(f"train/rank{rank}.pt" for rank in (1, 2, 3)),
    ),
    "composer": Program(
        Format.COMPOSER,
        "ep*-rank*.pt",
        lambda run, step, _world: shapes.composer_file(run, step),
        one_rank=True,
    ),
    "composer-sharded": Program(
        Format.COMPOSER,
        "ep*",
        lambda run, step, world: shapes.dcp(run / f"ep0-ba{step}", world=world, optimizer=True),
    ),
    "torchtitan": Program(Format.DCP, "step-*", torchtitan),
    "dcp": Program(
        Format.DCP,
        "state_*",
        lambda run, step, world: shapes.dcp(run / f"state_step_{step}", world=world, optimizer=True),
    ),
    "torch.save": Program(Format.TORCH_SAVE, "*.pt", plain("model-{}.pt"), resumable=None, one_rank=True),
    "safetensors": Program(
        Format.SAFETENSORS, "*.safetensors", plain("step_{}.safetensors"), resumable=None, one_rank=True
    ),
    "bin": Program(Format.TORCH_SAVE, "*.bin", plain("weights{}.bin"), resumable=None, one_rank=True),
}
CASES = [
    (name, world) for name, program in PROGRAMS.items() for world in ((1,) if program.one_rank else (1, 2, 4))
]


def find(run: Path, name: str, world: int | None = None) -> ProgramCheckpoints:
    return find_program_checkpoints(run, PROGRAMS[name].pattern, world_size=world, quiet_seconds=0)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def newest(found: ProgramCheckpoints) -> ProgramCheckpoint:
    assert found.newest is not None, [each.found.why for each in found.partial]
    return found.newest


@each_case("known", [True, False])
@each_case(("name", "world"), CASES)
def test_an_intact_checkpoint_is_complete_and_resumable(
    name: str, world: int, known: bool, tmp_path: Path
) -> None:
    program = PROGRAMS[name]
    path = program.plant(tmp_path, 7, world)
    found = find(tmp_path, name, world if known else None)
    one = newest(found)
    assert (one.path, one.found.format, one.step) == (path, program.format, program.step)
    assert one.found.resumable is program.resumable, one.found.resumable_why
    assert one.found.resumable_why
    assert found.newest_resumable is one
    assert (found.complete, found.partial, found.notes(), found.resume_notes()) == ((one,), (), (), ())


@each_case("damage", shapes.DAMAGES)
@each_case(("name", "world"), CASES)
def test_without_a_file_that_it_owes_it_is_partial(
    name: str, world: int, damage: str, tmp_path: Path
) -> None:
    program = PROGRAMS[name]
    checkpoint = program.plant(tmp_path, 7, world)
    unexpected = {}
    for path in sorted(path for path in tmp_path.rglob("*") if path.is_file() and not path.is_symlink()):
        below = path.relative_to(checkpoint if checkpoint.is_dir() else tmp_path).as_posix()
        before, times = path.read_bytes(), (path.stat().st_atime_ns, path.stat().st_mtime_ns)
        shapes.DAMAGES[damage](path)
        found = find(tmp_path, name)
        path.write_bytes(before)
        os.utime(path, ns=times)
        names = program.free if damage == "removed" else program.text
        free = any(fnmatch.fnmatch(below, each.format(last=world - 1)) for each in names)
        free &= not (damage == "emptied" and below.endswith(".json"))
        free &= (below, world) != ("random_states_0.pkl", 1)  # the only rank's file is needed
        if (found.newest is not None) != free:
            unexpected[below] = [each.found.why for each in found.partial]
    assert unexpected == {}


RESUMED_FROM: dict[str, tuple[str, ...]] = {
    "trainer": ("optimizer.pt scheduler.pt rng_state*.pth", "rng_state_{last}.pth"),
    "accelerate": ("optimizer.bin",),
    "diffusers": ("optimizer.bin",),
    "nanochat": ("optim_*", "optim_000007_rank{last}.pt"),
    "automodel": ("optim/*",),
    "olmo-core": ("train/rank{last}.pt",),
}
"""Files without which a checkpoint is complete, but training does not resume from it."""


@each_case("world", [2, 4])
@each_case(("name", "without"), [(name, each) for name, all_ in RESUMED_FROM.items() for each in all_])
def test_complete_and_not_resumable(name: str, without: str, world: int, tmp_path: Path) -> None:
    program = PROGRAMS[name]
    older = program.plant(tmp_path, 4, world)
    checkpoint = program.plant(tmp_path, 7, world)
    folder = checkpoint if checkpoint.is_dir() else tmp_path
    for pattern in without.format(last=world - 1).split():
        for path in folder.glob(pattern):
            if "000004" not in path.name:
                path.unlink()
    found = find(tmp_path, name, world)
    one = newest(found)
    assert (one.path, one.found.resumable) == (checkpoint, False)
    assert "missing" in one.found.resumable_why or "no optim_" in one.found.resumable_why
    assert found.newest_resumable is not None and found.newest_resumable.path == older
    [note] = found.resume_notes()
    assert found.notes() == ()
    assert note.startswith(f"{checkpoint.name} is complete, but training cannot resume from it: ")
    assert f"{older.name} is used instead" in note


@each_case(
    ("plant", "pattern", "answer"),
    [
        (lambda run: shapes.lightning_file(run, 7, weights_only=True), "*.ckpt", False),
        (lambda run: shapes.composer_file(run, 7, weights_only=True), "*rank0.pt", False),
        (lambda run: shapes.dcp(run / "step-7"), "step-7", False),
        (lambda run: shapes.safetensors(run / "step-7"), "step-7", False),
        (lambda run: shapes.dcp(run / "state"), "state", None),
        (lambda run: shapes.archive(run / "other.ckpt", 50, {"weights": 1}), "*.ckpt", None),
        (lambda run: shapes.archive(run / "ckpt.pt", 50, {"model": 1}), "ckpt.pt", False),
        (lambda run: shapes.archive(run / "ckpt.pt", 50, [1]), "ckpt.pt", None),
    ],
)
def test_weights_alone_are_not_resumed_from_and_unknown_content_is_unknown(
    plant: Callable[[Path], object], pattern: str, answer: bool | None, tmp_path: Path
) -> None:
    plant(tmp_path)
    found = find_program_checkpoints(tmp_path, pattern, quiet_seconds=0)
    assert newest(found).found.resumable is answer
    assert (found.newest_resumable is None) is (answer is False)
    if answer is False:
        assert found.resume_notes()[0].endswith("there is no other")


@pytest.mark.parametrize("name", ["deepspeed", "verl", "trainer", "trainer-deepspeed", "nanochat"])
def test_another_number_of_processes_is_not_resumable_where_the_program_refuses_it(
    name: str, tmp_path: Path
) -> None:
    if name in PROGRAMS:
        PROGRAMS[name].plant(tmp_path, 7, 4)
    elif name == "trainer-deepspeed":
        folder = trainer(tmp_path, 7, 4)
        for other in ("optimizer.pt", "scheduler.pt"):
            (folder / other).unlink()
        shapes.deepspeed(folder, 7, world=4)
    else:
        getattr(shapes, name)(tmp_path, 7, world=4)
    pattern = PROGRAMS[name].pattern if name in PROGRAMS else "*7"
    for world in (None, 2, 4, 8):
        one = newest(find_program_checkpoints(tmp_path, pattern, world_size=world, quiet_seconds=0))
        assert one.found.resumable is (world in (None, 4)), (world, one.found.resumable_why)


MARKS = (".tmpa1b2c3", "x.tmp", "tmpabcd_123", "tmpabcd_123.safetensors", ".incomplete", "a.incomplete")
FOLDERS = [name for name in PROGRAMS if name not in ("nanochat",) and not name.endswith(("save", "tensors"))]
FOLDERS = [n for n in FOLDERS if n not in ("lightning", "nanogpt", "composer", "bin")]


@each_case("below", [".", "deeper"])
@each_case("mark", [*MARKS, "checkpoint-is-incomplete.txt"])
@each_case("name", FOLDERS)
def test_a_temporary_name_at_any_depth_makes_it_partial(
    name: str, mark: str, below: str, tmp_path: Path
) -> None:
    path = PROGRAMS[name].plant(tmp_path, 7, 2) / below / mark
    path.parent.mkdir(exist_ok=True)
    path.write_text("x")
    found = find(tmp_path, name)
    if name in ("trainer", "accelerate", "diffusers") or below == "." or "composer" in name or "dcp" in name:
        assert found.newest is None
    assert not found.complete and found.partial[0].found.why.endswith("shows that its save did not finish")


@pytest.mark.parametrize("name", ["tmpl_chat.jinja", "template.json", "tmp", "attempt.txt"])
def test_other_names_are_no_temporary_ones(name: str, tmp_path: Path) -> None:
    (trainer(tmp_path, 7, 1) / name).write_text("{}")
    assert find(tmp_path, "trainer").newest is not None


def test_steps_decide_and_no_time(tmp_path: Path) -> None:
    for age, step in enumerate((100, 9, 20)):
        os.utime(trainer(tmp_path, step, 1), (age, age))
    found = find(tmp_path, "trainer")
    assert [each.step for each in found.complete] == [100, 20, 9]
    (tmp_path / "checkpoint-100" / "trainer_state.json").unlink()
    found = find(tmp_path, "trainer")
    assert (newest(found).step, [each.step for each in found.skipped]) == (20, [100])
    assert found.notes()[0].endswith("checkpoint-20 is the newest")
    (tmp_path / "checkpoint-9" / "trainer_state.json").unlink()
    assert [each.step for each in find(tmp_path, "trainer").skipped] == [100]


def test_files_without_a_step_come_after_those_with_one_by_their_time(tmp_path: Path) -> None:
    for age, name in enumerate(("b.pt", "a.pt", "epoch_9.pt", "step_1.pt", "v2-step_3.pt", "c.pt")):
        shapes.archive(tmp_path / name, 20, {})
        os.utime(tmp_path / name, (1000 + age, 1000 + age))
    found = find_program_checkpoints(tmp_path, "*.pt")
    names = [each.path.name for each in found.complete]
    assert names == ["v2-step_3.pt", "step_1.pt", "c.pt", "epoch_9.pt", "a.pt", "b.pt"]


@pytest.mark.parametrize(("age", "names"), [(900, []), (1100, ["last.ckpt"])])
def test_a_partial_file_without_a_step_is_named_if_it_is_the_newest(
    age: int, names: list[str], tmp_path: Path
) -> None:
    os.utime(shapes.lightning_file(tmp_path, 7), (1000, 1000))
    (tmp_path / "last.ckpt").write_bytes(b"PK")
    os.utime(tmp_path / "last.ckpt", (age, age))
    found = find(tmp_path, "lightning")
    assert (newest(found).step, [each.path.name for each in found.skipped]) == (7, names)


def test_a_link_is_counted_once_and_by_the_place_that_it_leads_to(tmp_path: Path) -> None:
    real = shapes.lightning_file(tmp_path, 7)
    (tmp_path / "last.ckpt").symlink_to(real.name)
    (tmp_path / "gone.ckpt").symlink_to("nowhere")
    for pattern in ("*.ckpt", "last.ckpt", str(tmp_path / "last.ckpt")):
        found = find_program_checkpoints(tmp_path, pattern, quiet_seconds=0)
        assert [each.path for each in found.complete] == [real]
    folder = trainer(tmp_path / "deep", 5, 1)
    (tmp_path / "LATEST").symlink_to(folder)
    assert [each.path for each in find_program_checkpoints(tmp_path, "LATEST").complete] == [folder]
    (tmp_path / "out").symlink_to(tmp_path / "deep")
    assert newest(find_program_checkpoints(tmp_path, "out/checkpoint-*")).path.parent.name == "out"


def test_composers_file_counts_when_latest_names_it_or_a_newer_one(tmp_path: Path) -> None:
    first, second = (shapes.composer_file(tmp_path, step) for step in (4, 8))
    assert [each.step for each in find(tmp_path, "composer").complete] == [8, 4]
    (tmp_path / "latest-rank0.pt").unlink()
    (tmp_path / "latest-rank0.pt").symlink_to(first.name)
    found = find(tmp_path, "composer")
    assert ([each.step for each in found.complete], found.skipped[0].path) == ([4], second)
    (tmp_path / "latest-rank0.pt").unlink()
    assert newest(find(tmp_path, "composer")).path == second


@pytest.mark.parametrize("name", ["dcp", "torchtitan", "lightning-fsdp", "olmo-core", "automodel"])
def test_a_shard_newer_than_its_index_is_of_another_save(name: str, tmp_path: Path) -> None:
    older, newer = (PROGRAMS[name].plant(tmp_path, step, 2) for step in (4, 7))
    shard = next(newer.rglob("__1_0.distcp"))
    index = shard.with_name(".metadata")
    os.utime(index, (1000, 1000))
    for late, complete in ((1000, True), (999, True), (1001, False)):
        for path in index.parent.glob("*.distcp"):
            os.utime(path, (900, 900))
        os.utime(shard, (late, late))
        found = find(tmp_path, name)
        assert newest(found).path == (newer if complete else older)
    assert "newer than the .metadata" in found.skipped[0].found.why


def test_a_shard_of_a_former_larger_world_does_not_matter(tmp_path: Path) -> None:
    folder = torchtitan(tmp_path, 7, 2)
    (folder / "__3_0.distcp").write_bytes(b"old")
    assert newest(find(tmp_path, "torchtitan")).found.resumable


@each_case("name", [name for name in PROGRAMS if PROGRAMS[name].one_rank or name == "accelerate"])
def test_a_format_without_a_mark_of_its_end_must_be_quiet(name: str, tmp_path: Path) -> None:
    path = PROGRAMS[name].plant(tmp_path, 7, 1)
    pattern, slept = PROGRAMS[name].pattern, []
    now = max(each.stat().st_mtime for each in (path, *path.rglob("*")))

    def look(change: Callable[[], object] = lambda: None, age: float = 0.5) -> ProgramCheckpoints:
        def sleep(seconds: float) -> None:
            slept.append(seconds)
            change()

        return find_program_checkpoints(tmp_path, pattern, now=lambda: now + age, sleep=sleep)

    assert look().newest is not None
    assert slept == [pytest.approx(1.5, abs=1e-3)]
    assert look(age=2.5).newest is not None and len(slept) == 1
    file = path if path.is_file() else next(each for each in sorted(path.rglob("*")) if each.is_file())
    found = look(lambda: os.utime(file, (now + 1, now + 1)))
    assert (found.newest, found.partial[0].found.resumable) == (None, False)
    assert "its files changed within 2 s" in found.notes()[0]
    found = look(lambda: shutil.rmtree(path) if path.is_dir() else path.unlink())
    assert (found.complete, found.partial) == ((), ())


def test_a_trainer_of_several_ranks_must_be_quiet_and_one_of_a_single_rank_need_not(tmp_path: Path) -> None:
    for world, waits in ((1, 0), (2, 1)):
        slept: list[float] = []
        trainer(tmp_path / str(world), 7, world)
        found = find_program_checkpoints(tmp_path / str(world), "*", sleep=slept.append)
        assert found.newest is not None and len(slept) == waits


def test_partial_folders_newer_than_the_newest_complete_one_are_moved_aside(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for step in (2, 4, 6, 8):
        trainer(out, step, 1)
    for step in (2, 6, 8):
        (out / f"checkpoint-{step}" / "trainer_state.json").unlink()
    (out / "checkpoint-10").mkdir()
    (out / "checkpoint-12").mkdir()
    (out / "checkpoint-12" / "checkpoint-is-incomplete.txt").write_text("x")
    (out / ASIDE / "checkpoint-8").mkdir(parents=True)
    before = (out / "checkpoint-4").stat().st_mtime_ns
    found = find_program_checkpoints(tmp_path, "out/*", quiet_seconds=0)
    assert [each.step for each in found.skipped] == [12, 10, 8, 6]
    lines = move_partial_aside(found)
    assert len(lines) == 4 and all("moved to" in line for line in lines)
    assert names_in(out) == ["checkpoint-2", "checkpoint-4", ASIDE]
    assert names_in(out / ASIDE) == [
        *("checkpoint-10", "checkpoint-12", "checkpoint-6", "checkpoint-8", "checkpoint-8.2")
    ]
    assert (out / "checkpoint-4").stat().st_mtime_ns == before
    found = find_program_checkpoints(tmp_path, "out/*", quiet_seconds=0)
    assert (newest(found).step, found.skipped, move_partial_aside(found)) == (4, (), ())


def test_other_formats_stay_where_they_are(tmp_path: Path) -> None:
    shapes.dcp(tmp_path / "step-7", done=False)
    found = find_program_checkpoints(tmp_path, "*")
    assert found.skipped and move_partial_aside(found) == ()
    assert (tmp_path / "step-7").is_dir()


def test_what_is_not_recognised_is_named_where_nothing_else_is_there(tmp_path: Path) -> None:
    trainer(tmp_path / "out", 7, 1)
    found = find_program_checkpoints(tmp_path, "out")
    assert found.newest is None and found.unrecognized == (tmp_path / "out",)
    assert "such as out/checkpoint-*" in found.notes()[0]
    assert find_program_checkpoints(tmp_path, "nothing-*").notes() == ()
    assert [each.path.name for each in find_program_checkpoints(tmp_path, "**").complete] == ["checkpoint-7"]


def test_only_the_formats_that_are_wanted_count(tmp_path: Path) -> None:
    trainer(tmp_path, 7, 1)
    shapes.dcp(tmp_path / "step-9")
    assert newest(find_program_checkpoints(tmp_path, "*")).step == 9
    assert newest(find_program_checkpoints(tmp_path, "*", formats=[Format.HUGGING_FACE])).step == 7
    assert find_program_checkpoints(tmp_path, "*", formats=[Format.VERL]).newest is None


def test_shards_of_another_save_than_the_index_are_noticed(tmp_path: Path) -> None:
    folder = shapes.trainer(tmp_path / "checkpoint-7", shards=2)
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    for size, complete in ((1000, True), (1001, False), (None, True)):
        content["metadata"] = {} if size is None else {"total_size": size}
        index.write_text(json.dumps(content))
        assert (find(tmp_path, "trainer").newest is not None) is complete


@pytest.mark.parametrize("name", ["trainer", "lightning", "nanochat"])
def test_the_state_changes_when_a_file_is_written_again(name: str, tmp_path: Path) -> None:
    path = PROGRAMS[name].plant(tmp_path, 7, 1)
    before = state_of(newest(find(tmp_path, name)))
    assert before == state_of(newest(find(tmp_path, name)))
    os.utime(path if path.is_file() else path / "optimizer.pt", (1, 1))
    assert before != state_of(newest(find(tmp_path, name)))


def test_a_model_file_of_another_program_is_none_of_nanochat(tmp_path: Path) -> None:
    shapes.archive(tmp_path / "model_000100.pt", 20, {})
    one = newest(find_program_checkpoints(tmp_path, "*.pt", quiet_seconds=0))
    assert (one.found.format, one.step, one.found.resumable) == (Format.TORCH_SAVE, 100, None)


@pytest.mark.parametrize("name", ["checkpoint-7-tmp", "checkpoint-7.tmp", "last-tmp", "tmp-checkpoint-7"])
def test_a_folder_without_its_final_name_is_partial(name: str, tmp_path: Path) -> None:
    trainer(tmp_path, 7, 1).rename(tmp_path / name)
    found = find_program_checkpoints(tmp_path, "*", quiet_seconds=0)
    assert found.newest is None and "is still a temporary name" in found.notes()[0]


def test_shards_of_accelerate_need_their_index(tmp_path: Path) -> None:
    folder = shapes.accelerate(tmp_path / "checkpoint-7")
    (folder / "model.safetensors").unlink()
    shapes.safetensors(tmp_path / "shards")
    for path in (tmp_path / "shards").iterdir():
        path.rename(folder / path.name)
    assert newest(find(tmp_path, "diffusers")).step == 7
    (folder / "model.safetensors.index.json").unlink()
    assert "no index of its shards" in find(tmp_path, "diffusers").notes()[0]


def test_automodel_keeps_shards_and_consolidated_weights(tmp_path: Path) -> None:
    folder = shapes.automodel(tmp_path, 7)
    shutil.rmtree(folder / "model")
    (folder / "model" / "consolidated").mkdir(parents=True)
    assert "model/ has no weights" in find(tmp_path, "automodel").notes()[0]
    (folder / "model" / "consolidated" / "model.safetensors").write_bytes(shapes.safetensors_bytes(50))
    assert newest(find(tmp_path, "automodel")).found.resumable
    (folder / ".incomplete").touch()
    assert find(tmp_path, "automodel").newest is None
