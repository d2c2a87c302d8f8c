"""Check how another program divides a model over processes, and compute data-parallel size and batches.

    world size = data × tensor × pipeline × context        experts lie across data × context

The rules are those of Megatron-Core (`parallel_state`, `transformer_config`, `arguments.validate_args`);
torchtitan and verl have the same ones where they have the degree. The trainer of this repository has its own
mesh (`config.mesh`).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from trainyard.config.schema import Config


@dataclass(frozen=True)
class Degrees:
    """The division of a model and its batches over processes."""

    world: int
    """Processes of the complete job."""
    per_node: int
    """Processes of one node."""
    tensor: int
    pipeline: int
    context: int
    expert: int
    micro_batch: int
    """Sequences per forward pass."""
    requested_batch: int | None
    """Sequences per optimizer step, if the configuration requests a number."""
    accumulation: int
    """Forward passes per optimizer step, where `requested_batch` is None."""

    @property
    def model(self) -> int:
        """Processes that share one replica of the model."""
        return self.tensor * self.pipeline * self.context

    @property
    def data(self) -> int:
        """Replicas of the model, each with its own sequences; at least 1, also where degrees do not fit."""
        return max(1, self.world // self.model)

    @property
    def global_batch(self) -> int:
        """Sequences per optimizer step."""
        return self.requested_batch or self.micro_batch * self.accumulation * self.data

    @property
    def micro_batches(self) -> int:
        """Forward passes per optimizer step and replica, at least 1."""
        return max(1, self.global_batch // (self.micro_batch * self.data))


def degrees_of(config: Config, *, nodes: int, per_node: int) -> Degrees:
    """Return the degrees of `config` on so many nodes with so many processes each."""
    compute, training = config.compute, config.training
    return Degrees(
        world=nodes * per_node,
        per_node=per_node,
        tensor=compute.tensor_parallel,
        pipeline=compute.pipeline_parallel,
        context=compute.context_parallel,
        expert=compute.expert_parallel,
        micro_batch=training.batch_size,
        requested_batch=config.program.global_batch,
        accumulation=training.gradient_accumulation_steps,
    )


def degree_problems(config: Config, found: Degrees) -> Iterator[str]:
    """Yield a message for each degree or batch size that no program could train with."""
    yield from _world_problems(found)
    yield from _batch_problems(found)
    yield from _model_problems(config, found)


def unused_degrees(config: Config, program: str, *names: str) -> Iterator[str]:
    """Yield a message for each degree in `names` that the configuration sets and `program` lacks."""
    for name in names:
        if (degree := getattr(config.compute, name)) > 1:
            yield f"compute.{name}: {degree}, but recipe {program} does not have it; set it to 1"


def _world_problems(found: Degrees) -> Iterator[str]:
    if found.world % found.model:
        product = f"{found.tensor} × {found.pipeline} × {found.context} = {found.model}"
        yield (
            f"world size {found.world}: not divisible by tensor_parallel × pipeline_parallel × "
            f"context_parallel ({product})"
        )
    if found.tensor > found.per_node or found.per_node % found.tensor:
        yield (
            f"compute.tensor_parallel: {found.tensor} does not divide the {found.per_node} processes of "
            "a node; its collectives need the links within a node"
        )
    if found.expert > 1 and (found.data * found.context) % found.expert:
        yield (
            f"compute.expert_parallel: {found.expert} does not divide data × context = "
            f"{found.data * found.context}, over which experts are divided"
        )


def _batch_problems(found: Degrees) -> Iterator[str]:
    whole = found.micro_batch * found.data
    if found.requested_batch is not None and found.requested_batch % whole:
        yield (
            f"program.global_batch: {found.requested_batch} is not divisible by training.batch_size × "
            f"data-parallel size ({found.micro_batch} × {found.data} = {whole})"
        )


def _model_problems(config: Config, found: Degrees) -> Iterator[str]:
    shape, length = config.model.architecture, config.data.sequence_length
    for name, parts, key in (
        ("num_attention_heads", found.tensor, "tensor_parallel"),
        ("intermediate_size", found.tensor, "tensor_parallel"),
        ("num_layers", found.pipeline, "pipeline_parallel"),
    ):
        if (size := getattr(shape, name)) % parts:
            yield f"compute.{key}: {parts} does not divide model.architecture.{name}, {size}"
    groups = shape.num_key_value_heads
    if groups % found.tensor and found.tensor % groups:
        yield (
            f"compute.tensor_parallel: {found.tensor} is neither a divisor nor a multiple of "
            f"model.architecture.num_key_value_heads, {groups}"
        )
    if found.context > 1 and length % (2 * found.context):
        yield (
            f"compute.context_parallel: {found.context} needs data.sequence_length ({length}) divisible by "
            f"{2 * found.context}: each process has two pieces of a sequence"
        )
    if found.tensor > 1 and length % (found.tensor * found.context):
        yield (
            f"data.sequence_length: {length} is not divisible by tensor × context parallel "
            f"({found.tensor * found.context}), over which sequence parallelism divides it"
        )
