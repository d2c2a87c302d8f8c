"""Workload of one device: the values of a configuration that decide memory and computation.

It estimates nothing; `activations`, `device_memory` and `flops` do.
"""

from dataclasses import dataclass
from enum import StrEnum

from trainyard.config.mesh import mesh_shape
from trainyard.config.parameters import OPTIMIZER_BYTES
from trainyard.config.schema import ArchitectureConfig, ComputeConfig, Config


class Recomputation(StrEnum):
    """Activation checkpointing: activations that the backward pass recomputes instead of keeping them."""

    NONE = "none"
    SELECTIVE = "selective"
    """Recompute all but matrix products and attention."""
    FULL = "full"
    """Recompute all but the input of each block."""


@dataclass(frozen=True)
class Layout:
    """Distribution of a model and its batches over devices."""

    shards: int = 1
    """Devices that share one copy of weights, gradients and optimizer state."""
    replicas: int = 1
    """Copies of the model."""
    tensor: int = 1
    """Devices that share each matrix and train on the same batches."""
    sharded: bool = False
    """Whether `fully_shard` is used, even on one device; it casts the weights itself, without autocast."""
    gradient_buckets: bool = False
    """Whether gradients stay allocated between steps, as DDP's buckets do."""
    compressed: bool = False
    """Whether PowerSGD exchanges low-rank gradients and keeps the error for the next step."""
    offloaded: bool = False
    """Whether shards, gradients and optimizer state are in main memory."""

    @property
    def data(self) -> int:
        """Data-parallel size."""
        return self.shards * self.replicas

    @property
    def devices(self) -> int:
        return self.data * self.tensor

    @property
    def parts(self) -> int:
        """Number of parts of one copy of weights, gradients and optimizer state."""
        return self.shards * self.tensor


@dataclass(frozen=True)
class TrainingWorkload:
    """Training step of one device."""

    architecture: ArchitectureConfig
    batch_size: int
    """Sequences per forward pass on one device."""
    accumulation: int
    """Forward passes per optimizer step."""
    sequence_length: int
    bfloat16: bool
    """Whether computation is in bfloat16 with float32 weights (autocast)."""
    compiled: bool
    on_gpu: bool
    recomputation: Recomputation = Recomputation.NONE
    layout: Layout = Layout()
    separate: bool = False
    """Whether attention keeps the documents of a sample apart."""
    optimizer_bytes: int = OPTIMIZER_BYTES
    """Bytes per parameter of the optimizer's state."""
    staged: bool = False
    """Whether checkpoints are staged in main memory and written in the background."""

    @property
    def tokens(self) -> int:
        """Tokens per forward pass on one device."""
        return self.batch_size * self.sequence_length

    @property
    def compute_bytes(self) -> int:
        """Bytes per element in matrix products."""
        return 2 if self.bfloat16 else 4

    @property
    def residual_bytes(self) -> int:
        """Bytes per element between blocks: float32, unless FSDP casts the weights."""
        return self.compute_bytes if self.layout.sharded else 4

    @property
    def tokens_per_step(self) -> int:
        """Tokens per optimizer step over all devices."""
        return self.tokens * self.accumulation * self.layout.data


def training_workload(config: Config, *, on_gpu: bool, processes: int = 1) -> TrainingWorkload:
    """Return the workload of `config` on each of `processes` devices.

    Raises ConfigError when the devices do not divide by the degrees in `compute`.
    """
    return TrainingWorkload(
        architecture=config.model.architecture,
        batch_size=config.training.batch_size,
        accumulation=config.training.gradient_accumulation_steps,
        sequence_length=config.data.sequence_length,
        bfloat16=config.model.dtype == "bfloat16",
        compiled=config.compute.compile,
        on_gpu=on_gpu,
        recomputation=Recomputation(config.compute.activation_checkpointing),
        layout=_layout(config.compute, on_gpu=on_gpu, processes=processes),
        separate=config.data.packing == "separate",
        staged=config.checkpointing.mode != "sync",
    )


def _layout(compute: ComputeConfig, *, on_gpu: bool, processes: int) -> Layout:
    mesh = mesh_shape(compute, processes)
    copied, compressed = compute.strategy == "ddp" and processes > 1, compute.gradient_compression != "none"
    return Layout(
        shards=mesh.shards,
        replicas=mesh.replicas,
        tensor=mesh.tensor,
        sharded=compute.strategy in ("fsdp", "hsdp"),
        gradient_buckets=copied and not compressed,
        compressed=copied and compressed,
        offloaded=compute.cpu_offload and on_gpu,
    )
