"""The protocol of a recipe: a module that converts an order to the program that the pods run.

RecipeOrder ──problems──> nothing, or why not        RecipeOrder ──program──> Program
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Protocol

from trainyard.config.schema import Config
from trainyard.jobs.job_kind import JobKind
from trainyard.jobs.job_plan import SCRATCH, Program
from trainyard.plan.device import gpu_of
from trainyard.plan.instances import InstanceType
from trainyard.plan.minimum_memory import StateBytes, least_bytes
from trainyard.plan.parallel_degrees import Degrees, degrees_of
from trainyard.programs.checkpoints.found_checkpoint import CheckpointFormat

_GIB = 2**30


@dataclass(frozen=True)
class RecipeOrder:
    """The input of a recipe."""

    config: Config
    """The configuration that the pods train with."""
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
        """Optimizer steps of the whole run; 0 if they are not known."""
        return self.config.training.max_steps or 0


class JobRecipe(Protocol):
    """A module of this folder."""

    NAME: str
    """As in `--recipe`."""

    def problems(self, order: RecipeOrder, /) -> Iterator[str]:
        """Yield the reasons why this recipe cannot run the order."""
        ...

    def program(self, order: RecipeOrder, /) -> Program:
        """Return the program that the pods run, for an order without problems."""
        ...


class RecordedRecipe(JobRecipe, Protocol):
    """A recipe for another program; `scripts/run_program.py` keeps a run directory for it."""

    ON_FIRST_NODE: bool
    """True: only the first node's rows count; False: exactly one process, on any node, prints them."""

    CHECKPOINTS: tuple[CheckpointFormat, ...]
    """The formats of its own checkpoints; `checkpoint_formats` says what makes one complete."""

    LOG_FORM: str
    """The form of its log, of `programs.metrics.log_reader`."""


def workspace_of(config: Config) -> str:
    """The folder in a pod for runs and prepared data: on the claim, if there is one."""
    volume = config.cluster.volume
    return (volume.mount_path or "/checkpoints").rstrip("/") if volume.claim else SCRATCH


def common_problems(order: RecipeOrder) -> Iterator[str]:
    """Problems of every foreign program that is started once per GPU and trains by steps."""
    training, compute = order.config.training, order.config.compute
    yield from steps_problems(order)
    for name, found, kept in (
        ("compute.cpu_offload", compute.cpu_offload, False),
        ("compute.gradient_compression", compute.gradient_compression, "none"),
        ("compute.replicas", compute.replicas, 1),
        ("data.hugging_face.dataset", order.config.data.hugging_face.dataset, None),
        ("checkpointing.shared", order.config.checkpointing.shared, True),
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
    """Settings under which the program's log does not show how many steps were done."""
    training, every = order.config.training, order.config.monitoring.log_steps
    if training.max_steps is None:
        yield "training.max_steps: null, but this recipe counts steps; set it to a number"
    elif training.max_steps % every:
        yield (
            f"monitoring.log_steps: {every} does not divide training.max_steps, {training.max_steps}: the "
            "program would not log its last step"
        )
    if training.epochs is not None and training.max_steps is not None:
        yield (
            "training.epochs: this recipe counts steps; set it to null, and training.max_steps alone decides"
        )


def memory_problems(order: RecipeOrder, state: StateBytes, remedy: str = "take more GPUs") -> Iterator[str]:
    """A model that cannot fit, whatever else the program holds; `state` says how it divides the model."""
    if order.instance is None or not order.gpus:
        return
    needs, device = least_bytes(order.config, order.degrees, state), gpu_of(order.instance)
    if needs > device.usable_bytes:
        yield (
            f"{order.config.model.name} does not fit: a GPU needs at least {needs / _GIB:.1f} GiB, "
            f"{order.instance.gpu} has {device.usable_bytes / _GIB:.1f} GiB; {remedy}"
        )


def absolute(order: RecipeOrder, key: str, path: str | None, what: str) -> Iterator[str]:
    """A path in the image or on the volume that is missing or not absolute."""
    if path is None:
        yield f"{key}: not set; name {what}"
    elif not PurePosixPath(path).is_absolute():
        yield (
            f"{key}: {path} is not absolute; name the place in the pods, such as {order.run_directory}/{path}"
        )
