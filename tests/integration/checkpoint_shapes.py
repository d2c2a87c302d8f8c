"""Checkpoints of five formats as their writers leave them, in small: planted on a volume or a folder."""

import hashlib
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path

from trainyard.run.checkpoint_manifest import (
    CheckpointManifest,
    describe_files,
    write_manifest,
)

TRACKER = "latest_checkpointed_iteration.txt"


def plant_all(root: Path, *, big: int = 300_000) -> None:
    """One run of each format: an older complete checkpoint, a newer one, and a newest that is not done."""
    for step in (100, 200):
        ours(root / "ours", step, big)
        verl(root / "verl", step, big)
        megatron(root / "megatron", step, big)
        dcp(root / "titan" / f"step-{step}", big)
        safetensors(root / "hf" / f"checkpoint-{step}", big)
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


def archive(path: Path, big: int) -> None:
    """A file as torch.save writes it: a zip archive without compression."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", os.urandom(big))


def verl(run: Path, step: int, big: int = 1000, *, done: bool = True, world: int = 2) -> Path:
    folder = run / f"global_step_{step}"
    for part in ("model", "optim", "extra_state"):
        for rank in range(world):
            archive(folder / "actor" / f"{part}_world_size_{world}_rank_{rank}.pt", big // 4)
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


def dcp(folder: Path, big: int = 1000, *, done: bool = True) -> Path:
    folder.mkdir(parents=True)
    names = [f"__{rank}_0.distcp" for rank in range(2)]
    for name in names:
        (folder / name).write_bytes(os.urandom(big // 2))
    if done:
        storage = {f"weight.{n}": {"relative_path": name, "offset": 0} for n, name in enumerate(names)}
        (folder / ".metadata").write_bytes(pickle.dumps({"storage_data": storage}))
    return folder


def safetensors_bytes(count: int) -> bytes:
    header = json.dumps({"w": {"dtype": "U8", "shape": [count], "data_offsets": [0, count]}}).encode()
    return struct.pack("<Q", len(header)) + header + os.urandom(count)


def safetensors(folder: Path, big: int = 1000, *, done: bool = True) -> Path:
    folder.mkdir(parents=True)
    names = [f"model-{n:05d}-of-00002.safetensors" for n in (1, 2)]
    for name in names if done else names[:1]:
        (folder / name).write_bytes(safetensors_bytes(big // 2))
    index = {"metadata": {}, "weight_map": {f"layer.{n}": name for n, name in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text("{}")
    return folder


def digests(folder: Path) -> dict[str, str]:
    """Path below the folder -> SHA-256, of what a person would compare."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
