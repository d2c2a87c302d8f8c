"""Megatron-LM's pretrain_gpt.py with the arguments of Megatron-Core 0.19.

They describe the Llama family as model.architecture does. The rows are those of TensorBoard, which the last
rank writes, on whichever node it is.
"""

from collections.abc import Iterator

from trainyard.config.schema import Config
from trainyard.programs.presets.preset import Planned, Preset, PresetCommand, PresetRun

# Megatron requires it with tensor or context parallelism before Blackwell; it is harmless elsewhere.
ENVIRONMENT = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
DATA_PATHS = {"data.train_path": "the data", "data.validation_path": "the data"}


def data_problems(config: Config) -> Iterator[str]:
    """Yield why Megatron-Core cannot read the data."""
    if config.data.train_path and not config.model.tokenizer:
        yield "model.tokenizer: null; name the folder or Hub id of the tokenizer that made data.train_path"
    if config.data.validation_path and not config.data.train_path:
        yield "data.train_path: null, but data.validation_path is set; set both"


def data_files(config: Config) -> tuple[str, ...]:
    """Return the files that Megatron-Core reads: two of each prefix, and none of mock data."""
    paths = filter(None, (config.data.train_path, config.data.validation_path))
    return tuple(f"{path}{ending}" for path in paths for ending in (".bin", ".idx"))


def split(config: Config) -> str | None:
    """Return the shares of training, validation and test in data.train_path; None where they are files."""
    if config.data.validation_path or not config.data.train_path:
        return None
    share = 100 * config.data.validation_fraction
    return f"{100 - share:g},{share:g},0"


def experts(run: PresetRun) -> int:
    """Return the experts of a layer by the user's own setting; 0 if there are none."""
    digits = run.settings.get("num-experts", "").replace(",", "").strip()
    return int(digits) if digits.isdecimal() and len(digits) < 16 else 0


def problems(config: Config, run: PresetRun) -> Iterator[str]:
    yield from data_problems(config)
    if run.degrees.expert > 1 and not experts(run):
        yield (
            f"compute.expert_parallel: {run.degrees.expert}, but the model has no experts; add "
            "--program-set num-experts=N"
        )
    if experts(run) % run.degrees.expert:
        yield (
            f"compute.expert_parallel: {run.degrees.expert} does not divide the "
            f"{run.settings['num-experts']} experts of num-experts"
        )


def command(config: Config, run: PresetRun) -> PresetCommand:
    training, data, shape, degrees = config.training, config.data, config.model.architecture, run.degrees
    scales_rope, has_files = shape.rope_scaling.rope_type != "default", bool(data.validation_path)
    recompute = config.compute.activation_checkpointing
    options = {
        "num-layers": Planned(shape.num_layers, "model.architecture.num_layers"),
        "hidden-size": Planned(shape.hidden_size, "model.architecture.hidden_size"),
        "ffn-hidden-size": Planned(shape.intermediate_size, "model.architecture.intermediate_size"),
        "num-attention-heads": Planned(shape.num_attention_heads, "model.architecture.num_attention_heads"),
        "group-query-attention": True,
        "num-query-groups": Planned(shape.num_key_value_heads, "model.architecture.num_key_value_heads"),
        "seq-length": Planned(data.sequence_length, "data.sequence_length"),
        "max-position-embeddings": Planned(
            shape.max_position_embeddings, "model.architecture.max_position_embeddings"
        ),
        "position-embedding-type": "rope",
        "rotary-base": round(shape.rope_theta),
        "normalization": "RMSNorm",
        "norm-epsilon": shape.rms_norm_eps,
        "init-method-std": shape.initializer_range,
        "swiglu": True,
        "disable-bias-linear": True,
        "attention-dropout": 0,
        "hidden-dropout": 0,
        "untie-embeddings-and-output-weights": not shape.tie_word_embeddings,
        "use-rope-scaling": scales_rope,
        "rope-scaling-factor": shape.rope_scaling.factor if scales_rope else None,
        "tensor-model-parallel-size": Planned(degrees.tensor, "compute.tensor_parallel"),
        "pipeline-model-parallel-size": Planned(degrees.pipeline, "compute.pipeline_parallel"),
        "context-parallel-size": Planned(degrees.context, "compute.context_parallel"),
        "use-distributed-optimizer": True,
        # Saves on a shared file system and the first compilation may take longer than PyTorch's 10 minutes.
        "distributed-timeout-minutes": 30,
        "sequence-parallel": degrees.tensor > 1,
        "expert-model-parallel-size": Planned(
            degrees.expert if degrees.expert > 1 else None, "compute.expert_parallel"
        ),
        "recompute-granularity": None if recompute == "none" else recompute,
        "recompute-method": "uniform" if recompute == "full" else None,
        "recompute-num-layers": 1 if recompute == "full" else None,
        "micro-batch-size": Planned(degrees.micro_batch, "training.batch_size"),
        "global-batch-size": Planned(degrees.global_batch, "program.global_batch"),
        "train-iters": Planned(training.max_steps, "training.max_steps"),
        "lr": training.learning_rate,
        "min-lr": training.learning_rate * training.min_learning_rate_ratio,
        "lr-decay-style": training.lr_scheduler,
        "lr-warmup-iters": training.warmup_steps,
        "weight-decay": training.weight_decay,
        "adam-beta1": training.adam_beta1,
        "adam-beta2": training.adam_beta2,
        "adam-eps": training.adam_epsilon,
        "clip-grad": training.max_grad_norm or 0,
        "seed": Planned(training.seed, "training.seed"),
        "bf16": config.model.dtype == "bfloat16",
        "mock-data": not data.train_path,
        "train-data-path": data.train_path if has_files else None,
        "valid-data-path": data.validation_path,
        "data-path": None if has_files else data.train_path,
        "split": split(config),
        "tokenizer-type": "HuggingFaceTokenizer" if data.train_path else "NullTokenizer",
        "tokenizer-model": config.model.tokenizer if data.train_path else None,
        "vocab-size": None if data.train_path else shape.vocab_size,
        "save": Planned(run.checkpoints, "cluster.volume.mount_path"),
        "load": Planned(run.checkpoints, "cluster.volume.mount_path"),
        "save-interval": Planned(config.checkpointing.save_steps, "checkpointing.save_steps"),
        "log-interval": Planned(config.monitoring.log_steps, "monitoring.log_steps"),
        "eval-interval": training.validation_steps or training.max_steps,
        "eval-iters": training.validation_batches,
        "exit-signal-handler": True,
        "tensorboard-dir": Planned(f"{run.directory}/tensorboard", "program.metrics"),
    }
    words = (config.cluster.pod.python, str(config.program.script))
    return PresetCommand(
        words,
        options,
        environment=ENVIRONMENT,
        metrics=f"{run.directory}/tensorboard",
        data=data_files(config),
    )


PRESET = Preset(
    "megatron",
    command,
    problems,
    launcher="torchrun",
    checkpoints="iter_*/",
    option=("--", " "),
    memory=lambda _config: "megatron",
    uses=tuple(f"compute.{name}_parallel" for name in ("tensor", "pipeline", "context", "expert")),
    required={
        "program.script": "Megatron's pretrain_gpt.py in the image",
        "training.max_steps": "the number of optimizer steps",
    },
    paths={"program.script": "Megatron's pretrain_gpt.py in the image", **DATA_PATHS},
    planned={
        "train-samples": "training.max_steps",
        "rampup-batch-size": "program.global_batch",
        "exit-interval": "training.max_steps",
    },
)
