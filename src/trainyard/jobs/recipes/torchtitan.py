"""torchtitan 0.3: `torchtitan.train` with one of its presets, started by torchrun on every node.

torchtitan chooses the model by its preset (`program.preset`), so `model.architecture` is used only for the
checks here. The rows come from the line that rank 0 prints every `monitoring.log_steps` steps.
"""

from collections.abc import Iterator

from trainyard.jobs.job_plan import Program
from trainyard.jobs.recipes.program_settings import format_number, own_settings, settings_problems
from trainyard.jobs.recipes.recipe_order import RecipeOrder, absolute, common_problems, memory_problems
from trainyard.jobs.recipes.wrapped_program import kept_program
from trainyard.plan.minimum_memory import SHARDED
from trainyard.plan.parallel_degrees import degree_problems, unused_degrees
from trainyard.programs.checkpoints.found_checkpoint import CheckpointFormat

NAME = LOG_FORM = "torchtitan"
ON_FIRST_NODE = True
CHECKPOINTS = (CheckpointFormat.DCP, CheckpointFormat.HUGGING_FACE)
_ADAM = "optimizer.param-groups.0.optimizer-kwargs"
PLANNED = {
    "training.local-batch-size": "training.batch_size",
    "training.global-batch-size": "program.global_batch",
    "training.seq-len": "data.sequence_length",
    "training.steps": "training.max_steps",
    "parallelism.tensor-parallel-degree": "compute.tensor_parallel",
    "parallelism.pipeline-parallel-degree": "compute.pipeline_parallel",
    "parallelism.context-parallel-degree": "compute.context_parallel",
    "parallelism.data-parallel-shard-degree": "--num-nodes",
    "parallelism.data-parallel-replicate-degree": "--num-nodes",
    "checkpoint.interval": "checkpointing.save_steps",
    "checkpoint.folder": "cluster.volume.mount_path",
    "metrics.log-freq": "monitoring.log_steps",
    "dump-folder": "cluster.volume.mount_path",
    "debug.seed": "training.seed",
    "module": "program.preset",
    "config": "program.preset",
}


def problems(order: RecipeOrder) -> Iterator[str]:
    config, shape, degrees = order.config, order.config.model.architecture, order.degrees
    yield from common_problems(order)
    yield from degree_problems(config, degrees)
    yield from unused_degrees(config, NAME, "expert_parallel")
    if config.program.preset is None:
        yield "program.preset: not set; name torchtitan's module and configuration, such as llama3.llama3_8b"
    if shape.num_key_value_heads % degrees.tensor:
        yield (
            f"compute.tensor_parallel: {degrees.tensor} does not divide model.architecture."
            f"num_key_value_heads, {shape.num_key_value_heads}, which torchtitan divides"
        )
    if config.model.tokenizer is not None:
        yield from absolute(order, "model.tokenizer", config.model.tokenizer, "the tokenizer's folder")
    if config.data.train_path is not None:
        yield from absolute(order, "data.train_path", config.data.train_path, "the data")
    if config.model.path is not None:
        yield from absolute(order, "model.path", config.model.path, "the starting weights")
    yield from settings_problems(config, PLANNED | {key.replace("-", "_"): PLANNED[key] for key in PLANNED})
    yield from memory_problems(order, SHARDED)


def program(order: RecipeOrder) -> Program:
    return kept_program(NAME, order, ["-m", "torchtitan.train", *words(order)])


def words(order: RecipeOrder) -> list[str]:
    """The command line. A setting of `true` is a switch, one of `false` removes it."""
    module, _, preset = str(order.config.program.preset).partition(".")
    found = [f"--module={module}", f"--config={preset}"]
    for name, value in _options(order).items():
        found.append(f"--{name}" if value == "true" else f"--{name}={value}")
    return found


def _options(order: RecipeOrder) -> dict[str, str]:
    config, training, degrees = order.config, order.config.training, order.degrees
    found = {
        "dump-folder": order.run_directory,
        "training.local-batch-size": str(training.batch_size),
        "training.global-batch-size": str(degrees.global_batch),
        "training.seq-len": str(config.data.sequence_length),
        "training.steps": str(order.steps),
        "training.max-norm": format_number(training.max_grad_norm or 1e9),
        "training.mixed-precision-param": config.model.dtype,
        f"{_ADAM}.lr": format_number(training.learning_rate),
        f"{_ADAM}.eps": format_number(training.adam_epsilon),
        f"{_ADAM}.weight-decay": format_number(training.weight_decay),
        "lr-scheduler.warmup-steps": str(training.warmup_steps),
        **_decay(training.lr_scheduler, training.min_learning_rate_ratio),
        "parallelism.tensor-parallel-degree": str(degrees.tensor),
        "parallelism.pipeline-parallel-degree": str(degrees.pipeline),
        "parallelism.context-parallel-degree": str(degrees.context),
        "checkpoint.enable": "true",
        "checkpoint.folder": "program",
        "checkpoint.interval": str(config.checkpointing.save_steps),
        "checkpoint.keep-latest-k": str(max(2, config.checkpointing.keep_last)),
        "metrics.log-freq": str(config.monitoring.log_steps),
        "metrics.disable-color-printing": "true",
        "debug.seed": str(training.seed),
    }
    if config.compute.compile:
        found["compile.enable"] = "true"
    if config.model.tokenizer is not None:
        found["hf-assets-path"] = config.model.tokenizer
    if config.data.train_path is not None:
        found["dataloader.dataset-path"] = config.data.train_path
    if config.model.path is not None:
        found["checkpoint.initial-load-path"] = config.model.path
    found |= own_settings(config)
    return {name: value for name, value in found.items() if value != "false"}


def _decay(schedule: str, least: float) -> dict[str, str]:
    if schedule == "constant":
        return {"lr-scheduler.decay-ratio": "0"}
    return {"lr-scheduler.decay-type": "cosine", "lr-scheduler.min-lr-factor": format_number(least)}
