"""Completeness of checkpoints by the libraries themselves: intact, and with every damage to every file."""

import warnings
from pathlib import Path

import pytest
import torch
from tests.integration import checkpoint_shapes as shapes
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.trainer_callback import TrainerState

from trainyard.programs.checkpoints.checkpoint_formats import find_checkpoints
from trainyard.programs.checkpoints.volume_listing import list_checkpoint_folder


def is_complete(run: Path) -> bool:
    return any(each.is_complete for each in find_checkpoints(list_checkpoint_folder(run)))


def damaged_files_that_stay_complete(run: Path, damage: str) -> set[str]:
    """The files in which this damage is not noticed."""
    assert is_complete(run)
    unnoticed = set()
    for path in sorted(path for path in run.rglob("*") if path.is_file()):
        before = path.read_bytes()
        shapes.DAMAGES[damage](path)
        if is_complete(run):
            unnoticed.add(path.name)
        path.write_bytes(before)
    return unnoticed


@pytest.mark.parametrize("damage", shapes.DAMAGES)
def test_what_torch_saves_is_complete_and_no_part_of_it_may_be_damaged(damage: str, tmp_path: Path) -> None:
    """Torch's own writer, with a file for each thread as several ranks write them."""
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.zeros(2, 64)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 7}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no process group is needed here
        writer = FileSystemWriter(tmp_path / "step-7", single_file_per_rank=False)
        save(state, storage_writer=writer, no_dist=True)
    assert len(list((tmp_path / "step-7").glob("*.distcp"))) > 2
    assert damaged_files_that_stay_complete(tmp_path, damage) == set()


@pytest.mark.parametrize("size", ["1GB", "20KB"])
@pytest.mark.parametrize("damage", shapes.DAMAGES)
def test_what_transformers_saves_is_complete_and_no_owed_part_may_be_damaged(
    damage: str, size: str, tmp_path: Path
) -> None:
    """The files of a checkpoint of the Trainer, each made by the library that the Trainer calls for it."""
    folder = tmp_path / "checkpoint-7"
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, vocab_size=128
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder, max_shard_size=size)
    optimizer = torch.optim.AdamW(model.parameters())
    torch.save({"output_dir": "x"}, folder / "training_args.bin")
    torch.save(optimizer.state_dict(), folder / "optimizer.pt")
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
    torch.save(schedule.state_dict(), folder / "scheduler.pt")
    torch.save({"cpu": torch.get_rng_state()}, folder / "rng_state.pth")
    TrainerState(global_step=7, log_history=[{"loss": 1.0}]).save_to_json(str(folder / "trainer_state.json"))
    assert (len(list(folder.glob("*.safetensors"))) > 1) is (size == "20KB")
    free = set() if damage == "emptied" else {"generation_config.json"}
    if damage == "removed":
        free |= {"config.json", "training_args.bin"}
    assert damaged_files_that_stay_complete(tmp_path, damage) == free
