"""The processes of one run: who this one is, and what they agree on between steps.

A world of one needs no process group and goes through the same calls. Bookkeeping has a gloo group of its
own, so that its collectives never interleave with those of training.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from trainyard.config.mesh import require_strategy
from trainyard.errors import TrainingFailedError, TrainyardError
from trainyard.run.failure import PROCESS_LOST, Failure, Kind
from trainyard.training.joining import no_long_wait

Result = TypeVar("Result")
_START_SECONDS = 300
_CONTROL_SECONDS = 1800
_FOR_EVER_DAYS = 365


@dataclass(frozen=True)
class World:
    """This process among the others."""

    rank: int
    size: int
    local_rank: int
    control: "dist.ProcessGroup | None"
    """The gloo group of the bookkeeping; None in a world of one."""

    @property
    def is_main(self) -> bool:
        """Whether this process writes the records that exist once."""
        return self.rank == 0

    def first_reason(self, reason: str | None) -> str | None:
        """The reason that any process has, by lowest rank; None when none has one."""
        if self.size == 1:
            return reason
        flag = torch.tensor([self.size if reason is None else self.rank])
        self._reduce(flag, dist.ReduceOp.MIN)
        holder = int(flag.item())
        return None if holder == self.size else self.broadcast(reason, source=holder)

    def all(self, flag: bool) -> bool:
        """Whether `flag` is true on all processes."""
        if self.size == 1:
            return flag
        least = torch.tensor([int(flag)])
        self._reduce(least, dist.ReduceOp.MIN)
        return bool(least.item())

    def total(self, value: float) -> float:
        """The sum of `value` over all processes, in float64 and in order of rank."""
        if self.size == 1:
            return value
        values = [torch.zeros(1, dtype=torch.float64) for _ in range(self.size)]
        with peers_expected():
            dist.all_gather(values, torch.tensor([value], dtype=torch.float64), group=self.control)
        return sum(float(item) for item in values)

    def broadcast(self, value: Any, *, source: int = 0) -> Any:
        """`value` as the process `source` has it."""
        if self.size == 1:
            return value
        box = [value]
        with peers_expected():
            dist.broadcast_object_list(box, src=source, group=self.control)
        return box[0]

    def on_main(self, work: Callable[[], Result]) -> Result:
        """What `work` gives on the main process, on every process; its TrainyardError or OSError likewise."""
        if self.size == 1:
            return work()
        error: Exception | None = None
        result: Result | None = None
        if self.is_main:
            try:
                result = work()
            except (TrainyardError, OSError) as failure:
                error = failure
        error, result = self.broadcast((error, result))
        if error is not None:
            raise error
        return cast(Result, result)

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, in order of rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        with peers_expected():
            dist.all_gather_object(values, value, group=self.control)
        return values

    def wait(self) -> None:
        """Until all processes are here."""
        if self.size > 1:
            with peers_expected():
                dist.barrier(group=self.control)

    def _reduce(self, tensor: torch.Tensor, operation: Any) -> None:
        with peers_expected():
            dist.all_reduce(tensor, op=operation, group=self.control)


@dataclass(frozen=True)
class DataShare:
    """This process's share of the sequences; the processes of a group, neighbours in rank, have the same."""

    world: World
    processes: int = 1
    """Of a group."""

    @property
    def rank(self) -> int:
        """Of the group."""
        return self.world.rank // self.processes

    @property
    def size(self) -> int:
        """Groups that have different sequences."""
        return self.world.size // self.processes

    def total(self, value: float) -> float:
        """The sum of `value` over all groups, of which each counts once."""
        counts = self.world.rank % self.processes == 0
        return self.world.total(value if counts else 0.0)


ALONE = World(rank=0, size=1, local_rank=0, control=None)


@contextmanager
def joined(
    device: str,
    strategy: str,
    environment: Mapping[str, str] = os.environ,
    *,
    told_to_end: Callable[[], bool] = lambda: False,
) -> Iterator[World]:
    """Join the world that torchrun's variables describe, and leave it at the end; without them, be alone.

    `device` (`cpu` or `cuda`) decides the backend: NCCL beside gloo on GPUs, gloo on CPUs. Raises ConfigError
    when several processes were started for a strategy of one. No collective of training waits longer than
    five minutes, but for `collectives_wait_for_ever`. Nobody who was told to end waits for the others.
    """
    size = int(environment.get("WORLD_SIZE", "1"))
    require_strategy(strategy, size)
    if size == 1 and strategy in ("single", "ddp"):
        yield ALONE
        return
    backend = "cuda:nccl,cpu:gloo" if device == "cuda" else "gloo"
    limit = timedelta(seconds=_START_SECONDS)
    if size == 1:
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend, timeout=limit, store=store, rank=0, world_size=1)
        world = ALONE
    else:
        with _others_expected(), no_long_wait(told_to_end):
            dist.init_process_group(backend, timeout=limit)
            world = _world(environment)
    try:
        yield world
    finally:
        dist.destroy_process_group()


@contextmanager
def _others_expected() -> Iterator[None]:
    """Say that the other processes did not come instead of what the network library says of it."""
    try:
        yield
    except dist.DistError as error:
        raise TrainingFailedError(
            f"The processes of this run did not all come together within {_START_SECONDS} s "
            f"({str(error).splitlines()[0]}).\nThe message of one that failed stands further up. Over "
            "several machines, see that all reach the rendezvous endpoint. Nothing was started."
        ) from error


def _world(environment: Mapping[str, str]) -> World:
    control = dist.new_group(backend="gloo", timeout=timedelta(seconds=_CONTROL_SECONDS))
    return World(dist.get_rank(), dist.get_world_size(), int(environment.get("LOCAL_RANK", "0")), control)


@contextmanager
def collectives_wait_for_ever() -> Iterator[None]:
    """While another watches, no collective gives up; afterwards each waits half an hour.

    A process that dies is noticed all the same: its connections close, and torchrun ends the others.
    """
    _limit_collectives(timedelta(days=_FOR_EVER_DAYS))
    try:
        yield
    finally:
        _limit_collectives(timedelta(seconds=_CONTROL_SECONDS))


def _limit_collectives(limit: timedelta) -> None:
    """Of every group, those of device meshes too. Torch has no public way; torchtitan takes this one."""
    if dist.is_initialized():
        for group in list(dist.distributed_c10d._world.pg_map):
            dist.distributed_c10d._set_pg_timeout(limit, group)


@contextmanager
def peers_expected() -> Iterator[None]:
    """Say that another process is gone instead of what the network library says of it."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if not dist.is_initialized() or not any(
            sign in text for sign in ("closed by peer", "Connection reset", "Timed out", "Broken pipe")
        ):
            raise
        cause = text.splitlines()[0]
        lost = TrainingFailedError(
            f"Rank {dist.get_rank()} lost another process of this run, which died or hung ({cause}).\n"
            "Its own message stands further up. Go on with --resume auto once its cause is mended."
        )
        lost.failure = Failure(Kind.PROCESS_LOST, mend=PROCESS_LOST)
        raise lost from error
