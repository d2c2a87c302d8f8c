"""Find combinations of values that are valid one by one and cannot be trained together.

`schema` checks types and ranges of single values.
"""

import re
from collections.abc import Iterator

from trainyard.config.pod_schema import find_schema_problems
from trainyard.config.registries import COMMAND, PRESETS
from trainyard.config.schema import ArchitectureConfig, Config, MonitoringConfig, WandbConfig

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OWN_OF_PROGRAM = "it is the program's own with recipe {}: leave it out, and set it in the program"


_Found = Iterator[tuple[str, str]]
"""The keys involved, separated by blanks, and the reason, which is about the first one."""


def impossible_combinations(config: Config) -> _Found:
    """Yield every combination of values in `config` that are valid alone and cannot be trained together."""
    shape, training, compute = config.model.architecture, config.training, config.compute
    yield from _find_in_architecture(shape)
    if config.data.sequence_length > shape.max_position_embeddings:
        limit = "model.architecture.max_position_embeddings"
        yield (
            f"data.sequence_length {limit}",
            f"{config.data.sequence_length} is longer than {limit}, {shape.max_position_embeddings}",
        )
    if config.model.tokenizer is None and shape.vocab_size < 256:
        yield (
            "model.architecture.vocab_size model.tokenizer",
            f"{shape.vocab_size} is too small for bytes, which need 256",
        )
    needs = "{} needs the strategy {}, not {}".format
    if compute.cpu_offload and compute.strategy not in ("fsdp", "hsdp"):
        yield "compute.cpu_offload compute.strategy", needs("offloading", "fsdp or hsdp", compute.strategy)
    yield from _find_in_data(config)
    learned = config.proof.learned
    usual = ("auto", "none", "reward", "val_loss", "loss")
    if learned.figure not in usual and learned.higher_is_better is None:
        yield (
            "proof.learned.figure proof.learned.higher_is_better",
            f"{learned.figure} may have to rise or to fall: set proof.learned.higher_is_better",
        )
    saving = config.checkpointing
    if saving.keep_every is not None and saving.keep_every % saving.save_steps:
        yield (
            "checkpointing.keep_every checkpointing.save_steps",
            f"{saving.keep_every} is not a multiple of checkpointing.save_steps, {saving.save_steps}, so "
            "most of these steps are never saved: set a multiple",
        )
    if not config.is_program:
        yield from _find_in_parallelism(config)
    if compute.gradient_compression != "none" and compute.strategy != "ddp":
        yield (
            "compute.gradient_compression compute.strategy",
            needs("compressing gradients", "ddp", compute.strategy),
        )
    if training.decay_steps is not None and training.lr_scheduler != "warmup_stable_decay":
        yield (
            "training.decay_steps training.lr_scheduler",
            f"only warmup_stable_decay reads it, not {training.lr_scheduler}: set it to null",
        )
    if config.recipe in PRESETS and training.lr_scheduler not in ("cosine", "constant"):
        yield (
            "training.lr_scheduler recipe",
            f"only recipe pretrain has {training.lr_scheduler}; with {config.recipe} set it to cosine or "
            "constant, or use the program's own setting",
        )
    if config.is_program and config.monitoring.tensorboard != MonitoringConfig().tensorboard:
        yield "monitoring.tensorboard recipe", _OWN_OF_PROGRAM.format(config.recipe)
    if config.recipe == COMMAND:
        yield from _find_in_command(config)
    elif training.epochs is None and training.max_steps is None:
        yield (
            "training.max_steps training.epochs",
            "neither max_steps nor epochs is set, so the run would never end: set one",
        )
    for place, reason in find_schema_problems(config.cluster.pod.template):
        yield f"cluster.pod.template.{place}".rstrip("."), reason


def _find_in_command(config: Config) -> _Found:
    program, monitoring = config.program, config.monitoring
    if not program.command:
        example = "name the program and its arguments, such as [python, train.py]"
        yield "program.command recipe", f"missing for recipe command: {example}"
    if wrong := next((name for name in program.environment if not _VARIABLE.fullmatch(name)), None):
        yield "program.environment", f"{wrong[:80]!r} is not the name of a variable, such as HF_HOME"
    # Only a value that differs from the default was meant: a resolved configuration states them all.
    default = MonitoringConfig()
    for name in WandbConfig.model_fields:
        if getattr(monitoring.wandb, name) != getattr(default.wandb, name):
            yield f"monitoring.wandb.{name} recipe", _OWN_OF_PROGRAM.format(config.recipe)


def _find_in_data(config: Config) -> _Found:
    data = config.data
    dataset, streamed = data.hugging_face.dataset, "data.hugging_face.dataset"
    if dataset is None:
        return
    for name, fix in (
        ("train_path", "set one of the two to null"),
        ("validation_path", "set it to null, and use data.hugging_face.validation_split"),
    ):
        if getattr(data, name) is not None:
            yield f"data.{name} {streamed}", f"is not read beside {streamed}: {fix}"
    if config.training.epochs is not None:
        yield (
            f"training.epochs {streamed}",
            f"the length of an epoch of {dataset} is not known: set it to null, and training.max_steps to a "
            "number",
        )


def _find_in_parallelism(config: Config) -> _Found:
    """The trainer has no pipelines, no divided sequences and no experts."""
    compute, shape = config.compute, config.model.architecture
    for name in ("pipeline_parallel", "context_parallel", "expert_parallel"):
        if (degree := getattr(compute, name)) > 1:
            yield (
                f"compute.{name} recipe",
                f"{degree} needs the recipe of another program, such as megatron, not {config.recipe}",
            )
    parts, key = compute.tensor_parallel, "compute.tensor_parallel"
    if parts == 1:
        return
    if compute.strategy not in ("fsdp", "hsdp"):
        yield f"{key} compute.strategy", f"{parts} needs the strategy fsdp or hsdp, not {compute.strategy}"
    for name in ("num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size"):
        if (size := getattr(shape, name)) % parts:
            where = f"model.architecture.{name}"
            yield f"{key} {where}", f"{parts} does not divide {where}, {size}"


def _find_in_architecture(shape: ArchitectureConfig) -> _Found:
    heads, sizes = "model.architecture.num_attention_heads", "model.architecture.hidden_size"
    if shape.hidden_size % shape.num_attention_heads:
        reason = f"{shape.num_attention_heads} does not divide the hidden size {shape.hidden_size}"
        yield f"{heads} {sizes}", reason
    elif (head_size := shape.hidden_size // shape.num_attention_heads) % 2:
        yield f"{heads} {sizes}", f"the head size {head_size} is odd; rotary positions need an even one"
    if shape.num_attention_heads % shape.num_key_value_heads:
        yield (
            f"model.architecture.num_key_value_heads {heads}",
            f"{shape.num_key_value_heads} does not divide the {shape.num_attention_heads} attention heads",
        )
    scaling, section = shape.rope_scaling, "model.architecture.rope_scaling"
    if scaling.rope_type != "default" and scaling.high_freq_factor <= scaling.low_freq_factor:
        yield (
            f"{section}.high_freq_factor {section}.low_freq_factor",
            f"{scaling.high_freq_factor:g} is not above {section}.low_freq_factor, "
            f"{scaling.low_freq_factor:g}",
        )
