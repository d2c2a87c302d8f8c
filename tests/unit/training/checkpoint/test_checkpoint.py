import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainyard.config.schema import ArchitectureConfig, Config, TrainingConfig
from trainyard.errors import CheckpointError, IncompatibleCheckpointError
from trainyard.run.atomic_files import sha256_of_file
from trainyard.run.checkpoint_retention import complete_steps, remove_leftovers, remove_old_checkpoints
from trainyard.run.directory import RunDirectory
from trainyard.training.checkpoint.checkpoint import PendingSave, load_checkpoint, newest_good_checkpoint
from trainyard.training.checkpoint.resume import check_fit
from trainyard.training.checkpoint.shards import share_out
from trainyard.training.checkpoint.training_state import TrainingState
from trainyard.training.checkpoint.writer_process import Engine
from trainyard.training.model.model import build_model
from trainyard.training.model.optimizer import build_optimizer
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
def test_a_save_without_room_leaves_the_previous_checkpoint_complete(
    directory: RunDirectory, size: int
) -> None:
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
