"""The processes of one run: the rank of this process, and the collectives for agreements between steps.

A world of size one needs no process group and uses the same calls. Control messages have their own gloo
group, so that their collectives never interleave with those of training.
"""

import atexit
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from trainyard.config.mesh import require_strategy
from trainyard.errors import StoppedError, TrainingFailedError, TrainyardError
from trainyard.run.failure import PROCESS_LOST, Failure, FailureKind
from trainyard.run.waiting import describe_wait
from trainyard.training.runtime.stop_signals import limit_wait

Result = TypeVar("Result")
_START_SECONDS = 300
# The limit of control messages, and of collectives that no watchdog watches.
CONTROL_SECONDS = 1800
_ABORT_SECONDS = 5.0
# The processes wait this long for one that prepares its data, or for the main one to record the outcome.
_PREPARATION_HOURS = 24


@dataclass(frozen=True)
class World:
    """The rank of this process and the size of the world."""

    rank: int
    size: int
    local_rank: int
    control: "dist.ProcessGroup | None"
    """The gloo group for control messages; None in a world of size one."""
    folders: tuple[int, ...] = field(default=(), kw_only=True)
    """The number of the run directory that each rank writes to; empty when all share one."""

    @property
    def is_main(self) -> bool:
        """Return whether this process writes the records that exist once per run."""
        return self.rank == 0

    @property
    def folder(self) -> int:
        """The number of the run directory that this process writes to; that of the main process is 0."""
        return self.folders[self.rank] if self.folders else 0

    @property
    def folder_count(self) -> int:
        """The number of run directories: one, or one per machine."""
        return max(self.folders, default=0) + 1

    @property
    def owns_folder(self) -> bool:
        """Return whether this process completes the files that the processes of its run directory wrote."""
        return self.folders.index(self.folder) == self.rank if self.folders else self.is_main

    def first_reason(self, reason: str | None) -> str | None:
        """The reason of the lowest rank that has one; None when no rank has one."""
        if self.size == 1:
            return reason
        holder = self._least(self.size if reason is None else self.rank)
        return None if holder == self.size else self.broadcast(reason, source=holder)

    def all(self, flag: bool) -> bool:
        """Return whether `flag` is true on all processes."""
        return bool(self._least(int(flag)))

    def _least(self, number: int) -> int:
        """Return the least number of all processes: at each step far cheaper than gathering them."""
        if self.size == 1:
            return number
        least = torch.tensor([number])
        with explain_lost_peers():
            dist.all_reduce(least, op=dist.ReduceOp.MIN, group=self.control)
        return int(least.item())

    def total(self, value: float) -> float:
        """The sum of `value` over all processes, in float64 and in order of rank."""
        if self.size == 1:
            return value
        values = [torch.zeros(1, dtype=torch.float64) for _ in range(self.size)]
        with explain_lost_peers():
            dist.all_gather(values, torch.tensor([value], dtype=torch.float64), group=self.control)
        return sum(float(item) for item in values)

    def broadcast(self, value: Any, *, source: int = 0) -> Any:
        """`value` of the process `source`."""
        if self.size == 1:
            return value
        box = [value]
        with explain_lost_peers():
            dist.broadcast_object_list(box, src=source, group=self.control)
        return box[0]

    def run_on_main(self, work: Callable[[], Result]) -> Result:
        """Run `work` on the main process and return its result on every process.

        A TrainyardError or OSError of `work` is raised on every process.
        """
        return self._run_where(self.is_main, work)

    def run_on_owners(self, work: Callable[[], Result]) -> Result:
        """Run `work` once per run directory and return the main process's result on every process.

        A TrainyardError or OSError of `work` in one of them is raised on every process.
        """
        return self._run_where(self.owns_folder, work)

    def _run_where(self, is_here: bool, work: Callable[[], Result]) -> Result:
        error, result = attempt(work) if is_here else (None, None)
        answers = self.gather((error, result if self.is_main else None))
        if first := error or next((other for other, _ in answers if other is not None), None):
            raise first
        return cast(Result, answers[0][1])

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, in order of rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        with explain_lost_peers():
            dist.all_gather_object(values, value, group=self.control)
        return values

    def run_on_each(self, work: Callable[[], Result]) -> Result:
        """Run `work`, which may take hours, in the first process of each machine, then in the others.

        The others find what the first one has made. If it fails in one process with a TrainyardError or
        OSError, all raise that error or their own.
        """
        if self.size == 1:
            return work()
        result: Result | None = None
        for is_first in (True, False):
            error = None
            if (self.local_rank == 0) == is_first:
                error, result = attempt(work)
            with self._long_wait("the other processes to prepare their data"):
                errors = self.gather(error)
            if failed := error or next(filter(None, errors), None):
                raise failed
        return cast(Result, result)

    def wait_for_main(self) -> None:
        """Wait until the main process has called this, which waits for nobody.

        Raises TrainingFailedError when it ends before. It may hash a large state first, so the wait is long.
        """
        if self.size == 1:
            return
        with self._long_wait("the main process to record the outcome"):
            try:
                self.broadcast(None)
            except TrainingFailedError:
                if not self.is_main:  # a process that is gone needs no answer of the main one
                    raise

    @contextmanager
    def _long_wait(self, what: str) -> Iterator[None]:
        """Let control messages of the body take a day, and say in the log what this process waits for."""
        dist.set_timeout(timedelta(hours=_PREPARATION_HOURS), self.control)
        with describe_wait(what, _PREPARATION_HOURS * 3600.0):
            yield
        dist.set_timeout(timedelta(seconds=CONTROL_SECONDS), self.control)


@dataclass(frozen=True)
class DataShare:
    """This process's share of the sequences. Processes of one group get the same share.

    A group is a range of neighbouring ranks.
    """

    world: World
    processes: int = 1
    """The number of processes per group."""

    @property
    def rank(self) -> int:
        """The number of this group."""
        return self.world.rank // self.processes

    @property
    def size(self) -> int:
        """The number of groups. Each group has different sequences."""
        return self.world.size // self.processes

    def total(self, value: float) -> float:
        """The sum of `value` over all groups; each group counts once."""
        counts = self.world.rank % self.processes == 0
        return self.world.total(value if counts else 0.0)


ALONE = World(rank=0, size=1, local_rank=0, control=None)
_joined = threading.Event()  # set for good once this process has joined a group


def attempt(work: Callable[[], Result]) -> tuple[Exception | None, Result | None]:
    """Run `work`; return its TrainyardError or OSError, if it raised one, and its result."""
    try:
        return None, work()
    except (TrainyardError, OSError) as error:
        return error, None


@contextmanager
def join_world(
    device: str, strategy: str, *, is_stopping: Callable[[], bool] = lambda: False
) -> Iterator[World]:
    """Join the world that torchrun's variables describe, and leave it at the end.

    Without these variables the world has size one. `device` (`cpu` or `cuda`) selects the backend: NCCL and
    gloo on GPUs, gloo on CPUs. Raises ConfigError when several processes were started for a strategy that
    takes one. A collective of training waits at most five minutes, except while a watchdog watches (`hang`).
    A process that must end (`is_stopping`) stops waiting for the others. After an error the group
    of several processes is left in place, for `end_if_joined`.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    require_strategy(strategy, size)
    if size == 1 and strategy in ("single", "ddp"):
        yield ALONE
        return
    backend = "cuda:nccl,cpu:gloo" if device == "cuda" else "gloo"
    limit = timedelta(seconds=_START_SECONDS)
    world = ALONE
    if size == 1:
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend, timeout=limit, store=store, rank=0, world_size=1)
        _joined.set()
    else:
        try:
            with limit_wait(is_stopping), describe_wait(f"the other processes of {size}", _START_SECONDS):
                dist.init_process_group(backend, timeout=limit)
                _joined.set()
                control = dist.new_group(backend="gloo", timeout=timedelta(seconds=CONTROL_SECONDS))
        except dist.DistError as error:
            raise TrainingFailedError(
                f"Not all processes of this run joined within {_START_SECONDS} s "
                f"({str(error).splitlines()[0]}).\nIf one failed, its message is further up in the log. Over "
                "several machines, check that all reach the rendezvous endpoint. Nothing was started."
            ) from error
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        world = World(dist.get_rank(), size, local_rank, cast("dist.ProcessGroup", control))
    may_leave = size == 1
    try:
        yield world
        may_leave = True
    except StoppedError:
        may_leave = True
        raise
    finally:
        if may_leave:  # another error may be of this process alone, and the others still in a collective
            dist.destroy_process_group()


def end_if_joined(code: int) -> None:
    """End this process at once if it has joined a world; otherwise return. Everything is printed by then.

    What still refers to a group, such as a wrapped model, keeps its threads. If one of them releases a tensor
    while the interpreter ends, that aborts the process.

    After an error the group is in place: NCCL may destroy it only together with all processes, and the others
    may sit in a collective that this one will never join. An abort waits for nobody.
    """
    if not _joined.is_set():
        return
    if dist.is_initialized():
        aborting = threading.Thread(target=_abort, name="abort", daemon=True)
        aborting.start()
        aborting.join(_ABORT_SECONDS)
    else:
        atexit._run_exitfuncs()  # temporary folders are removed there
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
    os._exit(code)


def _abort() -> None:
    with suppress(RuntimeError, ValueError, AssertionError):  # a backend without an abort, a broken group
        dist.distributed_c10d._abort_process_group()


@contextmanager
def explain_lost_peers() -> Iterator[None]:
    """Replace the network library's error with one that says that another process was lost."""
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
            "Its own message, if any, is further up in the log. Once the cause is fixed: --resume auto."
        )
        lost.failure = Failure(FailureKind.PROCESS_LOST, fix=PROCESS_LOST)
        raise lost from error
