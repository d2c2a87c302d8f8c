"""What one device is asked to hold and to compute: the values of a configuration that memory depends on.

It estimates nothing; `activations`, `memory` and `flops` do.
"""

from dataclasses import dataclass
from enum import StrEnum

from trainyard.config.schema import ArchitectureConfig, Config


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
    """Data-parallel groups, each with its own batches."""
    gradient_buckets: bool = False
    """Gradients stay allocated between steps, as DDP's buckets do."""


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

    @property
    def tokens(self) -> int:
        """Tokens a forward pass on one device."""
        return self.batch_size * self.sequence_length

    @property
    def compute_bytes(self) -> int:
        """Bytes of a number in the matrix products."""
        return 2 if self.bfloat16 else 4

    @property
    def tokens_per_step(self) -> int:
        """Tokens an optimizer step over all devices."""
        return self.tokens * self.accumulation * self.layout.shards * self.layout.replicas


def workload_of(config: Config, *, on_gpu: bool) -> Workload:
    """The workload of `config` on each of its devices."""
    return Workload(
        architecture=config.model.architecture,
        batch_size=config.training.batch_size,
        accumulation=config.training.gradient_accumulation_steps,
        sequence_length=config.data.sequence_length,
        bfloat16=config.model.dtype == "bfloat16",
        compiled=config.compute.compile,
        on_gpu=on_gpu,
    )
