"""verl 0.9: GRPO with `verl.trainer.main_ppo`, whose Hydra overrides are rendered here. It runs on Ray.

The driver runs once, on the head; verl starts its workers on all nodes of the Ray cluster. A step trains on
questions × `grpo.completions_per_question` answers, all of them in one optimizer step. The data are parquet
files in verl's columns, as its `examples/data_preprocess/gsm8k.py` writes them. The rows come from the line
that its console logger prints for every step.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from trainyard.config.schema import Config
from trainyard.jobs.job_plan import Program
from trainyard.jobs.recipes.program_settings import format_number, own_settings, settings_problems
from trainyard.jobs.recipes.recipe_order import (
    RecipeOrder,
    absolute,
    memory_problems,
    steps_problems,
)
from trainyard.jobs.recipes.wrapped_program import kept_program
from trainyard.plan.minimum_memory import SHARDED
from trainyard.plan.parallel_degrees import unused_degrees
from trainyard.programs.checkpoints.found_checkpoint import CheckpointFormat

NAME = LOG_FORM = "verl"
ON_FIRST_NODE = True
CHECKPOINTS = (CheckpointFormat.VERL,)
_ACTOR, _ROLLOUT, _REFERENCE = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "ref"))
PLANNED = {
    "trainer.nnodes": "--num-nodes",
    "trainer.n_gpus_per_node": "--gpu-per-node",
    "trainer.total_training_steps": "training.max_steps",
    "trainer.save_freq": "checkpointing.save_steps",
    "trainer.default_local_dir": "cluster.volume.mount_path",
    "trainer.logger": "monitoring.wandb.enabled",
    "data.train_batch_size": "program.global_batch",
    f"{_ROLLOUT}.n": "grpo.completions_per_question",
    f"{_ROLLOUT}.tensor_model_parallel_size": "compute.tensor_parallel",
    f"{_ACTOR}.ppo_mini_batch_size": "program.global_batch",
    f"{_ACTOR}.ppo_micro_batch_size_per_gpu": "training.batch_size",
    "algorithm.adv_estimator": "recipe",
}
_WRONG = {
    "trainer.max_steps": (
        "no version of verl has it; set training.max_steps, which becomes trainer.total_training_steps"
    )
}
_NAME = re.compile(r"[+~]{0,2}[A-Za-z_][\w.@/-]*")


def problems(order: RecipeOrder) -> Iterator[str]:
    config = order.config
    if not order.kind.on_ray and order.nodes > 1:
        yield f"--kind {order.kind.name}: verl runs on Ray; use --kind rayjob or raycluster"
    yield from steps_problems(order)
    if config.monitoring.log_steps != 1:
        yield f"monitoring.log_steps: {config.monitoring.log_steps}, but verl logs every step; set it to 1"
    yield from unused_degrees(config, NAME, "pipeline_parallel", "context_parallel", "expert_parallel")
    yield from _batch_problems(order)
    yield from _rollout_problems(order)
    if config.model.path is None:
        yield (
            "model.path: null; name the folder or Hub id of the model to train, such as "
            "Qwen/Qwen2.5-0.5B-Instruct"
        )
    for key, path in (
        ("data.train_path", config.data.train_path),
        ("data.validation_path", config.data.validation_path),
    ):
        yield from absolute(order, key, path, "a parquet file such as /checkpoints/gsm8k/train.parquet")
        if path is not None and not path.endswith(".parquet"):
            yield f"{key}: {path} is not a .parquet file, which verl reads"
    yield from _setting_problems(config)
    whole = config.model_copy(update={"compute": config.compute.model_copy(update={"tensor_parallel": 1})})
    yield from memory_problems(replace(order, config=whole), SHARDED)  # vLLM alone uses tensor_parallel


def _answers(order: RecipeOrder) -> int:
    """Answers per step."""
    training = order.config.training
    world = order.nodes * order.processes
    return order.config.program.global_batch or (
        training.batch_size * training.gradient_accumulation_steps * world
    )


def _batch_problems(order: RecipeOrder) -> Iterator[str]:
    config, answers, world = order.config, _answers(order), order.nodes * order.processes
    group, micro = config.grpo.completions_per_question, config.training.batch_size
    key = "program.global_batch" if config.program.global_batch else "training.batch_size"
    if answers % group:
        yield (
            f"grpo.completions_per_question: {group} does not divide the {answers} answers of a step "
            f"({key} decides them)"
        )
    if answers % (micro * world):
        yield (
            f"{key}: {answers} answers of a step are not divisible by training.batch_size × GPUs "
            f"({micro} × {world} = {micro * world})"
        )


def _rollout_problems(order: RecipeOrder) -> Iterator[str]:
    config, shape = order.config, order.config.model.architecture
    parts, per_node = config.compute.tensor_parallel, order.processes
    if parts > per_node or per_node % parts:
        yield (
            f"compute.tensor_parallel: {parts} does not divide the {per_node} GPUs of a node, on which vLLM "
            "samples"
        )
    for name in ("num_attention_heads", "num_key_value_heads"):
        size = getattr(shape, name)
        if size % parts and parts % size:
            yield f"compute.tensor_parallel: {parts} does not divide model.architecture.{name}, {size}"
    if config.grpo.max_completion_tokens >= config.data.sequence_length:
        yield (
            f"grpo.max_completion_tokens: {config.grpo.max_completion_tokens} leave no room for the question "
            f"in data.sequence_length, {config.data.sequence_length}"
        )


def _setting_problems(config: Config) -> Iterator[str]:
    plain = {name.lstrip("+~"): name for name in own_settings(config)}
    yield from settings_problems(config, PLANNED | {plain.get(key, key): PLANNED[key] for key in PLANNED})
    for name, given in plain.items():
        if reason := _WRONG.get(name):
            yield f"program.settings: {given}: {reason}"
        elif given and not _NAME.fullmatch(given):
            yield f"program.settings: {given[:80]!r} is not a name of Hydra"


def program(order: RecipeOrder) -> Program:
    command = [order.config.cluster.pod.python, "-m", "verl.trainer.main_ppo"]
    command += [f"{name}={value}" for name, value in overrides(order).items()]
    return kept_program(NAME, order, command, torchrun=False, once=order.kind.on_ray)


def overrides(order: RecipeOrder) -> dict[str, str]:
    """Every override, with the user's own last."""
    return {**_algorithm(order), **_model(order), **_trainer(order), **own_settings(order.config)}


def _algorithm(order: RecipeOrder) -> dict[str, str]:
    config, grpo = order.config, order.config.grpo
    questions = str(_answers(order) // grpo.completions_per_question)
    return {
        "algorithm.adv_estimator": "grpo",
        "algorithm.use_kl_in_reward": "False",
        "data.train_files": str(config.data.train_path),
        "data.val_files": str(config.data.validation_path),
        "data.train_batch_size": questions,
        "data.max_prompt_length": str(config.data.sequence_length - grpo.max_completion_tokens),
        "data.max_response_length": str(grpo.max_completion_tokens),
        "data.filter_overlong_prompts": "True",
        "data.seed": str(config.training.seed),
        f"{_ACTOR}.ppo_mini_batch_size": questions,
        f"{_ACTOR}.use_kl_loss": str(grpo.kl_coefficient > 0),
        f"{_ACTOR}.kl_loss_coef": format_number(grpo.kl_coefficient),
        f"{_ACTOR}.kl_loss_type": "low_var_kl",
        f"{_ACTOR}.entropy_coeff": format_number(grpo.entropy_coefficient),
    }


def _model(order: RecipeOrder) -> dict[str, str]:
    config, training = order.config, order.config.training
    betas = (training.adam_beta1, training.adam_beta2)
    micro = str(training.batch_size)
    recompute = config.compute.activation_checkpointing != "none"
    return {
        "actor_rollout_ref.model.path": str(config.model.path),
        "actor_rollout_ref.model.use_remove_padding": "True",
        "actor_rollout_ref.model.enable_gradient_checkpointing": str(recompute),
        f"{_ACTOR}.ppo_micro_batch_size_per_gpu": micro,
        f"{_ACTOR}.grad_clip": format_number(training.max_grad_norm or 1e9),
        f"{_ACTOR}.optim.lr": format_number(training.learning_rate),
        f"{_ACTOR}.optim.lr_warmup_steps": str(training.warmup_steps),
        f"{_ACTOR}.optim.lr_scheduler_type": training.lr_scheduler,
        f"{_ACTOR}.optim.min_lr_ratio": format_number(training.min_learning_rate_ratio),
        f"{_ACTOR}.optim.betas": f"[{','.join(map(format_number, betas))}]",
        f"{_ACTOR}.optim.weight_decay": format_number(training.weight_decay),
        f"{_ACTOR}.fsdp_config.param_offload": str(config.compute.cpu_offload),
        f"{_ACTOR}.fsdp_config.optimizer_offload": str(config.compute.cpu_offload),
        f"{_ROLLOUT}.name": "vllm",
        f"{_ROLLOUT}.n": str(config.grpo.completions_per_question),
        f"{_ROLLOUT}.temperature": format_number(config.grpo.temperature),
        f"{_ROLLOUT}.tensor_model_parallel_size": str(config.compute.tensor_parallel),
        f"{_ROLLOUT}.gpu_memory_utilization": "0.5",
        f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu": micro,
        f"{_REFERENCE}.log_prob_micro_batch_size_per_gpu": micro,
    }


def _trainer(order: RecipeOrder) -> dict[str, str]:
    config = order.config
    return {
        "trainer.logger": '["console","wandb"]' if config.monitoring.wandb.enabled else '["console"]',
        "trainer.project_name": config.monitoring.wandb.project,
        "trainer.experiment_name": order.job,
        "trainer.nnodes": str(order.nodes),
        "trainer.n_gpus_per_node": str(order.processes),
        "trainer.total_training_steps": str(order.steps),
        "trainer.save_freq": str(config.checkpointing.save_steps),
        "trainer.test_freq": str(config.training.validation_steps or -1),
        "trainer.val_before_train": "False",
        "trainer.default_local_dir": order.own_checkpoints,
        "trainer.resume_mode": "auto",
        "trainer.critic_warmup": "0",
        "trainer.use_v1": "False",  # rows and checkpoints of the v1 trainer were never looked at
    }
