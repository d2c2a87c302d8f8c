"""Checkpoints: their state and digests, torn and left over ones, and the reader of their index."""

import io
import json
import math
import os
import pathlib
import pickle
import random
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.cases import each_case
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING, Metadata, TensorProperties

from trainyard.config.schema import ArchitectureConfig, Config, TrainingConfig
from trainyard.errors import CheckpointError, IncompatibleCheckpointError
from trainyard.run.atomic_files import sha256_of_file
from trainyard.run.checkpoint_retention import complete_steps, remove_leftovers, remove_old_checkpoints
from trainyard.run.directory import RunDirectory
from trainyard.training.checkpoint.checkpoint import PendingSave, load_checkpoint, newest_good_checkpoint
from trainyard.training.checkpoint.resume import check_fit
from trainyard.training.checkpoint.shards import share_out
from trainyard.training.checkpoint.stored_index import IndexUnpickler
from trainyard.training.checkpoint.training_state import (
    LossRecord,
    TrainingState,
    digest_tensors,
    generator_states,
    restore_generators,
)
from trainyard.training.checkpoint.writer_process import Engine
from trainyard.training.model.model import build_model
from trainyard.training.model.optimizer import build_optimizer
from trainyard.training.runtime.hardware import seed_everything
from trainyard.training.runtime.world import ALONE

CONFIG = Config.model_validate({"model": {"name": "m"}, "training": {"max_steps": 9}})
SHAPE = ArchitectureConfig(hidden_size=16, intermediate_size=16, num_layers=1, num_attention_heads=2)


def state_after(steps: int) -> TrainingState:
    model = build_model(SHAPE, seed=3)
    state = TrainingState(model, build_optimizer(model, TrainingConfig(max_steps=9, learning_rate=0.01)))
    for _ in range(steps):
        model(torch.arange(8)[None]).square().mean().backward()
        state.optimizer.step()
        state.optimizer.zero_grad()
    state.step = steps
    return state


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    result = RunDirectory(tmp_path / "run")
    result.create()
    return result


def save(directory: RunDirectory, step: int) -> Path:
    return save_state(directory, state_after(step), fits={"seed": 1})


def save_state(directory: RunDirectory, state: TrainingState, *, fits: dict[str, Any]) -> Path:
    context: Any = SimpleNamespace(
        directory=directory, run_id="r", fits=fits, state=state, world=ALONE, config=CONFIG
    )
    saved = PendingSave(context, share_out(state.tensors(), ALONE), Engine()).advance(wait=True)
    assert saved is not None
    return saved.path


def newest_and_rejected(directory: RunDirectory) -> tuple[Path | None, dict[int, str]]:
    reasons: dict[int, str] = {}
    return newest_good_checkpoint(directory, sha256_of_file, reasons.__setitem__), reasons


def test_a_loaded_state_has_the_digests_of_the_saved_one(directory: RunDirectory) -> None:
    saved = state_after(3)
    saved.seconds, saved.pending_row = 12.5, {"step": 3, "loss": 1.25}
    path = save_state(directory, saved, fits={})
    loaded = state_after(0)
    assert loaded.digests() != saved.digests()
    load_checkpoint(path, loaded)
    assert loaded.digests() == saved.digests()
    assert (loaded.step, loaded.seconds, loaded.pending_row) == (3, 12.5, {"step": 3, "loss": 1.25})


# Each damage, and each file of a checkpoint.
TORN = [
    (".metadata", "remove"),
    ("__0_0.distcp", "flip"),
    ("__0_0.distcp", "grow"),
    ("trainer_state.json", "truncate"),
    ("manifest.json", "remove"),
    ("manifest.json", "truncate"),
]


def test_a_torn_checkpoint_is_passed_over_for_the_next_older_one(directory: RunDirectory) -> None:
    older, newer = save(directory, 1), save(directory, 2)
    assert {path.name for path in newer.iterdir()} == {name for name, _ in TORN}, "no other files"
    for name, damage in TORN:
        victim, content = newer / name, (newer / name).read_bytes()
        damaged = bytearray(content)
        damaged[len(content) // 2] ^= 1
        others = {"truncate": content[: len(content) // 2], "grow": content + b"x"}
        victim.unlink() if damage == "remove" else victim.write_bytes(others.get(damage, damaged))
        found, reasons = newest_and_rejected(directory)
        assert (found, list(reasons)) == (older, [2]), name
        assert name in reasons[2]
        victim.write_bytes(content)
    assert newest_and_rejected(directory) == (newer, {})


def test_without_any_good_checkpoint_there_is_none_and_saving_again_replaces_a_broken_one(
    directory: RunDirectory,
) -> None:
    (save(directory, 1) / "manifest.json").unlink()
    found, reasons = newest_and_rejected(directory)
    assert found is None
    assert "never completed" in reasons[1]
    path = save(directory, 1)
    assert newest_and_rejected(directory) == (path, {})


def test_only_the_newest_are_kept_and_later_broken_ones_do_not_count(directory: RunDirectory) -> None:
    for step in (1, 2, 3, 4, 9):
        save(directory, step)
    assert remove_old_checkpoints(directory, 2, newest=4) == [1, 2]
    assert complete_steps(directory) == [3, 4, 9]


def test_leftovers_of_a_killed_save_are_cleared(directory: RunDirectory) -> None:
    save(directory, 1)
    leftover = directory.checkpoints / ".step-00000002.tmp"
    leftover.mkdir()
    (leftover / "half").write_text("x")
    assert directory.checkpoint_steps() == [1]
    remove_leftovers(directory)
    assert not leftover.exists()
    assert complete_steps(directory) == [1]


@contextmanager
def files_limited_to(size: int) -> Iterator[None]:
    """Let each write that would grow a file past `size` bytes fail, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


# At some sizes each tensor fits, and only the end of the archive that torch writes around it does not.
@pytest.mark.parametrize("size", [64, 1000, 4096])
def test_a_save_without_room_leaves_the_last_checkpoint_complete(directory: RunDirectory, size: int) -> None:
    older = save(directory, 1)
    with files_limited_to(size), pytest.raises(CheckpointError) as failure:
        save(directory, 2)
    message = str(failure.value)
    assert "Step 2 was not saved" in message
    assert "step 1 is complete" in message
    assert "--resume auto" in message
    assert sorted(p.name for p in directory.checkpoints.iterdir()) == ["step-00000001"]
    assert newest_and_rejected(directory) == (older, {})


def test_every_difference_is_named_when_a_checkpoint_does_not_fit(directory: RunDirectory) -> None:
    path = save_state(directory, state_after(1), fits={"a": 1, "b": 2, "c": 3})
    check_fit(path, {"a": 1, "b": 2, "c": 3})
    with pytest.raises(IncompatibleCheckpointError) as failure:
        check_fit(path, {"a": 1, "b": 5, "d": 4})
    assert "b: the checkpoint has 2, this run has 5" in str(failure.value)
    assert "c: the checkpoint has 3, this run has None" in str(failure.value)
    assert "d: the checkpoint has None, this run has 4" in str(failure.value)
    assert " a: " not in str(failure.value)
    assert "To resume, set these values back. Or start a new run" in str(failure.value)


def draws() -> list[float]:
    by_numpy = [float(np.random.random()), float(np.random.normal())]
    return [random.random(), random.gauss(), *by_numpy, float(torch.rand(()))]


def test_generator_states_survive_json() -> None:
    seed_everything(6)
    random.gauss()
    states = json.loads(json.dumps(generator_states()))
    first = draws()
    restore_generators(states)
    assert draws() == first


def test_the_seed_decides_every_generator() -> None:
    seed_everything(9)
    first = draws()
    seed_everything(10)
    assert all(a != b for a, b in zip(first, draws(), strict=True))
    seed_everything(9)
    assert draws() == first


def test_the_digest_sees_name_type_shape_and_every_bit() -> None:
    base = {"a": torch.arange(6, dtype=torch.float32), "b": torch.ones(2)}
    assert digest_tensors(base) == digest_tensors(dict(reversed(base.items())))
    nudged = base["a"].clone()
    nudged.view(torch.int32)[3] ^= 1
    for other in (
        {"a": nudged, "b": base["b"]},
        {"a": base["a"].view(2, 3), "b": base["b"]},
        {"a": base["a"].double(), "b": base["b"]},
        {"a": base["a"], "c": base["b"]},
        {"a": base["a"]},
    ):
        assert digest_tensors(other) != digest_tensors(base)


def test_the_digest_takes_any_layout_and_type() -> None:
    matrix = torch.arange(6, dtype=torch.bfloat16).view(2, 3)
    assert digest_tensors({"m": matrix.T}) == digest_tensors({"m": matrix.T.contiguous()})
    assert digest_tensors({"scalar": torch.tensor(1.0)}) != digest_tensors({"scalar": torch.tensor(2.0)})
    assert digest_tensors({"empty": torch.empty(0, 3)}) != digest_tensors({"empty": torch.empty(0, 4)})
    one, other = {"m": torch.tensor(1.0)}, {"m": torch.tensor(2.0)}
    taking_part = digest_tensors(one, hashed=False)
    assert taking_part == digest_tensors(other, hashed=False) != digest_tensors(one), "it hashes nothing"


STEPS = 600
COURSES: dict[str, Callable[[int], float]] = {
    "falling": lambda step: 5.5 * math.exp(-step / 200) + 1,
    "flat": lambda _step: 2.0,
    "rising": lambda step: 2.0 + 4.0 * step / STEPS,
    "falling, then rising": lambda step: 1.0 + abs(step - 250) / 100,
    "too high from the second step": lambda step: 5.6 if step == 0 else 19.0,
    "not positive": lambda _step: -1.0,
}


@each_case("noise", [0.0, 0.02, 0.1])
@each_case("spike", [None, 10, 100, 599])
@each_case("course", COURSES)
def test_only_the_start_of_a_spike_is_one(course: str, spike: int | None, noise: float) -> None:
    drawn = random.Random(7)
    record, found = LossRecord(), []
    for step in range(STEPS):
        loss = COURSES[course](step) * math.exp(drawn.gauss(0, noise)) * (20 if step == spike else 1)
        if step == 300:
            record = LossRecord(**asdict(record))  # as in a checkpoint
        if record.add(loss):
            found.append(step)
    is_seen = spike is not None and spike >= 100 and course != "not positive"
    assert found == ([spike] if is_seen else [])


MEMBER = _MEM_FORMAT_ENCODING.TORCH_CONTIGUOUS_FORMAT


class Calls:
    """An object that is pickled as the call of a function."""

    def __init__(self, function: Callable[..., Any], *arguments: object) -> None:
        self.called = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        return self.called


def read(content: bytes) -> Any:
    return IndexUnpickler(io.BytesIO(content)).load()


def test_what_every_supported_python_writes_is_read() -> None:
    assert read(pickle.dumps(Calls(getattr, _MEM_FORMAT_ENCODING, MEMBER.name))) is MEMBER, "by 3.11.2"
    properties = TensorProperties(dtype=torch.bfloat16)
    assert read(pickle.dumps(properties)) == properties
    for module in ("pathlib", "pathlib._local"):
        content = f"c{module}\nPosixPath\n(S'a'\nS'b'\ntR.".encode()
        assert read(content) == pathlib.PurePosixPath("a/b")


@pytest.mark.parametrize(
    "planted",
    [
        Calls(getattr, Metadata, "__init__"),
        Calls(getattr, _MEM_FORMAT_ENCODING, "__class__"),
        Calls(getattr, _MEM_FORMAT_ENCODING, "NONE_OF_THEM"),
        Calls(getattr, "text", "format"),
        Calls(os.getcwd),
        Calls(eval, "1"),
    ],
)
def test_classes_that_no_index_holds_are_refused(planted: Calls) -> None:
    with pytest.raises(pickle.UnpicklingError):
        read(pickle.dumps(planted))
