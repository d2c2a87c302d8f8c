"""A script with transformers' Trainer, whose arguments HfArgumentParser(TrainingArguments, …) parses.

It passes training_args.resume_from_checkpoint to `trainer.train`, as the examples of transformers do.
"""

import json
from typing import Any

from trainyard.config.schema import Config
from trainyard.programs.presets.preset import Planned, Preset, PresetCommand, PresetRun


def training_arguments(config: Config, run: PresetRun) -> dict[str, Any]:
    """Return the options that every program with TrainingArguments takes."""
    training, is_cosine = config.training, config.training.lr_scheduler == "cosine"
    floor = json.dumps({"min_lr_rate": training.min_learning_rate_ratio})
    return {
        "output_dir": Planned(run.checkpoints, "--run-dir"),
        "model_name_or_path": config.model.path,
        "max_steps": Planned(training.max_steps, "training.max_steps"),
        "num_train_epochs": None if training.max_steps else training.epochs,
        "per_device_train_batch_size": Planned(run.degrees.micro_batch, "training.batch_size"),
        "gradient_accumulation_steps": Planned(
            run.degrees.micro_batches, "training.gradient_accumulation_steps"
        ),
        "learning_rate": training.learning_rate,
        "lr_scheduler_type": "cosine_with_min_lr" if is_cosine else "constant_with_warmup",
        "lr_scheduler_kwargs": floor if is_cosine else None,
        "warmup_steps": training.warmup_steps,
        "weight_decay": training.weight_decay,
        "adam_beta1": training.adam_beta1,
        "adam_beta2": training.adam_beta2,
        "adam_epsilon": training.adam_epsilon,
        "max_grad_norm": training.max_grad_norm or 0,
        "seed": training.seed,
        "bf16": str(config.model.dtype == "bfloat16"),
        "use_cpu": config.model.device == "cpu",
        "gradient_checkpointing": config.compute.activation_checkpointing != "none",
        "torch_compile": config.compute.compile,
        "logging_steps": Planned(config.monitoring.log_steps, "monitoring.log_steps"),
        "logging_nan_inf_filter": "False",  # else a loss of NaN is printed as 0
        "save_strategy": "steps",
        "save_steps": Planned(config.checkpointing.save_steps, "checkpointing.save_steps"),
        "save_total_limit": max(2, config.checkpointing.keep_last),
        "report_to": "wandb" if config.monitoring.wandb.enabled else "none",
    }


def command(config: Config, run: PresetRun) -> PresetCommand:
    return PresetCommand(("python", str(config.program.script)), training_arguments(config, run))


PRESET = Preset(
    "hf-trainer",
    command,
    checkpoints="checkpoint-*",
    resume=("--resume_from_checkpoint", "{checkpoint}"),
    uses=("training.epochs",),
    required={"program.script": "your script, which parses TrainingArguments"},
)
