"""Checkpoints that transformers, accelerate, torch and safetensors write, cut at random places."""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint.state_dict_saver import save

from trainyard.programs.checkpoints.found_checkpoint import CheckpointFormat as Format
from trainyard.programs.checkpoints.program_checkpoints import (
    ProgramCheckpoint,
    find_program_checkpoints,
    move_partial_aside,
)

pytestmark = pytest.mark.filterwarnings("ignore")

TRAINER = """
import sys, torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
torch.manual_seed(0)
sizes = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=32)
data = [{"input_ids": torch.arange(8) % 32, "labels": torch.arange(8) % 32}] * 32
def train(out, **changes):
    changes = {"max_steps": 4, "save_steps": 2, **changes}
    resume = changes.pop("resume", None)
    arguments = TrainingArguments(out, per_device_train_batch_size=2, use_cpu=True, report_to=[],
                                  disable_tqdm=True, **changes)
    trainer = Trainer(LlamaForCausalLM(LlamaConfig(**sizes)), arguments, train_dataset=data)
    trainer.train(resume_from_checkpoint=resume)
    return trainer
"""


def train(out: Path, **changes: Any) -> Any:
    names: dict[str, Any] = {}
    exec(compile(TRAINER, "trainer", "exec"), names)
    return names["train"](str(out), **changes)


def newest(run: Path, pattern: str, world: int | None = None) -> ProgramCheckpoint | None:
    return find_program_checkpoints(run, pattern, world_size=world, quiet_seconds=0).newest


def cuts_that_stay_complete(run: Path, pattern: str) -> set[str]:
    """The files whose missing end is not noticed; each file is cut at four places."""
    choice, unnoticed = random.Random(run.name), set()
    assert newest(run, pattern) is not None
    for path in sorted(path for path in run.rglob("*") if path.is_file()):
        content = path.read_bytes()
        end = len(content.rstrip()) if path.suffix == ".json" else len(content)
        for size in (1, choice.randrange(1, end), choice.randrange(1, end), end - 1):
            path.write_bytes(content[:size])
            if newest(run, pattern) is not None:
                unnoticed.add(path.name)
        path.write_bytes(content)
    return unnoticed


@pytest.mark.parametrize("changes", [{}, {"save_only_model": True}], ids=["all", "save_only_model"])
def test_the_trainer_resumes_from_what_is_called_resumable(changes: dict[str, Any], tmp_path: Path) -> None:
    train(tmp_path, **changes)
    found = find_program_checkpoints(tmp_path, "checkpoint-*", world_size=1)
    assert [(each.step, each.found.format) for each in found.complete] == [
        (step, Format.HUGGING_FACE) for step in (4, 2)
    ]
    resumable = found.newest_resumable
    assert (resumable is None) is bool(changes)
    if resumable is None:
        assert "save_only_model" in found.resume_notes()[0]
        return
    resumed = train(tmp_path / "other", max_steps=6, resume=str(resumable.path))
    assert resumed.state.global_step == 6
    assert newest(tmp_path, "checkpoint-*", world=2) is not None
    assert find_program_checkpoints(tmp_path, "checkpoint-*", world_size=2).newest_resumable is None


def test_no_part_of_what_the_trainer_saves_may_be_cut(tmp_path: Path) -> None:
    train(tmp_path, max_steps=1, save_steps=1)
    assert cuts_that_stay_complete(tmp_path, "checkpoint-*") == {"generation_config.json"}


def test_the_trainer_resumes_by_itself_once_partial_folders_are_moved_aside(tmp_path: Path) -> None:
    train(tmp_path)
    (tmp_path / "checkpoint-4" / "trainer_state.json").unlink()
    (tmp_path / "checkpoint-6").mkdir()
    with pytest.raises((ValueError, OSError)):
        train(tmp_path, resume=True, max_steps=6)
    assert len(move_partial_aside(find_program_checkpoints(tmp_path, "checkpoint-*"))) == 2
    assert train(tmp_path, resume=True, max_steps=6).state.global_step == 6
    found = find_program_checkpoints(tmp_path, "*", world_size=1)
    assert [each.step for each in found.complete] == [6, 4, 2]


@pytest.mark.parametrize("automatic", [True, False])
def test_what_accelerate_saves(automatic: bool, tmp_path: Path) -> None:
    from accelerate import Accelerator
    from accelerate.utils import ProjectConfiguration

    settings = ProjectConfiguration(str(tmp_path), automatic_checkpoint_naming=automatic)
    accelerator = Accelerator(cpu=True, project_config=settings)
    model = torch.nn.Linear(8, 8)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    accelerator.backward(model(torch.zeros(1, 8)).sum())
    optimizer.step()
    for step in (1, 2):
        accelerator.save_state(None if automatic else str(tmp_path / f"checkpoint-{step}"))
    pattern = "checkpoints/checkpoint_*" if automatic else "checkpoint-*"
    found = find_program_checkpoints(tmp_path, pattern, world_size=1, quiet_seconds=0)
    assert [each.step for each in found.complete] == ([None, None] if automatic else [2, 1])
    assert {(each.found.format, each.found.resumable) for each in found.complete} == {
        (Format.ACCELERATE, True)
    }
    folder = "checkpoints/checkpoint_1" if automatic else "checkpoint-2"
    assert found.newest is not None and found.newest.path == tmp_path / folder
    assert cuts_that_stay_complete(tmp_path / folder, str(tmp_path / folder)) == set()


def state() -> dict[str, Any]:
    model = torch.nn.Linear(32, 32)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.zeros(2, 32)).sum().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": 7}


def save_safetensors(path: Path) -> None:
    save_file({name: tensor.contiguous() for name, tensor in state()["model"].items()}, path)


WRITERS: dict[str, tuple[Callable[[Path], object], Format, bool | None]] = {
    "step-7": (lambda path: save(state(), checkpoint_id=path, no_dist=True), Format.DCP, True),
    "step-8": (
        lambda path: save({"model": state()["model"]}, checkpoint_id=path, no_dist=True),
        Format.DCP,
        False,
    ),
    "model_7.pt": (lambda path: torch.save(state()["model"], path), Format.TORCH_SAVE, None),
    "ckpt.pt": (lambda path: torch.save(state(), path), Format.NANOGPT, True),
    "model_7.safetensors": (save_safetensors, Format.SAFETENSORS, None),
}


@pytest.mark.parametrize("name", WRITERS)
def test_what_torch_and_safetensors_save(name: str, tmp_path: Path) -> None:
    write, form, resumable = WRITERS[name]
    write(tmp_path / name)
    one = newest(tmp_path, name)
    assert one is not None
    assert (one.found.format, one.found.resumable) == (form, resumable), one.found.resumable_why
    assert one.step == (8 if name == "step-8" else 7)
    assert cuts_that_stay_complete(tmp_path, name) == set()


def test_a_pickle_of_before_1_6_is_not_called_complete(tmp_path: Path) -> None:
    torch.save(state(), tmp_path / "model_7.pt", _use_new_zipfile_serialization=False)
    found = find_program_checkpoints(tmp_path, "*.pt", quiet_seconds=0)
    assert found.newest is None and "not a zip archive" in found.notes()[0]


def test_a_folder_that_torch_saves_again_is_partial_until_its_index_is_new(tmp_path: Path) -> None:
    save(state(), checkpoint_id=tmp_path / "step-7", no_dist=True)
    index = tmp_path / "step-7" / ".metadata"
    old = index.read_bytes(), index.stat().st_mtime_ns - 10**9
    save(state(), checkpoint_id=tmp_path / "step-7", no_dist=True)
    assert newest(tmp_path, "step-*") is not None
    index.write_bytes(old[0])
    os.utime(index, ns=(old[1], old[1]))
    assert newest(tmp_path, "step-*") is None
