"""The protocol of a recipe: a module that converts an order to the program that the pods run.

RecipeOrder ──problems──> nothing, or why not        RecipeOrder ──program──> Program
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from trainyard.config.schema import Config
from trainyard.jobs.job_kind import JobKind
from trainyard.jobs.job_plan import SCRATCH, Program
from trainyard.plan.instances import InstanceType


@dataclass(frozen=True)
class RecipeOrder:
    """The input of a recipe."""

    config: Config
    """The configuration that the pods train with."""
    namespace: str
    job: str
    kind: JobKind
    nodes: int
    processes: int
    """Processes per node."""
    gpus: int = 0
    """GPUs per node."""
    instance: InstanceType | None = None
    """None if it is not in the catalogue."""
    command: tuple[str, ...] = ()
    """The user's own command; empty for other recipes."""

    @property
    def run_directory(self) -> str:
        # Namespaces have volumes of their own, which often lead to one file system.
        return f"{workspace_of(self.config)}/{self.namespace}/{self.job}"


class JobRecipe(Protocol):
    """A module of this folder, or a preset."""

    @property
    def NAME(self) -> str:  # noqa: N802
        """The value of `--recipe`."""
        ...

    def problems(self, order: RecipeOrder, /) -> Iterator[str]:
        """Yield the reasons why this recipe cannot run the order."""
        ...

    def program(self, order: RecipeOrder, /) -> Program:
        """Return the program that the pods run, for an order without problems."""
        ...


def workspace_of(config: Config) -> str:
    """The folder in a pod for runs and prepared data: on the claim, if there is one."""
    volume = config.cluster.volume
    return (volume.mount_path or "/checkpoints").rstrip("/") if volume.claim else SCRATCH
