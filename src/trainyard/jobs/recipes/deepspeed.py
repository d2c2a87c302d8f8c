"""DeepSpeed: a script of the user's, started by torchrun with DeepSpeed's configuration, rendered here.

The script gets `--deepspeed_config FILE`, which `deepspeed.add_config_arguments` reads, and the variables
TRAINYARD_STEPS and TRAINYARD_CHECKPOINTS. DeepSpeed prints no losses of its own. So the script prints a JSON
object per logged step, `{"step": 10, "loss": 2.31}`, and saves by `engine.save_checkpoint(folder,
tag="global_stepN")`.
"""

import json
from collections.abc import Iterator
from typing import Any

from trainyard.config.schema import Config
from trainyard.jobs.job_plan import FILES_DIRECTORY, Program
from trainyard.jobs.recipes.program_settings import own_settings, settings_problems
from trainyard.jobs.recipes.recipe_order import RecipeOrder, absolute, common_problems, memory_problems
from trainyard.jobs.recipes.wrapped_program import kept_program
from trainyard.plan.minimum_memory import SHARDED
from trainyard.plan.parallel_degrees import degree_problems, unused_degrees
from trainyard.programs.checkpoints.found_checkpoint import CheckpointFormat

NAME = "deepspeed"
LOG_FORM = "json"
ON_FIRST_NODE = True
CHECKPOINTS = (CheckpointFormat.DEEPSPEED,)
DEEPSPEED_FILE = "deepspeed.json"
_STAGES = {"single": 0, "ddp": 0, "fsdp": 3, "hsdp": 3}
"""`compute.strategy` -> stage of ZeRO: without sharding, or with everything sharded."""
PLANNED = {
    "train_batch_size": "program.global_batch",
    "train_micro_batch_size_per_gpu": "training.batch_size",
    "gradient_accumulation_steps": "training.gradient_accumulation_steps",
    "steps_per_print": "monitoring.log_steps",
}


def problems(order: RecipeOrder) -> Iterator[str]:
    config = order.config
    yield from common_problems(order)
    yield from degree_problems(config, order.degrees)
    yield from unused_degrees(
        config, NAME, "tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel"
    )
    yield from absolute(order, "program.script", config.program.script, "your script in the image")
    yield from settings_problems(config, PLANNED)
    if _STAGES[config.compute.strategy] == 3:
        yield from memory_problems(order, SHARDED)


def program(order: RecipeOrder) -> Program:
    file = f"{FILES_DIRECTORY}/{DEEPSPEED_FILE}"
    return kept_program(
        NAME,
        order,
        [str(order.config.program.script), "--deepspeed", "--deepspeed_config", file],
        environment={"TRAINYARD_STEPS": str(order.steps), "TRAINYARD_CHECKPOINTS": order.own_checkpoints},
        files={DEEPSPEED_FILE: json.dumps(deepspeed_config(order), indent=1) + "\n"},
    )


def deepspeed_config(order: RecipeOrder) -> dict[str, Any]:
    """The configuration. A setting `zero_optimization.offload_optimizer.device=cpu` goes into its section."""
    config, training, degrees = order.config, order.config.training, order.degrees
    found: dict[str, Any] = {
        "train_batch_size": degrees.global_batch,
        "train_micro_batch_size_per_gpu": training.batch_size,
        "gradient_accumulation_steps": degrees.micro_batches,
        "gradient_clipping": training.max_grad_norm or 0.0,
        "steps_per_print": config.monitoring.log_steps,
        "bf16": {"enabled": config.model.dtype == "bfloat16"},
        "zero_optimization": {"stage": _STAGES[config.compute.strategy]},
        "optimizer": {"type": "AdamW", "params": _adam(config)},
        "scheduler": _schedule(order),
    }
    for name, text in own_settings(config).items():
        _put(found, name.split("."), _value(text))
    return found


def _adam(config: Config) -> dict[str, Any]:
    training = config.training
    return {
        "lr": training.learning_rate,
        "betas": [training.adam_beta1, training.adam_beta2],
        "eps": training.adam_epsilon,
        "weight_decay": training.weight_decay,
    }


def _schedule(order: RecipeOrder) -> dict[str, Any]:
    training = order.config.training
    warmup: dict[str, Any] = {"warmup_num_steps": training.warmup_steps, "warmup_type": "linear"}
    constant = training.lr_scheduler == "constant"
    if training.warmup_steps == 0:  # DeepSpeed refuses 0 steps and warms up for at least 2: start at the peak
        peak = {"warmup_min_lr": training.learning_rate} if constant else {"warmup_min_ratio": 1.0}
        warmup |= {"warmup_num_steps": 1, **peak}
    if constant:
        return {"type": "WarmupLR", "params": {"warmup_max_lr": training.learning_rate, **warmup}}
    return {
        "type": "WarmupCosineLR",
        "params": {
            "total_num_steps": order.steps,
            "cos_min_ratio": training.min_learning_rate_ratio,
            **warmup,
        },
    }


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _put(section: dict[str, Any], path: list[str], value: Any) -> None:
    for name in path[:-1]:
        inner = section.get(name)
        section[name] = inner if isinstance(inner, dict) else {}
        section = section[name]
    section[path[-1]] = value
