"""Configurations over which the command lines of the presets are compared with the golden ones."""

import json
import random
from typing import Any

from tests.unit.jobs.recipe_orders import GIVEN, recipe_plan

from trainyard.errors import ConfigError

COMMON: dict[str, tuple[str, ...]] = {
    "training.lr_scheduler": ("cosine", "constant"),
    "training.warmup_steps": ("0", "1", "100"),
    "training.max_grad_norm": ("null", "1.0", "0.5"),
    "training.weight_decay": ("0.0", "0.1"),
    "training.adam_beta1": ("0.9", "0.85"),
    "training.min_learning_rate_ratio": ("0.1", "0.0", "1e-13"),
    "training.validation_steps": ("0", "50"),
    "training.seed": ("0", "1234"),
    "compute.activation_checkpointing": ("none", "selective", "full"),
    "compute.tensor_parallel": ("1", "2", "8"),
    "program.global_batch": ("null", "512"),
    "model.dtype": ("bfloat16", "float32"),
    "model.architecture.tie_word_embeddings": ("true", "false"),
    "model.architecture.rope_scaling.rope_type": ("default", "llama3"),
    "checkpointing.save_steps": ("500", "100"),
    "checkpointing.keep_last": ("1", "5"),
    "monitoring.tensorboard": ("true", "false"),
    "monitoring.wandb.enabled": ("true", "false"),
}
"""Key -> the values that are tried with every program."""
MORE: dict[str, dict[str, tuple[str, ...]]] = {
    "megatron": {
        "compute.pipeline_parallel": ("1", "4"),
        "compute.context_parallel": ("1", "2"),
        "data.train_path": ("null", "/shared/data/corpus_text_document", "'0.3 /d/a 0.7 /d/b'"),
        "data.validation_path": ("null", "/shared/held"),
        "data.validation_fraction": ("0.05", "0.001"),
        "program.settings": ("null", "eval-iters=3\nmanual-gc=true\nbf16=false"),
    },
    "nemo": {
        "compute.pipeline_parallel": ("1", "4"),
        "compute.context_parallel": ("1", "2"),
        "data.train_path": ("null", "/shared/data/corpus_text_document"),
        "data.validation_path": ("null", "/shared/held"),
    },
    "verl": {
        "grpo.kl_coefficient": ("0.0", "0.001"),
        "grpo.entropy_coefficient": ("0.0", "1e-4"),
        "grpo.temperature": ("1.0", "0.7"),
        "grpo.max_completion_tokens": ("512", "64"),
        "compute.strategy": ("single", "fsdp"),
        "compute.cpu_offload": ("true", "false"),
        "program.settings": ("null", "+a.b=c\nactor_rollout_ref.rollout.gpu_memory_utilization=0.6"),
    },
    "torchtitan": {
        "compute.pipeline_parallel": ("1", "2"),
        "compute.context_parallel": ("1", "2"),
        "compute.compile": ("true", "false"),
        "data.train_path": ("null", "/shared/data"),
        "model.path": ("null", "/shared/weights"),
        "program.settings": ("null", "debug.deterministic=true\ncheckpoint.enable=false"),
    },
    "deepspeed": {
        "compute.strategy": ("single", "ddp", "fsdp"),
        "program.settings": ("null", "zero_optimization.offload_optimizer.device=cpu\nx=true"),
    },
}


def cases(recipe: str, number: int, seed: int = 0) -> list[tuple[int, tuple[str, ...]]]:
    """Return `number` configurations of a program, each a number of nodes and some overrides."""
    chance, tried = random.Random(f"{recipe} {seed}"), COMMON | MORE[recipe]
    found = []
    for _ in range(number):
        changed = chance.sample(sorted(tried), k=chance.randint(0, 6))
        found.append(
            (chance.choice((1, 2, 16)), tuple(f"{key}={chance.choice(tried[key])}" for key in changed))
        )
    return found


def rendered(recipe: str, nodes: int, overrides: tuple[str, ...]) -> dict[str, Any]:
    """Return the files and settings of the pods, or the problems."""
    try:
        made = recipe_plan(recipe, *overrides, nodes=nodes)
    except ConfigError as error:
        return {"problems": str(error).split("\n")}
    files = {name: text for name, text in made.program.files.items() if name != "config.yaml"}
    found = {name: json.loads(text) for name, text in files.items() if name.endswith(".json")}
    return {**found, "python": made.program.python, "once": made.program.once}


ALL = tuple(GIVEN)
