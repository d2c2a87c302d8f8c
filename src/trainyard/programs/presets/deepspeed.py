"""A script of yours with DeepSpeed.

It gets --deepspeed_config FILE, which `deepspeed.add_config_arguments` reads, and the variables
TRAINYARD_STEPS and TRAINYARD_CHECKPOINTS. DeepSpeed prints no losses, so the script prints a JSON object per
logged step, {"step": 10, "loss": 2.31}, and saves by `engine.save_checkpoint(folder, tag="global_stepN")`.
"""

from typing import Any, Literal

from trainyard.config.schema import Config
from trainyard.programs.presets.preset import Preset, PresetCommand, PresetRun

_FILE = "deepspeed.json"


def memory(config: Config) -> Literal["sharded"] | None:
    """Return how ZeRO 3 divides the model; ZeRO 0 divides nothing, and what a script needs is not known."""
    return "sharded" if config.compute.strategy in ("fsdp", "hsdp") else None


def scheduler(config: Config) -> dict[str, Any]:
    """Return the section scheduler.

    DeepSpeed refuses 0 steps of warm-up and warms up for at least 2. Without any it starts at the peak.
    """
    training = config.training
    params: dict[str, Any] = {"warmup_num_steps": training.warmup_steps or 1, "warmup_type": "linear"}
    if training.lr_scheduler == "constant":
        params["warmup_max_lr"] = training.learning_rate
        if not training.warmup_steps:
            params["warmup_min_lr"] = training.learning_rate
        return {"type": "WarmupLR", "params": params}
    if not training.warmup_steps:
        params["warmup_min_ratio"] = 1.0
    params |= {"total_num_steps": training.max_steps, "cos_min_ratio": training.min_learning_rate_ratio}
    return {"type": "WarmupCosineLR", "params": params}


def command(config: Config, run: PresetRun) -> PresetCommand:
    training = config.training
    settings = {
        "train_batch_size": run.degrees.global_batch,
        "train_micro_batch_size_per_gpu": run.degrees.micro_batch,
        "gradient_accumulation_steps": run.degrees.micro_batches,
        "gradient_clipping": training.max_grad_norm or 0.0,
        "steps_per_print": config.monitoring.log_steps,
        "bf16": {"enabled": config.model.dtype == "bfloat16"},
        "zero_optimization": {"stage": 3 if memory(config) else 0},
        "optimizer": {
            "type": "AdamW",
            "params": {
                "lr": training.learning_rate,
                "betas": [training.adam_beta1, training.adam_beta2],
                "eps": training.adam_epsilon,
                "weight_decay": training.weight_decay,
            },
        },
        "scheduler": scheduler(config),
    }
    script = (config.cluster.pod.python, str(config.program.script))
    return PresetCommand(
        (*script, "--deepspeed", "--deepspeed_config", f"{run.files}/{_FILE}"),
        environment={"TRAINYARD_STEPS": str(training.max_steps), "TRAINYARD_CHECKPOINTS": run.checkpoints},
        files={_FILE: settings},
    )


PRESET = Preset(
    "deepspeed",
    command,
    launcher="torchrun",
    checkpoints="global_step*/",
    memory=memory,
    settings_file=_FILE,
    required={
        "program.script": "your script in the image",
        "training.max_steps": "the number of optimizer steps",
    },
    paths={"program.script": "your script in the image"},
    planned={
        "train_batch_size": "program.global_batch",
        "train_micro_batch_size_per_gpu": "training.batch_size",
        "gradient_accumulation_steps": "training.gradient_accumulation_steps",
        "steps_per_print": "monitoring.log_steps",
    },
)
