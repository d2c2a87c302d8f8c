"""Workloads and configurations to plan for."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from trainyard.config.load import load_config
from trainyard.config.schema import ArchitectureConfig, Config
from trainyard.plan.workload import TrainingWorkload

CONFIGS = Path(__file__).resolve().parents[3] / "configs"
TINYLLAMA = ArchitectureConfig(
    vocab_size=32_000,
    hidden_size=2048,
    intermediate_size=5632,
    num_layers=22,
    num_attention_heads=32,
    num_key_value_heads=4,
)


def workload(**changes: Any) -> TrainingWorkload:
    """TinyLlama on a GPU, 4 × 2,048 tokens in compiled bfloat16, with changes: `workload(batch_size=1)`."""
    base = TrainingWorkload(TINYLLAMA, 4, 1, 2048, bfloat16=True, compiled=True, on_gpu=True)
    return replace(base, **changes)


def load(name: str, *overrides: str) -> Config:
    """A shipped configuration under overrides: `load("smoke", "training.batch_size=2")`."""
    return load_config(CONFIGS / f"{name}.yaml", overrides).config
