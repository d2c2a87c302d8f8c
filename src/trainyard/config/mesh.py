"""How many processes copy a model and how many share a copy: the arithmetic of `compute`.

It starts nothing; `training.parallel` builds the mesh, `plan.workload` reckons with it.
"""

from dataclasses import dataclass

from trainyard.config.schema import ComputeConfig
from trainyard.errors import ConfigError


@dataclass(frozen=True)
class MeshShape:
    """The processes of a run: replicas × shards × tensor, of which the last are neighbours in rank."""

    replicas: int = 1
    """Whole copies of the model."""
    shards: int = 1
    """Parts that one copy of weights, gradients and moments is cut into, each with its own batches."""
    tensor: int = 1
    """Processes that cut each matrix among them and train on the same sequences."""

    @property
    def data(self) -> int:
        """Processes, or groups of `tensor`, that train on different sequences."""
        return self.replicas * self.shards


def mesh_shape(compute: ComputeConfig, processes: int) -> MeshShape:
    """The mesh of `compute` over `processes`; ConfigError when they cannot be shared out so."""
    if compute.strategy == "single":
        return MeshShape()
    if compute.strategy == "ddp":
        return MeshShape(replicas=processes)
    tensor = compute.tensor_parallel
    replicas = compute.replicas if compute.strategy == "hsdp" else 1
    groups = _shared_out(processes, "tensor_parallel", tensor, "processes of this run")
    shards = _shared_out(groups, "replicas", replicas, "processes of this run" if tensor == 1 else "groups")
    return MeshShape(replicas, shards, tensor)


def require_strategy(strategy: str, processes: int) -> None:
    """Raise ConfigError when several processes were started for a run that is to be one."""
    if processes > 1 and strategy == "single":
        raise ConfigError(
            f"{processes} processes were started, but compute.strategy is single: each would train alone and "
            "all would write the same files. Use --set compute.strategy=ddp or fsdp. Nothing was started."
        )


def _shared_out(count: int, key: str, parts: int, what: str) -> int:
    if count % parts:
        raise ConfigError(f"compute.{key}: {parts} does not divide the {count} {what}. Nothing was started.")
    return count // parts
