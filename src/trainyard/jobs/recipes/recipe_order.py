"""What every recipe is to the rest: a module that turns an order into the program that the pods run.

RecipeOrder ──problems──> nothing, or why not        RecipeOrder ──program──> Program
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Protocol

from trainyard.config.schema import Config
from trainyard.jobs.job_plan import SCRATCH, Program
from trainyard.plan.instances import InstanceType
from trainyard.plan.parallel_degrees import Degrees, degrees_of

Row = dict[str, Any]
ReadRow = Callable[[str], Row | None]
"""Reads a row of metrics from a line that a program prints; None where the line is none."""
RAY_KINDS = ("rayjob", "raycluster")


@dataclass(frozen=True)
class RecipeOrder:
    """What a recipe is rendered from."""

    config: Config
    """As the pods train by it."""
    job: str
    kind: str
    """As in `cluster.kind`, never auto."""
    nodes: int
    processes: int
    """Of one node."""
    gpus: int = 0
    """Of one node."""
    instance: InstanceType | None = None
    """None where it is not in the catalogue."""
    command: tuple[str, ...] = ()
    """The user's own command; other recipes have none."""

    @property
    def degrees(self) -> Degrees:
        return degrees_of(self.config, nodes=self.nodes, per_node=self.processes)

    @property
    def run_directory(self) -> str:
        return f"{workspace_of(self.config)}/{self.job}"

    @property
    def own_checkpoints(self) -> str:
        """The folder of the program's own checkpoints, in the program's own layout."""
        return f"{self.run_directory}/program"

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole run; 0 where they are not known."""
        return self.config.training.max_steps or 0


class Recipe(Protocol):
    """A module of this folder."""

    NAME: str
    """As in `--recipe`."""

    def problems(self, order: RecipeOrder, /) -> Iterator[str]:
        """Why this recipe cannot run the order."""
        ...

    def program(self, order: RecipeOrder, /) -> Program:
        """What the pods run; for an order without problems."""
        ...


class RecordedRecipe(Recipe, Protocol):
    """A recipe of another program, of which `scripts/run_program.py` keeps a run directory."""

    ON_FIRST_NODE: bool
    """Whether its rows count on the first node only; else one process, anywhere, prints them."""

    def row_of(self, line: str, /) -> Row | None:
        """The row of metrics that a line of its log shows; None for any other line."""
        ...

    def checkpoint_name(self, tracked: str, /) -> tuple[int, str] | None:
        """The step and the folder of the newest checkpoint, from the text of the tracker; None for none."""
        ...

    TRACKER: str
    """The file beside the checkpoints that names the newest complete one."""


def workspace_of(config: Config) -> str:
    """The folder in a pod for runs and prepared data: on the claim, if there is one."""
    volume = config.cluster.volume
    return (volume.mount_path or "/checkpoints").rstrip("/") if volume.claim else SCRATCH


def common_problems(order: RecipeOrder) -> Iterator[str]:
    """What holds for every program of others that is started once per GPU and trains by steps."""
    training, compute = order.config.training, order.config.compute
    yield from steps_problems(order)
    for name, found, kept in (
        ("compute.cpu_offload", compute.cpu_offload, False),
        ("compute.gradient_compression", compute.gradient_compression, "none"),
        ("compute.replicas", compute.replicas, 1),
        ("data.hugging_face.dataset", order.config.data.hugging_face.dataset, None),
    ):
        if found != kept:
            yield f"{name}: {found} is for the trainer of this repository; leave it out with this recipe"
    if order.gpus and order.processes != order.gpus:
        yield f"--nproc-per-node {order.processes}: this recipe has a process per GPU, {order.gpus} of a node"
    if training.warmup_steps >= order.steps > 0:
        yield (
            f"training.warmup_steps: {training.warmup_steps} are not below the {order.steps} of "
            "training.max_steps"
        )


def steps_problems(order: RecipeOrder) -> Iterator[str]:
    """What makes the steps that were done impossible to tell from the program's log."""
    training, every = order.config.training, order.config.monitoring.log_steps
    if training.max_steps is None:
        yield "training.max_steps: null, but this recipe counts steps; set it to a number"
    elif training.max_steps % every:
        yield (
            f"monitoring.log_steps: {every} does not divide training.max_steps, {training.max_steps}: "
            "the program "
            "would not log its last step"
        )
    if training.epochs is not None and training.max_steps is not None:
        yield (
            "training.epochs: this recipe counts steps; set it to null, and training.max_steps alone decides"
        )


def absolute(order: RecipeOrder, key: str, path: str | None, what: str) -> Iterator[str]:
    """A path in the image or on the volume that is missing or not absolute."""
    if path is None:
        yield f"{key}: not set; name {what}"
    elif not PurePosixPath(path).is_absolute():
        yield (
            f"{key}: {path} is not absolute; name the place in the pods, such as {order.run_directory}/{path}"
        )
