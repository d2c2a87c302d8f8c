"""The files that each format requires: every format × world size × every file × every damage to it.

The rule: a checkpoint is complete unless a file that its format requires is missing, empty or cut off. The
files that may be missing are named for each format; it requires all others.
"""

import argparse
import fnmatch
import os
import pickle
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.cases import each_case
from tests.integration import checkpoint_shapes as shapes

from trainyard.programs.checkpoints import volume_agent
from trainyard.programs.checkpoints.checkpoint_formats import CheckpointFormat as Format
from trainyard.programs.checkpoints.checkpoint_formats import FoundCheckpoint, find_checkpoints
from trainyard.programs.checkpoints.program_checkpoints import (
    ProgramCheckpoint,
    ProgramCheckpoints,
    UnitFinder,
    newest_first,
)
from trainyard.programs.checkpoints.volume_agent import counts_in
from trainyard.programs.checkpoints.volume_listing import VolumeFile, VolumeListing
from trainyard.programs.presets.preset import load_preset
from trainyard.run.record_models import validate_record

Plant = Callable[[Path, int, int], Path]
"""Folder of the run, step, world size -> the checkpoint."""


@dataclass(frozen=True)
class Writer:
    """A format as one program writes it."""

    format: Format
    pattern: str
    plant: Plant
    free: tuple[str, ...] = ()
    """Files that may be missing; `{last}` is the last rank."""
    unread: tuple[str, ...] = ()
    """Files that do not show where they must end."""
    step: int | None = 7
    is_volume: bool = True
    """Whether it is a folder, which is found on a volume, too."""
    one_rank: bool = False
    """Only one process writes."""


def list_checkpoint_folder(folder: Path) -> VolumeListing:
    """The files below a folder of this machine, listed as in a pod."""
    entries = volume_agent.entries_below(folder)
    return VolumeListing(tuple(validate_record(VolumeFile, entry) for entry in entries))


def megatron(run: Path, step: int, world: int) -> Path:
    (run / shapes.TRACKER).write_text(str(step))
    return shapes.torch_dist(run / f"iter_{step:07d}", world=world)


def trainer(run: Path, step: int, world: int, *, shards: int = 0) -> Path:
    return shapes.trainer(run / f"checkpoint-{step}", world=world, shards=shards)


def trainer_fsdp(run: Path, step: int, world: int) -> Path:
    folder = trainer(run, step, world)
    for name in ("model.safetensors", "config.json", "optimizer.pt", "tokenizer.json"):
        (folder / name).unlink()
    for name in ("pytorch_model_fsdp_0", "optimizer_0"):
        shapes.dcp(folder / name, world=world)
    return folder


def trainer_deepspeed(run: Path, step: int, world: int) -> Path:
    folder = trainer(run, step, world)
    (folder / "optimizer.pt").unlink()
    (folder / "scheduler.pt").unlink()
    shapes.deepspeed(folder, step, world=world)
    return folder


def adapter(run: Path, step: int, _world: int) -> Path:
    folder = run / f"adapter-step-{step}"
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(shapes.safetensors_bytes(1000))
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    return folder


def orbax(run: Path, step: int, _world: int) -> Path:
    folder = run / str(step)
    (folder / "default" / "d").mkdir(parents=True)
    for name in ("_CHECKPOINT_METADATA", "default/_METADATA", "default/d/0a1b"):
        (folder / name).write_bytes(b"x" * 100)
    return folder


def zero(stage: int) -> Plant:
    return lambda run, step, world: shapes.deepspeed(run, step, world=world, stage=stage)


def one_file(name: str) -> Plant:
    def plant(run: Path, step: int, _world: int) -> Path:
        if name.endswith(".safetensors"):
            (run / name).write_bytes(shapes.safetensors_bytes(500))
        else:
            shapes.archive(run / name, 500, {"model": {}, "step": step})
        return run / name

    return plant


TEXT = ("tokenizer.json", "zero_to_fp32.py", "context/io.json")
HUGGING_FACE = ("config.json", *TEXT)
LAST_RANK = ("rng_state_{last}.pth", "training_args.bin")
"""No file of the Trainer shows the number of ranks, and training resumes without the arguments."""
WRITERS = {
    **{f"deepspeed-{stage}": Writer(Format.DEEPSPEED, "global*", zero(stage)) for stage in (0, 2, 3)},
    "megatron": Writer(Format.MEGATRON, "iter_*", megatron, ("common.pt",)),
    "megatron-ranks": Writer(
        Format.MEGATRON, "iter_*",
        lambda run, step, world: shapes.megatron_ranks(run, step, tensor=world, pipeline=min(world, 2)),
    ),
    "nemo": Writer(
        Format.NEMO, "step=*", lambda run, step, world: shapes.nemo(run, step, world=world),
        (*TEXT, "weights/common.pt"), TEXT,
    ),
    "verl": Writer(
        Format.VERL, "global_step_*", lambda run, step, world: shapes.verl(run, step, world=world),
        ("actor/optim_world_size_1_*", "actor/extra_state_world_size_1_*", "actor/fsdp_config.json"),
    ),
    "torchtitan": Writer(
        Format.DCP, "step-*", lambda run, step, world: shapes.dcp(run / f"step-{step}", world=world)
    ),
    "dcp": Writer(
        Format.DCP, "state", lambda run, step, world: shapes.dcp(run / "state", world=world), step=None
    ),
    "trainer": Writer(Format.HUGGING_FACE, "checkpoint-*", trainer, (*HUGGING_FACE, *LAST_RANK), TEXT),
    "trainer-sharded": Writer(
        Format.HUGGING_FACE, "checkpoint-*", lambda run, step, world: trainer(run, step, world, shards=world),
        (*HUGGING_FACE, *LAST_RANK), TEXT,
    ),
    "trainer-fsdp": Writer(Format.HUGGING_FACE, "checkpoint-*", trainer_fsdp, LAST_RANK, TEXT),
    "trainer-deepspeed": Writer(
        Format.HUGGING_FACE, "checkpoint-*", trainer_deepspeed,
        ("model.safetensors", *HUGGING_FACE, *LAST_RANK), (*TEXT, "latest"),
    ),
    "weights": Writer(
        Format.HUGGING_FACE, "final",
        lambda run, _step, world: shapes.safetensors(run / "final", world=world), HUGGING_FACE, TEXT,
        step=None,
    ),
    "adapter": Writer(Format.HUGGING_FACE, "adapter*", adapter, step=None, one_rank=True),
    "accelerate": Writer(
        Format.ACCELERATE, "checkpoints/checkpoint_*",
        lambda run, step, world: shapes.accelerate(run / "checkpoints" / f"checkpoint_{step}", world=world),
        ("optimizer.bin", "scheduler.bin", "random_states_{last}.pkl"), step=None,
    ),
    "diffusers": Writer(
        Format.ACCELERATE, "checkpoint-*",
        lambda run, step, _world: shapes.accelerate_diffusers(run / f"checkpoint-{step}"),
        ("optimizer.bin", "scheduler.bin", "unet/config.json"), step=None, one_rank=True,
    ),
    "lightning-fsdp": Writer(
        Format.LIGHTNING, "*.ckpt", lambda run, step, world: shapes.lightning_fsdp(run, step, world=world)
    ),
    "lightning-deepspeed": Writer(
        Format.LIGHTNING, "*.ckpt",
        lambda run, step, world: shapes.lightning_deepspeed(run, step, world=world), TEXT, (*TEXT, "latest"),
    ),
    # Of no known format: its name calls a step, and the index in it names its shards.
    "olmo-core": Writer(
        Format.FILES, "step*", lambda run, step, world: shapes.olmo_core(run, step, world=world),
        ("train/rank*.pt", ".metadata.json"), step=None, is_volume=False,
    ),
    "orbax": Writer(Format.ORBAX, "7", orbax, ("default/*",), ("*",), one_rank=True),
    "lightning": Writer(
        Format.LIGHTNING, "*.ckpt", lambda run, step, _: shapes.lightning_file(run, step), is_volume=False,
        one_rank=True,
    ),
    "nanochat": Writer(
        Format.FILES, "*_0*", lambda run, step, world: shapes.nanochat(run, step, world=world).parent,
        ("*_000007*",), is_volume=False,
    ),
    **{
        name: Writer(Format.FILES, name, one_file(name), step=step, is_volume=False, one_rank=True)
        for name, step in (
            ("model.pt", 7), ("weights.bin", 7), ("best.pth.tar", 7), ("a.npz", 7), ("b.keras", 7),
            ("c.safetensors", None),
        )
    },
}  # fmt: skip
CASES = [(name, world) for name, each in WRITERS.items() for world in ((1,) if each.one_rank else (1, 3))]
NOT_FOUND = FoundCheckpoint(Format.FILES, "", None, (), "not recognised", is_complete=False)


def find(run: Path, pattern: str) -> ProgramCheckpoints:
    return newest_first(UnitFinder().named(run, pattern))


def newest(found: ProgramCheckpoints) -> ProgramCheckpoint:
    assert found.newest is not None, [each.found.why for each in found.partial]
    return found.newest


def on_volume(run: Path) -> FoundCheckpoint:
    """The only checkpoint below the folder."""
    found = find_checkpoints(list_checkpoint_folder(run))
    assert len(found) <= 1, found
    return found[0] if found else NOT_FOUND


@each_case(("name", "world"), CASES)
def test_an_intact_checkpoint_is_complete(name: str, world: int, tmp_path: Path) -> None:
    writer = WRITERS[name]
    path = writer.plant(tmp_path, 7, world)
    found = find(tmp_path, writer.pattern)
    one = newest(found)
    assert (one.path, one.found.format, one.step) == (path, writer.format, writer.step)
    assert found.partial == () and len(found.complete) == 1
    if writer.is_volume:
        volume = on_volume(tmp_path)
        assert (volume.format, volume.is_complete) == (writer.format, True), volume.why


@pytest.mark.slow
@each_case("damage", shapes.DAMAGES)
@each_case(("name", "world"), CASES)
def test_without_a_file_that_its_format_requires_it_is_partial(
    name: str, world: int, damage: str, tmp_path: Path
) -> None:
    writer, wrong = WRITERS[name], {}
    checkpoint = writer.plant(tmp_path, 7, world)
    for path in sorted(path for path in tmp_path.rglob("*") if path.is_file() and not path.is_symlink()):
        inside = path.is_relative_to(checkpoint) and path != checkpoint
        below = path.relative_to(checkpoint).as_posix() if inside else path.name
        before, times = path.read_bytes(), (path.stat().st_atime_ns, path.stat().st_mtime_ns)
        shapes.DAMAGES[damage](path)
        found = find(tmp_path, writer.pattern).complete
        verdicts = {bool(found) and found[0].found.format is writer.format}
        verdicts |= {on_volume(tmp_path).is_complete} if writer.is_volume else set()
        path.write_bytes(before)
        os.utime(path, ns=times)
        names = (*writer.free, *TEXT) if damage == "removed" else (*writer.unread, *TEXT)
        free = any(fnmatch.fnmatch(below, each.format(last=world - 1)) for each in names)
        free &= not (damage == "emptied" and below.endswith(".json"))
        # The only rank's file is needed.
        free &= (below, world) not in (("random_states_0.pkl", 1),)
        if verdicts != {free}:
            wrong[below] = verdicts
    assert not wrong


@each_case("world", [2, 4])
@each_case("recipe", ["deepspeed", "megatron", "nemo", "torchtitan", "verl"])
def test_a_program_keeps_its_newest_complete_checkpoint(recipe: str, world: int, tmp_path: Path) -> None:
    """The newest checkpoint lacks the last rank's shard; the program's pointer names it nevertheless."""
    writer = WRITERS["deepspeed-2" if recipe == "deepspeed" else recipe]
    older, newer = (writer.plant(tmp_path, step, world) for step in (10, 20))
    pattern = load_preset(recipe).checkpoints
    assert newest(find(tmp_path, pattern)).path == newer
    of_last = re.compile(rf"(?:.*rank_|__){world - 1}[_.].*")
    next(path for path in sorted(newer.rglob("*"), reverse=True) if of_last.fullmatch(path.name)).unlink()
    found = find(tmp_path, pattern)
    assert (newest(found).step, newest(found).path) == (10, older)
    [note] = found.rejections()
    assert note.startswith(f"{newer.name} is not complete: ") and "is missing" in note
    shutil.rmtree(older)
    assert find(tmp_path, pattern).rejections()[0].endswith("there is no complete one")


WEIGHTS_ALONE: dict[str, tuple[Callable[[Path], object], bool]] = {
    "lightning": (lambda run: shapes.lightning_file(run, 7, weights_only=True), True),
    "torchtitan": (lambda run: shapes.dcp(run / "step-7"), True),
    "save_pretrained": (lambda run: shapes.safetensors(run / "final"), True),
    "with optimizer": (lambda run: shapes.dcp(run / "step-7", optimizer=True), False),
    "Trainer": (lambda run: trainer(run, 7, 2), False),
    "own": (lambda run: shapes.archive(run / "other.pt", 50, {"weights": 1}), False),
}


@each_case("name", WEIGHTS_ALONE)
def test_weights_alone_of_a_known_framework_are_named(name: str, tmp_path: Path) -> None:
    plant, is_alone = WEIGHTS_ALONE[name]
    plant(tmp_path)
    assert newest(find(tmp_path, "*")).found.is_weights_alone is is_alone


@each_case(
    ("writer", "said", "complete"),
    [
        *(("deepspeed-2", said, True) for said in ("global_step7", "global_step7\n", "global_step9")),
        *(("deepspeed-2", said, False) for said in ("global_step6", "", "other")),
        *((writer, said, True) for writer in ("verl", "megatron") for said in ("7", "9\n")),
        *(
            (writer, said, False)
            for writer in ("verl", "megatron")
            for said in ("6", "release", "", "٧", "7.0")
        ),
    ],
)
def test_a_tracker_names_it_or_a_newer_one(writer: str, said: str, complete: bool, tmp_path: Path) -> None:
    WRITERS[writer].plant(tmp_path, 7, 2)
    (tmp_path / ("latest" if writer == "deepspeed-2" else shapes.TRACKER)).write_text(said)
    found = on_volume(tmp_path)
    assert found.is_complete == complete, found.why


ORDER_OF_THE_TRAINER = (
    *("config.json", "model*.safetensors*", "tokenizer.json", "training_args.bin", "optimizer.pt"),
    *("scheduler.pt", "rng_state*.pth", "trainer_state.json"),
)
ORDER_OF_ACCELERATE = (
    *("adapter_config.json", "*model*.safetensors", "optimizer.bin", "scheduler.bin", "random_states_*.pkl"),
)


@each_case("older", [False, True])
@each_case(
    ("plant", "order"),
    [
        (trainer, ORDER_OF_THE_TRAINER),
        (lambda run, step, world: trainer(run, step, world, shards=world), ORDER_OF_THE_TRAINER),
        (
            lambda run, step, world: shapes.accelerate(run / f"checkpoint-{step}", world=world),
            ORDER_OF_ACCELERATE,
        ),
        (
            lambda run, step, world: shapes.accelerate(run / f"checkpoint-{step}", world=world, adapter=True),
            ORDER_OF_ACCELERATE,
        ),
    ],
)
@each_case("world", [1, 3])
def test_a_save_that_was_killed_after_any_of_its_files_is_partial(
    plant: Plant, order: tuple[str, ...], world: int, older: bool, tmp_path: Path
) -> None:
    if older:
        plant(tmp_path, 4, world)
    folder = plant(tmp_path, 8, world)
    for pattern in (None, *order[:0:-1]):
        for path in folder.glob(pattern) if pattern else ():
            path.unlink()
        found = find_checkpoints(list_checkpoint_folder(tmp_path))
        complete = {each.step for each in found if each.is_complete}
        assert complete == ({4} if older else set()) | (set() if pattern else {8}), pattern


MARKS = {
    **dict.fromkeys((".tmpa1b2c3", "x.tmp", "tmpabcd_123", "tmpabcd_123.safetensors"), "trainer"),
    **dict.fromkeys((".incomplete", "a.incomplete", "checkpoint-is-incomplete.txt"), "torchtitan"),
    "../step=6-last-unfinished": "nemo",
}


@each_case("mark", MARKS)
def test_a_mark_of_an_unfinished_save_is_believed(mark: str, tmp_path: Path) -> None:
    path = WRITERS[MARKS[mark]].plant(tmp_path, 7, 2)
    for name in (mark, "deeper/" + mark) if not mark.startswith("..") else (mark,):
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).touch()
        assert "did not finish" in on_volume(tmp_path).why
        (path / name).unlink()
    assert on_volume(tmp_path).is_complete


@each_case(
    "name", ["checkpoint-7-tmp", "checkpoint-7.tmp", "last-tmp", "tmp-checkpoint-7", "tmpl.jinja", "tmp"]
)
def test_a_folder_without_its_final_name_is_partial(name: str, tmp_path: Path) -> None:
    path = trainer(tmp_path, 7, 1)
    if name.startswith(("tmpl", "tmp")) and "checkpoint" not in name:  # no temporary names of files
        (path / name).write_text("{}")
        assert on_volume(tmp_path).is_complete
        return
    path.rename(tmp_path / name)
    assert "is still a temporary name" in on_volume(tmp_path).why


@each_case("name", ["torchtitan", "lightning-fsdp", "olmo-core"])
def test_a_shard_newer_than_its_index_is_of_another_save(name: str, tmp_path: Path) -> None:
    older, newer = (WRITERS[name].plant(tmp_path, step, 2) for step in (4, 7))
    shard = next(newer.rglob("__1_0.distcp"))
    os.utime(shard.with_name(".metadata"), (1000, 1000))
    for late, complete in ((1000, True), (999, True), (1001, False)):
        for path in shard.parent.glob("*.distcp"):
            os.utime(path, (900, 900))
        os.utime(shard, (late, late))
        assert newest(find(tmp_path, WRITERS[name].pattern)).path == (newer if complete else older)


def test_layouts_that_other_versions_write(tmp_path: Path) -> None:
    """Megatron Core without common.pt or metadata.json, MiCS of DeepSpeed, shards of a larger world."""
    for name, lacks in (("new", "common.pt"), ("plain", "metadata.json")):
        (tmp_path / name).mkdir()
        folder = megatron(tmp_path / name, 7, 2)
        (folder / "common.pt").unlink()
        (folder / lacks).unlink(missing_ok=True)
        if name == "new":
            (folder / "metadata.json").write_text('{"sharded_backend": "torch_dist"}')
    folder = shapes.deepspeed(tmp_path / "mics", 7, world=2, stage=3)
    zero = {"stage": 3, "mics_shard_size": 2}
    state = {"dp_world_size": 8, "mp_world_size": 1, "ds_config": {"zero_optimization": zero}}
    for rank in range(2):
        shapes.archive(folder / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt", 100, state)
    (shapes.dcp(tmp_path / "step-7") / "__3_0.distcp").write_bytes(b"old")
    for found in find_checkpoints(list_checkpoint_folder(tmp_path)):
        assert found.is_complete, (found.path, found.why)
    (release := tmp_path / "a").mkdir()
    shapes.megatron(release, 1).rename(release / "release")
    (release / shapes.TRACKER).write_text("release\n")
    assert (on_volume(release).step, on_volume(release).is_complete) == (None, True)
    shutil.rmtree(release / "release" / "mp_rank_00")
    assert on_volume(release).why.endswith("mp_rank_00/model_optim_rng.pt is missing")


def test_no_code_that_a_pickle_names_runs(tmp_path: Path) -> None:
    class Harmful:
        def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
            return Path.touch, (tmp_path / "harm",)

    content = {"args": argparse.Namespace(tensor_model_parallel_size=2), "harm": Harmful(), "step": 7}
    folder = tmp_path / "iter_0000007"
    shapes.archive(folder / "mp_rank_00" / "model_optim_rng.pt", 10, content)
    (folder / ".metadata").write_bytes(pickle.dumps({"storage_data": Harmful()}))
    shapes.archive(tmp_path / "plain.pt", 10, content)
    assert counts_in(folder / "mp_rank_00" / "model_optim_rng.pt") == {"tensor_model_parallel_size": 2}
    list_checkpoint_folder(tmp_path)
    assert newest(find(tmp_path, "plain.pt")).step == 7
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    "content", [None, 7, [], {"ds_config": "file.json"}, {"dp_world_size": -1}, {"args": 3}]
)
def test_a_file_without_counts_has_none(content: object, tmp_path: Path) -> None:
    shapes.archive(tmp_path / "mp_rank_00_model_states.pt", 10, content)
    assert counts_in(tmp_path / "mp_rank_00_model_states.pt") == {}
