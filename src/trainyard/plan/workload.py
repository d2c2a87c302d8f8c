"""What one device is asked to hold and to compute: the values of a configuration that memory depends on.

It estimates nothing; `activations`, `memory` and `flops` do.
"""

from dataclasses import dataclass
from enum import StrEnum

from trainyard.config.mesh import mesh_shape
from trainyard.config.schema import ArchitectureConfig, ComputeConfig, Config


class Recomputation(StrEnum):
    """Activation checkpointing: what is computed a second time in the backward pass instead of being kept."""

    NONE = "none"
    SELECTIVE = "selective"
    """Everything but the products of matrices and the attention."""
    FULL = "full"
    """Everything but the input of each block."""


@dataclass(frozen=True)
class Layout:
    """How a model and its batches lie over devices."""

    shards: int = 1
    """Devices that share one copy of weights, gradients and moments."""
    replicas: int = 1
    """Copies of the model."""
    tensor: int = 1
    """Devices that cut each matrix among them and have the same batches."""
    sharded: bool = False
    """Put there by `fully_shard`, be it over one device: it casts the weights itself, without autocast."""
    gradient_buckets: bool = False
    """Gradients stay allocated between steps, as DDP's buckets do."""
    compressed: bool = False
    """Gradients are exchanged as thin matrices; what that leaves out is kept for the next step."""
    offloaded: bool = False
    """Shards, gradients and moments are in the memory of the host."""

    @property
    def data(self) -> int:
        """Devices, or groups of them, with batches of their own."""
        return self.shards * self.replicas

    @property
    def devices(self) -> int:
        return self.data * self.tensor

    @property
    def parts(self) -> int:
        """What one copy of weights, gradients and moments is divided into."""
        return self.shards * self.tensor


@dataclass(frozen=True)
class Workload:
    """The training step of one device."""

    architecture: ArchitectureConfig
    batch_size: int
    """Sequences a forward pass on one device."""
    accumulation: int
    """Forward passes an optimizer step."""
    sequence_length: int
    bfloat16: bool
    """Computed in bfloat16 over float32 weights (autocast)."""
    compiled: bool
    on_gpu: bool
    recomputation: Recomputation = Recomputation.NONE
    layout: Layout = Layout()
    separate: bool = False
    """The documents of a sample are kept apart, by a mask over all pairs of its tokens."""
    staged: bool = False
    """What is saved is copied into main memory first, and written from there behind training."""

    @property
    def tokens(self) -> int:
        """Tokens a forward pass on one device."""
        return self.batch_size * self.sequence_length

    @property
    def compute_bytes(self) -> int:
        """Bytes of a number in the matrix products."""
        return 2 if self.bfloat16 else 4

    @property
    def residual_bytes(self) -> int:
        """Bytes of a number between the blocks: float32, unless sharding casts the weights themselves."""
        return self.compute_bytes if self.layout.sharded else 4

    @property
    def tokens_per_step(self) -> int:
        """Tokens an optimizer step over all devices."""
        return self.tokens * self.accumulation * self.layout.data


def workload_of(config: Config, *, on_gpu: bool, processes: int = 1) -> Workload:
    """The workload of `config` on each of its devices, of which `processes` are there.

    Raises ConfigError when they cannot be shared out as `compute` says.
    """
    return Workload(
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
