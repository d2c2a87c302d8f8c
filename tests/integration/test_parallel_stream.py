"""A stream of documents that are kept apart, on two processes and resumed on one. CPU, gloo."""

import json
import os
import sys
from pathlib import Path

import pytest
from tests import warm_start

REPOSITORY_ROOT = Path(__file__).resolve().parents[2]
STEPS = 10
CONFIG = """
extends: {house}/configs/smoke.yaml
model:
  device: cpu
  architecture: {{hidden_size: 32, intermediate_size: 48, num_layers: 2, vocab_size: 257}}
training: {{batch_size: 2, max_steps: 10, warmup_steps: 0, lr_scheduler: constant, epochs: null}}
compute: {{threads: 1, strategy: fsdp}}
data:
  sequence_length: 32
  packing: separate
  train_path: null
  hugging_face: {{dataset: {folder}/texts, validation_split: null, shuffled_sequences: 12}}
monitoring: {{tensorboard: false, log_steps: 1}}
"""


def train(folder: Path, name: str, *settings: str, processes: int = 1) -> list[float]:
    """Run the shipped trainer, and return its losses."""
    words = [word for setting in settings for word in ("--set", setting)]
    command = [
        sys.executable,
        f"{REPOSITORY_ROOT}/scripts/train.py",
        "--config",
        f"{folder}/config.yaml",
        *words,
    ]
    command += ["--run-dir", f"{folder}/{name}"]
    if processes > 1:
        command += ["--nproc-per-node", str(processes)]
    environment = {**os.environ, "CI": "true", "HF_HUB_OFFLINE": "1", "HF_HOME": f"{folder}/home"}
    result = warm_start.run(command, cwd=REPOSITORY_ROOT, env=environment, timeout=240)
    assert result.returncode == 0, result.stderr
    lines = (folder / name / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


@pytest.mark.slow
def test_a_stream_of_two_processes_resumes_on_one_with_the_numbers_of_two(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    rows = [{"text": f"text {number} of " + "some words " * (number % 11)} for number in range(700)]
    (tmp_path / "texts" / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "config.yaml").write_text(CONFIG.format(house=REPOSITORY_ROOT, folder=tmp_path))
    twice = "training.gradient_accumulation_steps=2"
    complete = train(tmp_path, "complete", processes=2)
    train(tmp_path, "cut", "training.max_steps=5", processes=2)
    assert train(tmp_path, "cut", twice) == pytest.approx(complete, rel=2e-5)
    assert len(complete) == STEPS
