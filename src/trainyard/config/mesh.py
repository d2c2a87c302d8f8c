"""How many processes copy a model and how many share a copy: the arithmetic of `compute`.

It starts nothing; `training.parallel` builds the mesh, `plan.workload` reckons with it.
"""

from dataclasses import dataclass

from trainyard.config.schema import ComputeConfig
from trainyard.errors import ConfigError


@dataclass(frozen=True)
class MeshShape:
    """The processes of a run, replicas × shards."""

    replicas: int = 1
    """Whole copies of the model."""
    shards: int = 1
    """Processes that share one copy of weights, gradients and moments, each with its own batches."""

    @property
    def data(self) -> int:
        """Processes, or groups of them, that train on different sequences."""
        return self.replicas * self.shards


def mesh_shape(compute: ComputeConfig, processes: int) -> MeshShape:
    """The mesh of `compute` over `processes`; ConfigError when they cannot be shared out so."""
    if compute.strategy == "single":
        return MeshShape()
    if compute.strategy == "ddp":
        return MeshShape(replicas=processes)
    if compute.strategy == "fsdp":
        return MeshShape(shards=processes)
    if processes % compute.replicas:
        raise ConfigError(
            f"compute.replicas: {compute.replicas} does not divide the {processes} processes of this run. "
            "Nothing was started."
        )
    return MeshShape(replicas=compute.replicas, shards=processes // compute.replicas)
