"""Compute the mesh: how many replicas the processes hold, and how many processes share one replica.

It starts nothing; `training.model.parallel` builds the mesh, and `plan.workload` uses the numbers.
"""

from dataclasses import dataclass

from trainyard.config.registries import RECIPES
from trainyard.config.schema import ComputeConfig, Config
from trainyard.errors import ConfigError


@dataclass(frozen=True)
class MeshShape:
    """Shape of the process mesh: replicas × shards × tensor; tensor is the innermost dimension."""

    replicas: int = 1
    """Replicas of the model."""
    shards: int = 1
    """Shards of one replica's weights, gradients and optimizer state; each trains on its own batches."""
    tensor: int = 1
    """Processes that share each matrix and train on the same sequences."""

    @property
    def data(self) -> int:
        """Data-parallel size: groups of `tensor` processes that train on different sequences."""
        return self.replicas * self.shards


def mesh_shape(compute: ComputeConfig, processes: int) -> MeshShape:
    """Return the mesh of `compute` over `processes`. Raises ConfigError when the sizes do not divide."""
    if compute.strategy == "single":
        return MeshShape()
    if compute.strategy == "ddp":
        return MeshShape(replicas=processes)
    tensor = compute.tensor_parallel
    replicas = compute.replicas if compute.strategy == "hsdp" else 1
    groups = _divide(processes, "tensor_parallel", tensor, "processes of this run")
    shards = _divide(groups, "replicas", replicas, "processes of this run" if tensor == 1 else "groups")
    return MeshShape(replicas, shards, tensor)


def require_own_recipe(config: Config) -> None:
    """Raise ConfigError if the recipe is not one of this repository's trainer."""
    if config.is_program:
        raise ConfigError(
            f"recipe: {config.recipe} is another program's: start it with trainyard run, or as a job with "
            f"trainyard job deploy. The trainer has {' and '.join(RECIPES)}. Nothing was started."
        )


def require_strategy(strategy: str, processes: int) -> None:
    """Raise ConfigError for several processes with strategy single."""
    if processes > 1 and strategy == "single":
        raise ConfigError(
            f"compute.strategy is single, which is for one process, not for {processes}: each would train "
            "alone and all would write the same files. Use --set compute.strategy=ddp or fsdp. "
            "Nothing was started."
        )


def _divide(count: int, key: str, parts: int, what: str) -> int:
    if count % parts:
        raise ConfigError(f"compute.{key}: {parts} does not divide the {count} {what}. Nothing was started.")
    return count // parts


def require_processes(config: Config, processes: int) -> None:
    """Raise ConfigError if this number of processes of the trainer cannot train `config`."""
    require_own_recipe(config)
    require_strategy(config.compute.strategy, processes)
    mesh_shape(config.compute, processes)
