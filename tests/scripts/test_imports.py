"""The heavy modules that scripts import, in real processes: nobody waits for one that is not needed."""

import os
import re
import subprocess
import sys
from pathlib import Path

from trainyard.gateways.local_machine import has_nvidia_driver

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {
    *("torch", "transformers", "trl", "datasets", "tokenizers", "pyarrow", "huggingface_hub", "accelerate"),
    *("boto3", "rich", "tensorboard", "wandb", "numpy", "safetensors"),
}
CONFIGURATION = {"numpy"}
SMALL = {
    "model.device": "cpu",
    "model.architecture.hidden_size": "16",
    "model.architecture.intermediate_size": "32",
    "model.architecture.num_layers": "1",
    "training.batch_size": "2",
    "training.max_steps": "1",
    "training.validation_steps": "null",
    "data.sequence_length": "16",
}


def imported(tmp_path: Path, command: str, *arguments: str | Path) -> set[str]:
    """The heavy modules that `trainyard COMMAND` imported."""
    line = [sys.executable, "-X", "importtime", "-m", "trainyard", *command.split(), *map(str, arguments)]
    hidden = ("GITHUB_", "SLACK_", "AWS_", "TRAINYARD_")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(hidden)}
    done = subprocess.run(line, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    names = set(re.findall(r"^import time:[\s\d]+\|[\s\d]+\| +(\S+)$", done.stderr, re.MULTILINE))
    assert "trainyard.command.handler" in names
    return names & HEAVY


def configuration(tmp_path: Path) -> list[str]:
    (tmp_path / "text").mkdir(exist_ok=True)
    (tmp_path / "text" / "a.txt").write_text("some words of text\n" * 200)
    data = {"data.train_path": tmp_path / "text", "data.prepared_directory": tmp_path / "prepared"}
    settings = [f"{key}={value}" for key, value in (SMALL | data).items()]
    return [
        "--config",
        str(ROOT / "configs" / "smoke.yaml"),
        *(word for each in settings for word in ("--set", each)),
    ]


def test_a_run_imports_only_what_it_needs(tmp_path: Path) -> None:
    """One process after the other, as `make train` starts them; only those that compute import torch."""
    config, run, store = configuration(tmp_path), tmp_path / "run", f"file://{tmp_path}/store"
    where: list[str | Path] = ["--run-dir", run, "--store", store, "--run-number", "auto"]
    lock: list[str | Path] = ["--lock", tmp_path / "lock.txt"]  # empty: no package is missing
    (tmp_path / "lock.txt").touch()
    of_a_driver = {"torch"} if has_nvidia_driver() else set()
    assert imported(tmp_path, "step environment", *config, *lock) <= CONFIGURATION | of_a_driver
    assert imported(tmp_path, "prepare", *config) == CONFIGURATION
    # TensorBoard imports boto3 by itself, with the first row.
    trained = imported(tmp_path, "train", *config, "--run-dir", run)
    assert trained == CONFIGURATION | {"torch", "tensorboard", "boto3"}
    assert imported(tmp_path, "store sync", *where, "--once") == set()
    assert imported(tmp_path, "store verify", *where[:4], "--run-number", "1") == set()
    # Proving reads the stored tensors.
    assert imported(tmp_path, "prove", *where) == CONFIGURATION | {"torch"}
    assert imported(tmp_path, "report", run, "--write") <= CONFIGURATION
    restored = imported(tmp_path, "store restore", *where[2:4], "--run-number", "1", "--to", "back")
    assert restored == set()
