"""verl 0.9: GRPO with `verl.trainer.main_ppo`, whose Hydra overrides are made here.

The driver runs once, on the head of the Ray cluster; verl starts its workers on all nodes. A step trains on
questions × grpo.completions_per_question answers, all of them in one optimizer step. The data are parquet
files in verl's columns, as its `examples/data_preprocess/gsm8k.py` writes them. The rows are the lines of
its logger `console`, one for every step: its logger `file` writes NaN as null.
"""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from trainyard.config.schema import Config
from trainyard.programs.presets.preset import Planned, Preset, PresetCommand, PresetRun, text_of

PARQUET = {
    "data.train_path": "a parquet file such as /checkpoints/gsm8k/train.parquet",
    "data.validation_path": "a parquet file such as /checkpoints/gsm8k/test.parquet",
}


def problems(config: Config, run: PresetRun) -> Iterator[str]:
    grpo, tensor, gpus = config.grpo, config.compute.tensor_parallel, run.degrees.per_node
    for name in filter(None, run.settings):
        if name.lstrip("+~") == "trainer.max_steps":
            yield f"program.settings: {name}: no version of verl has it; set training.max_steps"
        elif not re.fullmatch(r"[+~]{0,2}[A-Za-z_][\w.@/-]*", name):
            yield f"program.settings: {name[:80]!r} is not the name of a setting of verl"
    if run.degrees.global_batch % grpo.completions_per_question:
        key = "program.global_batch" if config.program.global_batch else "training.batch_size"
        yield (
            f"grpo.completions_per_question: {grpo.completions_per_question} does not divide the "
            f"{run.degrees.global_batch} answers of a step ({key} decides them)"
        )
    if gpus % tensor:
        yield (
            f"compute.tensor_parallel: {tensor} does not divide the {gpus} GPUs of a node, on which vLLM "
            "samples"
        )
    for name in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(config.model.architecture, name)
        if heads % tensor and tensor % heads:
            yield f"compute.tensor_parallel: {tensor} does not divide model.architecture.{name}, {heads}"
    if grpo.max_completion_tokens >= config.data.sequence_length:
        yield (
            f"grpo.max_completion_tokens: {grpo.max_completion_tokens} leaves no room for the question in "
            f"data.sequence_length, {config.data.sequence_length}"
        )
    for name in ("train_path", "validation_path"):
        path = getattr(config.data, name)
        if path and not path.endswith(".parquet"):
            yield f"data.{name}: {path} is not a .parquet file, which verl reads"


def command(config: Config, run: PresetRun) -> PresetCommand:
    training, grpo, data, compute = config.training, config.grpo, config.data, config.compute
    questions = run.degrees.global_batch // grpo.completions_per_question
    actor, rollout, reference = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "ref"))
    options = {
        "algorithm.adv_estimator": Planned("grpo", "recipe"),
        "algorithm.use_kl_in_reward": False,
        "data.train_files": data.train_path,
        "data.val_files": data.validation_path,
        "data.train_batch_size": Planned(questions, "program.global_batch"),
        "data.max_prompt_length": data.sequence_length - grpo.max_completion_tokens,
        "data.max_response_length": grpo.max_completion_tokens,
        "data.filter_overlong_prompts": True,
        "data.seed": training.seed,
        f"{actor}.ppo_mini_batch_size": Planned(questions, "program.global_batch"),
        f"{actor}.use_kl_loss": grpo.kl_coefficient > 0,
        f"{actor}.kl_loss_coef": grpo.kl_coefficient,
        f"{actor}.kl_loss_type": "low_var_kl",
        f"{actor}.entropy_coeff": grpo.entropy_coefficient,
        # As AWS's samples set them: nothing is compiled unless compute.compile says so, the weights of the
        # reference, which are used once a step, wait in the memory of the CPU, and a collective may take as
        # long as a save.
        f"{actor}.use_torch_compile": compute.compile,
        f"{reference}.fsdp_config.param_offload": True,
        "actor_rollout_ref.nccl_timeout": 1800,
        "actor_rollout_ref.model.path": config.model.path,
        "actor_rollout_ref.model.use_remove_padding": True,
        "actor_rollout_ref.model.enable_gradient_checkpointing": compute.activation_checkpointing != "none",
        f"{actor}.ppo_micro_batch_size_per_gpu": Planned(run.degrees.micro_batch, "training.batch_size"),
        f"{actor}.grad_clip": training.max_grad_norm or 1e9,
        f"{actor}.optim.lr": training.learning_rate,
        f"{actor}.optim.lr_warmup_steps": training.warmup_steps,
        f"{actor}.optim.lr_scheduler_type": training.lr_scheduler,
        f"{actor}.optim.min_lr_ratio": training.min_learning_rate_ratio,
        f"{actor}.optim.betas": f"[{text_of(training.adam_beta1)},{text_of(training.adam_beta2)}]",
        f"{actor}.optim.weight_decay": training.weight_decay,
        f"{actor}.fsdp_config.param_offload": compute.cpu_offload,
        f"{actor}.fsdp_config.optimizer_offload": compute.cpu_offload,
        f"{rollout}.name": "vllm",
        f"{rollout}.n": Planned(grpo.completions_per_question, "grpo.completions_per_question"),
        f"{rollout}.temperature": grpo.temperature,
        f"{rollout}.tensor_model_parallel_size": Planned(compute.tensor_parallel, "compute.tensor_parallel"),
        f"{rollout}.gpu_memory_utilization": 0.5,
        f"{rollout}.log_prob_micro_batch_size_per_gpu": run.degrees.micro_batch,
        f"{reference}.log_prob_micro_batch_size_per_gpu": run.degrees.micro_batch,
        "trainer.logger": Planned(
            '["console","wandb"]' if config.monitoring.wandb.enabled else '["console"]',
            "monitoring.wandb.enabled",
        ),
        "trainer.project_name": config.monitoring.wandb.project,
        "trainer.experiment_name": PurePosixPath(run.directory).name,
        "trainer.nnodes": Planned(run.nodes, "--num-nodes"),
        "trainer.n_gpus_per_node": Planned(run.degrees.per_node, "--gpu-per-node"),
        "trainer.total_training_steps": Planned(training.max_steps, "training.max_steps"),
        "trainer.save_freq": Planned(config.checkpointing.save_steps, "checkpointing.save_steps"),
        "trainer.test_freq": training.validation_steps or -1,
        "trainer.val_before_train": False,
        "trainer.default_local_dir": Planned(run.checkpoints, "cluster.volume.mount_path"),
        "trainer.resume_mode": "auto",
        "trainer.critic_warmup": 0,
        # The rows and checkpoints of the v1 trainer are not known here.
        "trainer.use_v1": False,
    }
    return PresetCommand(
        (config.cluster.pod.python, "-m", "verl.trainer.main_ppo"),
        options,
        data=tuple(filter(None, (data.train_path, data.validation_path))),
    )


PRESET = Preset(
    "verl",
    command,
    problems,
    launcher="ray",
    checkpoints="global_step_*/",
    option=("", "="),
    switches=False,
    memory=lambda _config: "sharded",
    only_data_parallel=True,
    uses=("compute.tensor_parallel", "compute.cpu_offload"),  # vLLM alone uses the degree
    # Defaults for GSM8K: verl's own example has these lengths, rates and KL term. Four GPUs answer 64
    # questions a step, and eight answer 128.
    defaults={
        "training": {
            "batch_size": 4,
            "gradient_accumulation_steps": 32,
            "learning_rate": 1.0e-6,
            "lr_scheduler": "constant",
            "warmup_steps": 0,
            "weight_decay": 0.01,
        },
        "grpo": {"completions_per_question": 8, "max_completion_tokens": 1024, "kl_coefficient": 0.001},
        "data": {"sequence_length": 1536},
        "checkpointing": {"save_steps": 20},
    },
    required={
        "model.path": "the folder or Hub id of the model to train, such as Qwen/Qwen2.5-0.5B-Instruct",
        "training.max_steps": "the number of optimizer steps",
        **PARQUET,
    },
    paths=PARQUET,
)
