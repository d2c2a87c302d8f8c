"""Small checkpoints of every known format, as their writers leave them, planted in a folder."""

import argparse
import hashlib
import json
import math
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

from trainyard.run.checkpoint_manifest import CheckpointManifest, describe_files, write_manifest

TRACKER = "latest_checkpointed_iteration.txt"


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGES: dict[str, Callable[[Path], None]] = {"removed": Path.unlink, "emptied": _empty, "halved": _halve}


def plant_all(root: Path, *, big: int = 300_000) -> None:
    """Runs of five formats: an older complete checkpoint, a newer complete one, and an unfinished one."""
    for step in (100, 200):
        ours(root / "ours", step, big)
        verl(root / "verl", step, big)
        megatron(root / "megatron", step, big)
        dcp(root / "titan" / f"step-{step}", big)
        trainer(root / "hf" / f"checkpoint-{step}", big, shards=2)
    ours(root / "ours", 300, big, done=False)
    verl(root / "verl", 300, big, done=False)
    megatron(root / "megatron", 300, big, done=False)
    dcp(root / "titan" / "step-300", big, done=False)
    safetensors(root / "hf" / "checkpoint-300", big, done=False)


def ours(run: Path, step: int, big: int = 1000, *, done: bool = True) -> Path:
    folder = run / "checkpoints" / f"step-{step:08d}"
    folder.mkdir(parents=True)
    (folder / "model.bin.part").write_bytes(os.urandom(big))
    (folder / "state.json").write_text(json.dumps({"step": step}))
    if done:
        write_manifest(folder, CheckpointManifest(step, "run-a", 1.0, describe_files(folder)))
    return folder


def archive(path: Path, big: int, content: object = None) -> None:
    """A file as torch.save writes it: a zip archive without compression, the structure before the tensors."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", pickle.dumps(content, protocol=2))
        file.writestr("archive/data/0", os.urandom(big))


def verl(run: Path, step: int, big: int = 1000, *, done: bool = True, world: int = 2) -> Path:
    folder = run / f"global_step_{step}"
    for part in ("model", "optim", "extra_state"):
        for rank in range(world):
            archive(folder / "actor" / f"{part}_world_size_{world}_rank_{rank}.pt", big // 4)
    (folder / "actor" / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": world}))
    archive(folder / "data.pt", 100)
    if done:
        (run / TRACKER).write_text(str(step))
    return folder


def megatron(run: Path, step: int, big: int = 1000, *, done: bool = True) -> Path:
    folder = run / f"iter_{step:07d}"
    for tensor in range(2):
        archive(folder / f"mp_rank_{tensor:02d}" / "model_optim_rng.pt", big // 2)
    if done:
        (run / TRACKER).write_text(str(step))
    return folder


def megatron_ranks(run: Path, step: int, big: int = 1000, *, tensor: int = 2, pipeline: int = 1) -> Path:
    """Megatron-LM's older format, with the arguments that its files hold."""
    folder = run / f"iter_{step:07d}"
    args: dict[str, object] = {"tensor_model_parallel_size": tensor, "pipeline_model_parallel_size": pipeline}
    args |= {"expert_model_parallel_size": 1, "use_distributed_optimizer": True, "no_save_optim": None}
    for one in range(tensor):
        for other in range(pipeline):
            name = f"mp_rank_{one:02d}" if pipeline == 1 else f"mp_rank_{one:02d}_{other:03d}"
            content = {"args": argparse.Namespace(**args), "iteration": step}
            archive(folder / name / "model_optim_rng.pt", big, content)
            archive(folder / name / "distrib_optim.pt", big)
    (run / TRACKER).write_text(str(step))
    return folder


def torch_dist(folder: Path, big: int = 1000, *, world: int = 2) -> Path:
    """A folder as Megatron Core's distributed checkpointing writes it."""
    dcp(folder, big, world=world)
    archive(folder / "common.pt", 100)
    backends = {"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch"}
    (folder / "metadata.json").write_text(json.dumps(backends))
    return folder


def nemo(run: Path, step: int, big: int = 1000, *, world: int = 2) -> Path:
    """NeMo 2 counts from 0 in names."""
    folder = run / f"step={step - 1}-last"
    torch_dist(folder / "weights", big, world=world)
    (folder / "context").mkdir()
    (folder / "context" / "io.json").write_text("{}")
    return folder


def deepspeed(run: Path, step: int, big: int = 1000, *, world: int = 2, stage: int = 2) -> Path:
    folder = run / f"global_step{step}"
    state: dict[str, object] = {"dp_world_size": world, "mp_world_size": 1, "global_steps": step}
    state["ds_config"] = {"zero_optimization": {"stage": stage}}
    for rank in range(world if stage == 3 else 1):
        prefix = f"zero_pp_rank_{rank}_" if stage == 3 else ""
        archive(folder / f"{prefix}mp_rank_00_model_states.pt", big, state)
    for rank in range(world if stage else 0):
        archive(folder / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt", big)
    (run / "zero_to_fp32.py").write_text("# as DeepSpeed leaves it")
    (run / "latest").write_text(f"global_step{step}")
    return folder


def trainer(folder: Path, big: int = 1000, *, world: int = 1, shards: int = 0) -> Path:
    """A checkpoint-N of transformers' Trainer."""
    if shards:
        safetensors(folder, big, world=shards)
    else:
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(safetensors_bytes(big))
        (folder / "config.json").write_text("{}")
    for name in ("training_args.bin", "optimizer.pt", "scheduler.pt"):
        archive(folder / name, big)
    for rank in range(world):
        archive(folder / (f"rng_state_{rank}.pth" if world > 1 else "rng_state.pth"), 100)
    (folder / "tokenizer.json").write_text("{}")
    state = {"global_step": int(folder.name.split("-")[1]), "log_history": [{"loss": math.nan}]}
    (folder / "trainer_state.json").write_text(json.dumps(state))
    return folder


def accelerate(folder: Path, big: int = 1000, *, world: int = 1, adapter: bool = False) -> Path:
    """A folder of `Accelerator.save_state`, as custom loops and diffusers name it: checkpoint-N."""
    folder.mkdir(parents=True)
    name = "adapter_model.safetensors" if adapter else "model.safetensors"
    (folder / name).write_bytes(safetensors_bytes(big))
    if adapter:
        (folder / "adapter_config.json").write_text("{}")
    for name in ("optimizer.bin", "scheduler.bin"):
        archive(folder / name, big)
    for rank in range(world):
        archive(folder / f"random_states_{rank}.pkl", 100)
    return folder


def accelerate_diffusers(folder: Path, big: int = 1000) -> Path:
    """A checkpoint of an example of diffusers: each model in a folder of its own, one random state."""
    accelerate(folder, big)
    (folder / "model.safetensors").unlink()
    (folder / "unet").mkdir()
    (folder / "unet" / "diffusion_pytorch_model.safetensors").write_bytes(safetensors_bytes(big))
    (folder / "unet" / "config.json").write_text("{}")
    return folder


def lightning_file(run: Path, step: int, big: int = 1000, *, weights_only: bool = False) -> Path:
    path = run / f"epoch=0-step={step}.ckpt"
    state = {"epoch": 0, "global_step": step, "pytorch-lightning_version": "2.6.6", "state_dict": {}}
    archive(path, big, state if weights_only else {**state, "optimizer_states": [{}], "lr_schedulers": []})
    return path


def lightning_fsdp(run: Path, step: int, big: int = 1000, *, world: int = 2) -> Path:
    folder = dcp(run / f"epoch=0-step={step}.ckpt", big, world=world, optimizer=True)
    archive(folder / "meta.pt", 100, {"global_step": step})
    return folder


def lightning_deepspeed(run: Path, step: int, big: int = 1000, *, world: int = 2) -> Path:
    folder = run / f"epoch=0-step={step}.ckpt"
    deepspeed(folder, step, big, world=world).rename(folder / "checkpoint")
    (folder / "latest").write_text("checkpoint")
    return folder


def nanogpt(run: Path, step: int, big: int = 1000) -> Path:
    state = {"model": {}, "optimizer": {}, "model_args": {}, "iter_num": step, "config": {}}
    archive(run / "ckpt.pt", big, state)
    return run / "ckpt.pt"


def nanochat(run: Path, step: int, big: int = 1000, *, world: int = 2) -> Path:
    archive(run / f"model_{step:06d}.pt", big)
    (run / f"meta_{step:06d}.json").write_text(json.dumps({"step": step, "val_bpb": 1.0}))
    for rank in range(world):
        archive(run / f"optim_{step:06d}_rank{rank}.pt", big)
    return run / f"model_{step:06d}.pt"


def olmo_core(run: Path, step: int, big: int = 1000, *, world: int = 2) -> Path:
    folder = run / f"step{step}"
    for rank in range(world):
        archive(folder / "train" / f"rank{rank}.pt", 100)
    dcp(folder / "model_and_optim", big, world=world, optimizer=True)
    (folder / ".metadata.json").write_text('{"version": "v1"}')
    return folder


def dcp(folder: Path, big: int = 1000, *, done: bool = True, world: int = 2, optimizer: bool = False) -> Path:
    folder.mkdir(parents=True)
    names = [f"__{rank}_0.distcp" for rank in range(world)]
    for name in names:
        (folder / name).write_bytes(os.urandom(big // 2))
    if done:
        storage = {
            f"weight.{n}": {"relative_path": name, "offset": 0, "length": big // 2}
            for n, name in enumerate(names)
        }
        if optimizer:
            storage["optimizer.state.weight.exp_avg"] = storage["weight.0"]
        (folder / ".metadata").write_bytes(pickle.dumps({"storage_data": storage}))
    return folder


def safetensors_bytes(count: int) -> bytes:
    header = json.dumps({"w": {"dtype": "U8", "shape": [count], "data_offsets": [0, count]}}).encode()
    return struct.pack("<Q", len(header)) + header + os.urandom(count)


def safetensors(folder: Path, big: int = 1000, *, done: bool = True, world: int = 2) -> Path:
    folder.mkdir(parents=True)
    names = [f"model-{n:05d}-of-{world:05d}.safetensors" for n in range(1, world + 1)]
    for name in names if done else names[:1]:
        (folder / name).write_bytes(safetensors_bytes(big // 2))
    index = {"metadata": {}, "weight_map": {f"layer.{n}": name for n, name in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text("{}")
    return folder


def digests(folder: Path) -> dict[str, str]:
    """Path below the folder -> SHA-256."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
