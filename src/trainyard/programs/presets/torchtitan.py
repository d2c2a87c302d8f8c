"""torchtitan 0.3, which chooses the model by its own configuration (program.preset).

So model.architecture is used only for the checks of a plan. The rows are those of TensorBoard, which the rank
with the loss writes, on whichever node it is.
"""

from collections.abc import Iterator

from trainyard.config.schema import Config
from trainyard.programs.presets.preset import Planned, Preset, PresetCommand, PresetRun


def problems(config: Config, run: PresetRun) -> Iterator[str]:
    tensor, groups = run.degrees.tensor, config.model.architecture.num_key_value_heads
    if groups % tensor:
        yield (
            f"compute.tensor_parallel: {tensor} does not divide model.architecture.num_key_value_heads, "
            f"{groups}, which torchtitan divides"
        )


def command(config: Config, run: PresetRun) -> PresetCommand:
    training, is_constant = config.training, config.training.lr_scheduler == "constant"
    module, _, name = str(config.program.preset).partition(".")
    adamw = "optimizer.param-groups.0.optimizer-kwargs"
    options = {
        "dump-folder": Planned(run.directory, "cluster.volume.mount_path"),
        "training.local-batch-size": Planned(run.degrees.micro_batch, "training.batch_size"),
        "training.global-batch-size": Planned(run.degrees.global_batch, "program.global_batch"),
        "training.seq-len": Planned(config.data.sequence_length, "data.sequence_length"),
        "training.steps": Planned(training.max_steps, "training.max_steps"),
        "training.max-norm": training.max_grad_norm or 1e9,
        "training.mixed-precision-param": config.model.dtype,
        f"{adamw}.lr": training.learning_rate,
        f"{adamw}.eps": training.adam_epsilon,
        f"{adamw}.weight-decay": training.weight_decay,
        "lr-scheduler.warmup-steps": training.warmup_steps,
        "lr-scheduler.decay-ratio": 0 if is_constant else None,
        "lr-scheduler.decay-type": None if is_constant else "cosine",
        "lr-scheduler.min-lr-factor": None if is_constant else training.min_learning_rate_ratio,
        "parallelism.tensor-parallel-degree": Planned(run.degrees.tensor, "compute.tensor_parallel"),
        "parallelism.pipeline-parallel-degree": Planned(run.degrees.pipeline, "compute.pipeline_parallel"),
        "parallelism.context-parallel-degree": Planned(run.degrees.context, "compute.context_parallel"),
        "training.disable-cuda-graphs": run.degrees.pipeline > 1,  # torchtitan refuses both together
        "checkpoint.enable": True,
        "checkpoint.folder": Planned("program", "cluster.volume.mount_path"),
        "checkpoint.interval": Planned(config.checkpointing.save_steps, "checkpointing.save_steps"),
        "checkpoint.keep-latest-k": max(2, config.checkpointing.keep_last),
        "metrics.log-freq": Planned(config.monitoring.log_steps, "monitoring.log_steps"),
        "metrics.disable-color-printing": True,
        "metrics.enable-tensorboard": Planned(True, "program.metrics"),
        "metrics.save-tb-folder": Planned("tensorboard", "program.metrics"),
        "debug.seed": Planned(training.seed, "training.seed"),
        "compile.enable": config.compute.compile,
        "hf-assets-path": config.model.tokenizer,
        "dataloader.dataset-path": config.data.train_path,
        "checkpoint.initial-load-path": config.model.path,
    }
    start = (config.cluster.pod.python, "-m", "torchtitan.train")
    return PresetCommand(
        (*start, f"--module={module}", f"--config={name}"),
        options,
        metrics=f"{run.directory}/tensorboard",
        data=(config.data.train_path,) if config.data.train_path else None,
    )


PRESET = Preset(
    "torchtitan",
    command,
    problems,
    launcher="torchrun",
    checkpoints="step-*/",
    memory=lambda _config: "sharded",
    uses=("compute.tensor_parallel", "compute.pipeline_parallel", "compute.context_parallel"),
    required={
        "program.preset": "torchtitan's module and configuration, such as llama3.llama3_8b",
        "training.max_steps": "the number of optimizer steps",
    },
    paths={
        "model.tokenizer": "the tokenizer's folder",
        "data.train_path": "the data",
        "model.path": "the starting weights",
    },
    planned={
        "parallelism.data-parallel-shard-degree": "--num-nodes",
        "parallelism.data-parallel-replicate-degree": "--num-nodes",
        "module": "program.preset",
        "config": "program.preset",
    },
)
