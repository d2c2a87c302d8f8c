"""GRPO on a model so small that a step takes milliseconds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainyard.config.schema import Config
from trainyard.run.directory import RunDirectory
from trainyard.training.recipe import ready_data, trainer_of
from trainyard.training.run.run_context import Listener
from trainyard.training.run.run_request import Request
from trainyard.training.runtime.stop_signals import StopRequest

TINY: dict[str, dict[str, Any]] = {
    "model": {
        "name": "tiny",
        "device": "cpu",
        "architecture": {
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 64,
        },
    },
    "training": {
        "batch_size": 8,
        "gradient_accumulation_steps": 2,
        "learning_rate": 3e-3,
        "warmup_steps": 3,
        "max_steps": 10,
    },
    "compute": {"threads": 1},
    "data": {"sequence_length": 64},
    "grpo": {"completions_per_question": 4, "questions": 32, "warm_start_steps": 4},
    "kernel_optimization": {"rlvr_depth": 2},
    "checkpointing": {"save_steps": 4, "keep_last": 2},
    "monitoring": {"log_steps": 1, "tensorboard": False},
}


@pytest.fixture(scope="module")
def grpo_config() -> Callable[..., Config]:
    """Builds the tiny configuration with changes: `grpo_config(training={"max_steps": 3})`."""

    def build(**changes: dict[str, Any]) -> Config:
        sections = {name: {**values, **changes.get(name, {})} for name, values in TINY.items()}
        return Config.model_validate({"recipe": "grpo", **sections})

    return build


@pytest.fixture(scope="module")
def train_grpo() -> Callable[..., dict[str, Any]]:
    """Trains in this process: `train_grpo(config, tmp_path / "run", listener=…, stop=…)`."""

    def run(
        config: Config,
        path: Path,
        *,
        listener: Listener,
        stop: StopRequest | None = None,
        resume: str = "auto",
    ) -> dict[str, Any]:
        directory, origin = RunDirectory(path), {"version": "test"}
        request = Request(config, directory, ready_data(config), resume, f"id-of-{path.name}", origin)
        return trainer_of(config)(request, stop=stop or StopRequest(), listener=listener)

    return run
