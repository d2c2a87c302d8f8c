"""Find combinations of values that are valid one by one and cannot be trained together.

`schema` checks types and ranges of single values.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from trainyard.config.kind import RunKind
from trainyard.config.pod_schema import find_schema_problems
from trainyard.config.registries import COMMAND, PRESETS
from trainyard.config.schema import (
    ArchitectureConfig,
    CheckpointingConfig,
    ComputeConfig,
    Config,
    DataConfig,
    MonitoringConfig,
    ProgramConfig,
    WandbConfig,
)

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class ImpossibleCombination:
    """A combination of valid values that cannot be trained."""

    keys: tuple[str, ...]
    """All keys involved, dotted; the reason is about the first one."""
    reason: str


def impossible_combinations(config: Config) -> Iterator[ImpossibleCombination]:
    """Yield every combination of values in `config` that are valid alone and cannot be trained together."""
    yield from _impossible_architecture(config.model.architecture)
    yield from _impossible_scaling(config.model.architecture)
    shape, training = config.model.architecture, config.training
    if config.data.sequence_length > shape.max_position_embeddings:
        yield ImpossibleCombination(
            ("data.sequence_length", "model.architecture.max_position_embeddings"),
            f"{config.data.sequence_length} is longer than model.architecture.max_position_embeddings, "
            f"{shape.max_position_embeddings}",
        )
    if config.model.tokenizer is None and shape.vocab_size < 256:
        yield ImpossibleCombination(
            ("model.architecture.vocab_size", "model.tokenizer"),
            f"{shape.vocab_size} is too small for bytes, which need 256",
        )
    if config.compute.cpu_offload and config.compute.strategy not in ("fsdp", "hsdp"):
        yield ImpossibleCombination(
            ("compute.cpu_offload", "compute.strategy"),
            f"offloading needs the strategy fsdp or hsdp, not {config.compute.strategy}",
        )
    yield from _impossible_mixture(config.data)
    learned = config.proof.learned
    if (
        learned.figure not in ("auto", "none", "reward", "val_loss", "loss")
        and learned.higher_is_better is None
    ):
        yield ImpossibleCombination(
            ("proof.learned.figure", "proof.learned.higher_is_better"),
            f"{learned.figure} may have to rise or to fall: set proof.learned.higher_is_better",
        )
    yield from _impossible_stream(config)
    yield from _impossible_saving(config.checkpointing)
    if config.kind is RunKind.TRAINER:
        yield from _impossible_cuts(config.compute, shape)
        yield from _impossible_degrees(config)
    if config.compute.gradient_compression != "none" and config.compute.strategy != "ddp":
        yield ImpossibleCombination(
            ("compute.gradient_compression", "compute.strategy"),
            f"compressing gradients needs the strategy ddp, not {config.compute.strategy}",
        )
    if training.decay_steps is not None and training.lr_scheduler != "warmup_stable_decay":
        yield ImpossibleCombination(
            ("training.decay_steps", "training.lr_scheduler"),
            f"only warmup_stable_decay reads it, not {training.lr_scheduler}: set it to null",
        )
    if config.recipe in PRESETS and training.lr_scheduler not in ("cosine", "constant"):
        yield ImpossibleCombination(
            ("training.lr_scheduler", "recipe"),
            f"only recipe pretrain has {training.lr_scheduler}; with {config.recipe} set it to cosine or "
            "constant, or use the program's own setting",
        )
    for place, reason in find_schema_problems(config.cluster.pod.template):
        yield ImpossibleCombination((f"cluster.pod.template.{place}".rstrip("."),), reason)
    if config.recipe == COMMAND:
        yield from _impossible_command(config.program)
        yield from _impossible_trackers(config.monitoring)
    elif training.epochs is None and training.max_steps is None:
        yield ImpossibleCombination(
            ("training.max_steps", "training.epochs"),
            "neither max_steps nor epochs is set, so the run would never end: set one",
        )


def _impossible_command(program: ProgramConfig) -> Iterator[ImpossibleCombination]:
    if not program.command:
        example = "name the program and its arguments, such as [python, train.py]"
        yield ImpossibleCombination(("program.command", "recipe"), f"missing for recipe command: {example}")
    if wrong := next((name for name in program.environment if not _VARIABLE.fullmatch(name)), None):
        reason = f"{wrong[:80]!r} is not the name of a variable, such as HF_HOME"
        yield ImpossibleCombination(("program.environment",), reason)


def _impossible_mixture(data: DataConfig) -> Iterator[ImpossibleCombination]:
    if not data.mixture:
        return
    for name, value in (
        ("train_path", data.train_path),
        ("hugging_face.dataset", data.hugging_face.dataset),
    ):
        if value is not None:
            reason = "is not read beside data.mixture: set it to null, or data.mixture to {}"
            yield ImpossibleCombination((f"data.{name}", "data.mixture"), reason)
    total = sum(data.mixture.values())
    small = next((path for path, weight in data.mixture.items() if weight < total / 1000), None)
    if small is not None:
        reason = f"{small} has less than a thousandth of the weights, which sum to {total:g}: leave it out"
        yield ImpossibleCombination(("data.mixture",), reason)


def _impossible_trackers(monitoring: MonitoringConfig) -> Iterator[ImpossibleCombination]:
    """Only a value that differs from the default was meant: a resolved configuration states them all."""
    default = MonitoringConfig()
    stated = {
        "tensorboard": (monitoring.tensorboard, default.tensorboard),
        **{
            f"wandb.{name}": (getattr(monitoring.wandb, name), getattr(default.wandb, name))
            for name in WandbConfig.model_fields
        },
    }
    for name, (given, usual) in stated.items():
        if given != usual:
            reason = "it is the program's own with recipe command: leave it out, and set it in the program"
            yield ImpossibleCombination((f"monitoring.{name}", "recipe"), reason)


def _impossible_stream(config: Config) -> Iterator[ImpossibleCombination]:
    """A stream excludes other data sources, and the length of an epoch is not known."""
    data, dataset = config.data, "data.hugging_face.dataset"
    if data.hugging_face.dataset is None:
        return
    for name, fix in (
        ("train_path", "set one of the two to null"),
        ("validation_path", "set it to null, and use data.hugging_face.validation_split"),
    ):
        if getattr(data, name) is not None:
            yield ImpossibleCombination((f"data.{name}", dataset), f"is not read beside {dataset}: {fix}")
    if config.training.epochs is not None:
        reason = f"the length of an epoch of {data.hugging_face.dataset} is not known: set it to null"
        yield ImpossibleCombination(
            ("training.epochs", dataset), f"{reason}, and training.max_steps to a number"
        )


def _impossible_saving(saving: CheckpointingConfig) -> Iterator[ImpossibleCombination]:
    if saving.keep_every is not None and saving.keep_every % saving.save_steps:
        yield ImpossibleCombination(
            ("checkpointing.keep_every", "checkpointing.save_steps"),
            f"{saving.keep_every} is not a multiple of checkpointing.save_steps, {saving.save_steps}, so "
            "most of these steps are never saved: set a multiple",
        )


def _impossible_degrees(config: Config) -> Iterator[ImpossibleCombination]:
    """The trainer has no pipelines, no divided sequences and no experts."""
    for name in ("pipeline_parallel", "context_parallel", "expert_parallel"):
        if (degree := getattr(config.compute, name)) > 1:
            yield ImpossibleCombination(
                (f"compute.{name}", "recipe"),
                f"{degree} needs the recipe of another program, such as megatron, not {config.recipe}",
            )


def _impossible_cuts(compute: ComputeConfig, shape: ArchitectureConfig) -> Iterator[ImpossibleCombination]:
    parts, key = compute.tensor_parallel, "compute.tensor_parallel"
    if parts == 1:
        return
    if compute.strategy not in ("fsdp", "hsdp"):
        yield ImpossibleCombination(
            (key, "compute.strategy"), f"{parts} needs the strategy fsdp or hsdp, not {compute.strategy}"
        )
    for name in ("num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size"):
        if (size := getattr(shape, name)) % parts:
            where = f"model.architecture.{name}"
            yield ImpossibleCombination((key, where), f"{parts} does not divide {where}, {size}")


def _impossible_scaling(shape: ArchitectureConfig) -> Iterator[ImpossibleCombination]:
    scaling = shape.rope_scaling
    if scaling.rope_type != "default" and scaling.high_freq_factor <= scaling.low_freq_factor:
        section = "model.architecture.rope_scaling"
        yield ImpossibleCombination(
            (f"{section}.high_freq_factor", f"{section}.low_freq_factor"),
            f"{scaling.high_freq_factor:g} is not above {section}.low_freq_factor, "
            f"{scaling.low_freq_factor:g}",
        )


def _impossible_architecture(shape: ArchitectureConfig) -> Iterator[ImpossibleCombination]:
    heads, sizes = "model.architecture.num_attention_heads", "model.architecture.hidden_size"
    if shape.hidden_size % shape.num_attention_heads:
        yield ImpossibleCombination(
            (heads, sizes), f"{shape.num_attention_heads} does not divide the hidden size {shape.hidden_size}"
        )
    elif (head_size := shape.hidden_size // shape.num_attention_heads) % 2:
        yield ImpossibleCombination(
            (heads, sizes), f"the head size {head_size} is odd; rotary positions need an even one"
        )
    if shape.num_attention_heads % shape.num_key_value_heads:
        yield ImpossibleCombination(
            ("model.architecture.num_key_value_heads", heads),
            f"{shape.num_key_value_heads} does not divide the {shape.num_attention_heads} attention heads",
        )
