"""The files that each format owes: every format × world size × every file × every damage to it.

The rule: a checkpoint is complete unless a file that its format owes is missing or short. The files that may
be missing are named for each format; it owes all others.
"""

import argparse
import collections
import fnmatch
import pickle
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy
import pytest
import torch
from tests.cases import each_case
from tests.integration import checkpoint_shapes as shapes

from trainyard.programs.checkpoints.checkpoint_formats import find_checkpoints
from trainyard.programs.checkpoints.found_checkpoint import CheckpointFormat, FoundCheckpoint
from trainyard.programs.checkpoints.program_checkpoints import find_program_checkpoints
from trainyard.programs.checkpoints.volume_agent import counts_in
from trainyard.programs.checkpoints.volume_listing import list_checkpoint_folder
from trainyard.programs.presets.preset import load_preset

Plant = Callable[[Path, int, int], Path]
"""Folder of the run, step, world size -> the checkpoint."""


@dataclass(frozen=True)
class Writer:
    """A format, and the rule for the files that it owes."""

    format: CheckpointFormat
    plant: Plant
    optional: tuple[str, ...] = ()
    """Files that may be missing."""
    unread: tuple[str, ...] = ()
    """Files that do not show where they must end: they may be short or empty."""


def _torchtitan(run: Path, step: int, world: int) -> Path:
    return shapes.dcp(run / f"step-{step}", world=world)


def _megatron(run: Path, step: int, world: int) -> Path:
    (run / shapes.TRACKER).write_text(str(step))
    return shapes.torch_dist(run / f"iter_{step:07d}", world=world)


def _trainer(run: Path, step: int, world: int) -> Path:
    return shapes.trainer(run / f"checkpoint-{step}", world=world)


def _trainer_sharded(run: Path, step: int, world: int) -> Path:
    return shapes.trainer(run / f"checkpoint-{step}", world=world, shards=world)


def _trainer_fsdp(run: Path, step: int, world: int) -> Path:
    folder = _trainer(run, step, world)
    for name in ("model.safetensors", "config.json", "optimizer.pt", "tokenizer.json"):
        (folder / name).unlink()
    for name in ("pytorch_model_fsdp_0", "optimizer_0"):
        shapes.dcp(folder / name, world=world)
    return folder


def _trainer_deepspeed(run: Path, step: int, world: int) -> Path:
    folder = _trainer(run, step, world)
    (folder / "optimizer.pt").unlink()
    (folder / "scheduler.pt").unlink()
    shapes.deepspeed(folder, step, world=world)
    return folder


def _weights(run: Path, step: int, world: int) -> Path:
    return shapes.safetensors(run / f"step-{step}", world=world)


def _accelerate(run: Path, step: int, world: int) -> Path:
    return shapes.accelerate(run / f"checkpoint-{step}", world=world)


def _adapter(run: Path, step: int, _world: int) -> Path:
    folder = run / f"adapter-step-{step}"
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(shapes.safetensors_bytes(1000))
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    (folder / "README.md").write_text("x" * 300)
    return folder


_TEXT = ("tokenizer.json", "README.md", "zero_to_fp32.py", "context/io.json")
_HUGGING_FACE = ("config.json", *_TEXT)
_LAST_RANK = ("rng_state_{last}.pth", "training_args.bin")
"""No file of the Trainer shows the number of ranks, and training resumes without the arguments."""
_ONE_RANK = ("actor/optim_world_size_1_*", "actor/extra_state_world_size_1_*")
"""verl saves the parts in `save_contents`; with several ranks, the other ranks show which are owed."""
WRITERS = {
    "trainyard": Writer(CheckpointFormat.TRAINYARD, lambda run, step, _world: shapes.ours(run, step)),
    "deepspeed-0": Writer(
        CheckpointFormat.DEEPSPEED, lambda run, step, world: shapes.deepspeed(run, step, world=world, stage=0)
    ),
    "deepspeed-2": Writer(
        CheckpointFormat.DEEPSPEED, lambda run, step, world: shapes.deepspeed(run, step, world=world, stage=2)
    ),
    "deepspeed-3": Writer(
        CheckpointFormat.DEEPSPEED, lambda run, step, world: shapes.deepspeed(run, step, world=world, stage=3)
    ),
    "megatron": Writer(CheckpointFormat.MEGATRON, _megatron),
    "megatron-ranks": Writer(
        CheckpointFormat.MEGATRON,
        lambda run, step, world: shapes.megatron_ranks(run, step, tensor=world, pipeline=min(world, 2)),
    ),
    "nemo": Writer(
        CheckpointFormat.NEMO, lambda run, step, world: shapes.nemo(run, step, world=world), _TEXT, _TEXT
    ),
    "verl": Writer(
        CheckpointFormat.VERL,
        lambda run, step, world: shapes.verl(run, step, world=world),
        (*_ONE_RANK, "actor/fsdp_config.json"),
    ),
    "torchtitan": Writer(CheckpointFormat.DCP, _torchtitan),
    "trainer": Writer(CheckpointFormat.HUGGING_FACE, _trainer, (*_HUGGING_FACE, *_LAST_RANK), _TEXT),
    "trainer-sharded": Writer(
        CheckpointFormat.HUGGING_FACE, _trainer_sharded, (*_HUGGING_FACE, *_LAST_RANK), _TEXT
    ),
    "trainer-fsdp": Writer(CheckpointFormat.HUGGING_FACE, _trainer_fsdp, _LAST_RANK, _TEXT),
    "trainer-deepspeed": Writer(
        CheckpointFormat.HUGGING_FACE,
        _trainer_deepspeed,
        ("model.safetensors", *_HUGGING_FACE, *_LAST_RANK),
        _TEXT,
    ),
    "weights": Writer(CheckpointFormat.HUGGING_FACE, _weights, _HUGGING_FACE, _TEXT),
    "adapter": Writer(CheckpointFormat.HUGGING_FACE, _adapter, _HUGGING_FACE, _TEXT),
}
CASES = [(name, world) for name in WRITERS for world in (1, 2, 4)]


def judged(run: Path) -> FoundCheckpoint:
    """The only checkpoint below the folder; a partial one where none of its files is recognised."""
    found = find_checkpoints(list_checkpoint_folder(run))
    assert len(found) <= 1, found
    return found[0] if found else FoundCheckpoint(CheckpointFormat.DCP, "", None, (), "not recognised")


def is_named(name: str, patterns: tuple[str, ...], world: int) -> bool:
    return any(fnmatch.fnmatch(name, pattern.format(last=world - 1)) for pattern in patterns)


def is_owed(writer: str, world: int, name: str, damage: str) -> bool:
    """The rule; `name` is the file's path in the checkpoint, or the name of a file beside it."""
    rule = WRITERS[writer]
    if damage == "removed":
        return not is_named(name, (*rule.optional, *_TEXT), world)
    if damage == "emptied" and name.endswith(".json"):
        return True  # no program writes an empty JSON file
    return not is_named(name, (*rule.unread, *_TEXT), world)


@each_case(("name", "world"), CASES)
def test_an_intact_checkpoint_is_complete(name: str, world: int, tmp_path: Path) -> None:
    WRITERS[name].plant(tmp_path, 7, world)
    found = judged(tmp_path)
    assert (found.format, found.step, found.is_complete) == (WRITERS[name].format, 7, True), found.why


@each_case("damage", shapes.DAMAGES)
@each_case(("name", "world"), CASES)
def test_a_checkpoint_without_a_file_that_its_format_owes_is_partial(
    name: str, world: int, damage: str, tmp_path: Path
) -> None:
    checkpoint = WRITERS[name].plant(tmp_path, 7, world)
    wrong = {}
    for path in sorted(path for path in tmp_path.rglob("*") if path.is_file()):
        before = path.read_bytes()
        shapes.DAMAGES[damage](path)
        found = judged(tmp_path)
        path.write_bytes(before)
        inside = path.is_relative_to(checkpoint)
        below = path.relative_to(checkpoint).as_posix() if inside else path.name
        if found.is_complete == is_owed(name, world, below, damage):
            wrong[below] = found.why
    assert not wrong


@each_case("world", [2, 4])
@each_case("recipe", ["deepspeed", "megatron", "nemo", "torchtitan", "verl"])
def test_a_recorded_program_keeps_its_newest_complete_checkpoint(
    recipe: str, world: int, tmp_path: Path
) -> None:
    """The newest checkpoint lacks the last rank's shard; the program's pointer names it nevertheless."""
    writer = WRITERS["deepspeed-2" if recipe == "deepspeed" else recipe]
    older, newer = (writer.plant(tmp_path, step, world) for step in (10, 20))
    formats = load_preset(recipe).formats
    found = find_program_checkpoints(tmp_path, "*", formats=formats)
    assert (found.newest and found.newest.path, found.skipped, found.notes()) == (newer, (), ())
    of_last = re.compile(rf"(?:.*rank_|__){world - 1}[_.].*")
    last = next(path for path in sorted(newer.rglob("*"), reverse=True) if of_last.fullmatch(path.name))
    last.unlink()
    found = find_program_checkpoints(tmp_path, "*", formats=formats)
    assert found.newest is not None
    assert (found.newest.step, found.newest.path) == (10, older)
    [note] = found.notes()
    assert note.startswith(f"{newer.name} is not complete: ") and note.endswith(f"{older.name} is the newest")
    assert "is missing" in note
    shutil.rmtree(older)
    found = find_program_checkpoints(tmp_path, "*", formats=formats)
    assert found.newest is None and found.notes()[0].endswith("there is no complete one")


@pytest.mark.parametrize(
    ("said", "complete"),
    [
        ("global_step7", True),
        ("global_step7\n", True),
        ("global_step9", True),
        ("global_step6", False),
        ("", False),
        ("other", False),
    ],
)
def test_deepspeeds_tracker_must_name_it_or_a_newer_one(said: str, complete: bool, tmp_path: Path) -> None:
    shapes.deepspeed(tmp_path, 7)
    (tmp_path / "latest").write_text(said)
    found = judged(tmp_path)
    assert found.is_complete == complete, found


def test_a_mark_of_an_unfinished_save_is_believed(tmp_path: Path) -> None:
    for name, mark in (
        ("nemo", "step=6-last-unfinished"),
        ("trainer", "checkpoint-7/checkpoint-is-incomplete.txt"),
    ):
        run = tmp_path / name
        run.mkdir()
        WRITERS[name].plant(run, 7, 2)
        (run / mark).touch()
        found = judged(run)
        assert not found.is_complete and "did not finish" in found.why


def test_shards_of_micro_groups_are_owed_once_for_each_group(tmp_path: Path) -> None:
    """With MiCS only the first of several groups writes, and dp_world_size counts all of them."""
    folder = shapes.deepspeed(tmp_path, 7, world=2, stage=3)
    zero = {"stage": 3, "mics_shard_size": 2}
    state = {"dp_world_size": 8, "mp_world_size": 1, "ds_config": {"zero_optimization": zero}}
    for rank in range(2):
        shapes.archive(folder / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt", 100, state)
    found = judged(tmp_path)
    assert found.is_complete, found.why


def test_other_layouts_of_megatron_core_are_complete(tmp_path: Path) -> None:
    """The newest version has the common state in the shards, and torch_dcp has no metadata.json."""
    new, plain = tmp_path / "new", tmp_path / "plain"
    for run in (new, plain):
        run.mkdir()
        _megatron(run, 7, 2)
        (run / "iter_0000007" / "common.pt").unlink()
    (new / "iter_0000007" / "metadata.json").write_text('{"sharded_backend": "torch_dist"}')
    (plain / "iter_0000007" / "metadata.json").unlink()
    for run in (new, plain):
        found = judged(run)
        assert found.is_complete, found.why


_ORDER_OF_THE_TRAINER = (
    "config.json",
    "model*.safetensors*",
    "tokenizer.json",
    "training_args.bin",
    "optimizer.pt",
    "scheduler.pt",
    "rng_state*.pth",
    "trainer_state.json",
)
_ORDER_OF_ACCELERATE = (
    "adapter_config.json",
    "*model*.safetensors",
    "optimizer.bin",
    "scheduler.bin",
    "random_states_*.pkl",
)


@each_case("older", [False, True])
@each_case(
    ("plant", "order"),
    [
        (_trainer, _ORDER_OF_THE_TRAINER),
        (_trainer_sharded, _ORDER_OF_THE_TRAINER),
        (_accelerate, _ORDER_OF_ACCELERATE),
        (
            lambda run, step, world: shapes.accelerate(run / f"checkpoint-{step}", world=world, adapter=True),
            _ORDER_OF_ACCELERATE,
        ),
    ],
)
@each_case("world", [1, 3])
def test_a_save_that_was_killed_after_any_of_its_files_is_partial(
    plant: Callable[[Path, int, int], Path], order: tuple[str, ...], world: int, older: bool, tmp_path: Path
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


@pytest.mark.parametrize("damage", shapes.DAMAGES)
@pytest.mark.parametrize("world", [1, 3])
def test_accelerate_owes_weights_and_the_random_states_of_all_but_the_last_process(
    world: int, damage: str, tmp_path: Path
) -> None:
    """accelerate saves optimizer and schedule only if it prepared them. Nothing shows the number of ranks."""
    folder = _accelerate(tmp_path, 7, world)
    assert judged(tmp_path).is_complete
    free = {"optimizer.bin", "scheduler.bin"} if damage == "removed" else set()
    if damage == "removed" and world > 1:
        free.add(f"random_states_{world - 1}.pkl")
    for path in sorted(folder.iterdir()):
        before = path.read_bytes()
        shapes.DAMAGES[damage](path)
        assert judged(tmp_path).is_complete is (path.name in free), path.name
        path.write_bytes(before)


@pytest.mark.parametrize("plant", [_trainer, _accelerate, _trainer_fsdp, _trainer_deepspeed])
def test_a_staging_folder_is_partial_whatever_is_in_it(
    plant: Callable[[Path, int, int], Path], tmp_path: Path
) -> None:
    """Until 2024 the Trainer wrote everything into a staging folder and renamed it."""
    plant(tmp_path, 8, 2).rename(tmp_path / "tmp-checkpoint-8")
    for found in find_checkpoints(list_checkpoint_folder(tmp_path)):
        assert not found.is_complete and "tmp-checkpoint-8" in f"{found.path} {found.why}"
    (tmp_path / "tmp-checkpoint-8").rename(tmp_path / "checkpoint-8")
    assert judged(tmp_path).is_complete


def test_weights_owe_a_state_where_the_name_is_that_of_a_checkpoint_of_the_trainer(tmp_path: Path) -> None:
    for name in ("step-7", "final", "checkpoint-7-merged", "checkpoint-7"):
        shapes.safetensors(tmp_path / name / "run" / name)
        found = judged(tmp_path / name)
        assert found.is_complete is (name != "checkpoint-7")
    assert found.why == "trainer_state.json, which is written last, is missing"


def test_no_code_that_a_pickle_names_runs(tmp_path: Path) -> None:
    class Harmful:
        def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
            return Path.touch, (tmp_path / "harm",)

    content = {"args": argparse.Namespace(tensor_model_parallel_size=2), "harm": Harmful()}
    folder = tmp_path / "iter_0000007"
    shapes.archive(folder / "mp_rank_00" / "model_optim_rng.pt", 10, content)
    (folder / ".metadata").write_bytes(pickle.dumps({"storage_data": Harmful()}))
    assert counts_in(folder / "mp_rank_00" / "model_optim_rng.pt") == {"tensor_model_parallel_size": 2}
    list_checkpoint_folder(tmp_path)
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    "content", [None, 7, [], {"ds_config": "file.json"}, {"dp_world_size": -1}, {"args": 3}]
)
def test_a_file_without_counts_has_none(content: object, tmp_path: Path) -> None:
    shapes.archive(tmp_path / "mp_rank_00_model_states.pt", 10, content)
    assert counts_in(tmp_path / "mp_rank_00_model_states.pt") == {}


def _real_tensors() -> Iterator[tuple[str, object]]:
    yield "plain", {"w": torch.zeros(3), "dp_world_size": 4}
    yield "module", {"module": torch.nn.Linear(2, 2).state_dict(), "dp_world_size": 4}
    yield (
        "optimizer",
        {"o": torch.optim.AdamW(torch.nn.Linear(2, 2).parameters()).state_dict(), "dp_world_size": 4},
    )
    yield "random", {"rng": [numpy.random.get_state(), torch.get_rng_state()], "dp_world_size": 4}
    yield "ordered", collections.OrderedDict(w=torch.nn.Parameter(torch.zeros(3)), dp_world_size=4)


def test_counts_are_read_from_what_torch_saves(tmp_path: Path) -> None:
    for name, content in _real_tensors():
        path = tmp_path / f"{name}_model_states.pt"
        torch.save(content, path)
        assert counts_in(path) == {"dp_world_size": 4}, name
