"""Run the work of a save: in training's own thread, or in the background by a thread and a writer process.

    sync    training waits: stage (nothing is copied), write, complete
    async   a thread copies the state into shared memory, then hands the rest to the writer process

`checkpoint_save` decides what the work is. Nothing here communicates with other processes of the run.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Generic, Literal, Protocol, TypeVar

import torch
from torch.distributed.checkpoint.planner import SavePlan

from trainyard.training.checkpoint.shards import TensorOf, WrittenFiles, write_shards
from trainyard.training.checkpoint.staging import Copies, open_memory, require_finite
from trainyard.training.checkpoint.writer_process import WriterProcess

Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)
Mode = Literal["sync", "async"]


class PendingResult(Protocol[Result_co]):
    """The result of some work, once it is done; a Future is one."""

    def done(self) -> bool: ...

    def result(self) -> Result_co:
        """Wait for the result. Raises the error of the work."""


class Engine(Protocol):
    """Does the work of one save at a time. Started work calls all methods except `start` and `close`."""

    def start(self, work: Callable[[], Result]) -> PendingResult[Result]:
        """Run `work` after the work that was started before."""

    def stage(self, plan: SavePlan, tensor_of: TensorOf, stream: torch.cuda.Stream | None) -> None:
        """Protect the tensors to be written from later steps; on a GPU by copies on `stream`."""

    def write(self, path: Path) -> WrittenFiles:
        """Write the staged tensors below `path`. Raises NotFiniteError, before it writes anything."""

    def do(self, work: Callable[[], Result]) -> Result:
        """Do other work on files. `work` can be pickled."""

    def close(self, *, at_once: bool = False) -> None:
        """Release thread and process; with `at_once` even in the middle of a write."""


def open_engine(mode: Mode) -> Engine:
    """The executor for `checkpointing.mode`."""
    return ForegroundEngine() if mode == "sync" else BackgroundEngine()


class _LazyResult(Generic[Result]):
    """Work that runs once, when its result is first requested."""

    def __init__(self, work: Callable[[], Result]) -> None:
        self._work = work

    def done(self) -> bool:
        return True

    def result(self) -> Result:
        return self._work()


class ForegroundEngine:
    """Training waits for all work, and the written tensors are not copied."""

    def __init__(self) -> None:
        self._staged: tuple[SavePlan, TensorOf] | None = None

    def start(self, work: Callable[[], Result]) -> PendingResult[Result]:
        return _LazyResult(work)

    def stage(self, plan: SavePlan, tensor_of: TensorOf, stream: torch.cuda.Stream | None) -> None:  # noqa: ARG002
        self._staged = plan, tensor_of

    def write(self, path: Path) -> WrittenFiles:
        assert self._staged is not None
        require_finite(*self._staged)
        return write_shards(path, *self._staged)

    def do(self, work: Callable[[], Result]) -> Result:
        return work()

    def close(self, *, at_once: bool = False) -> None:  # noqa: ARG002 - nothing runs in the background
        self._staged = None


class BackgroundEngine:
    """A thread copies the state, and the writer process does the rest; training waits for neither."""

    def __init__(self) -> None:
        self._memory = open_memory()
        self._copies: Copies | None = None
        self._process = WriterProcess(self._memory)
        self._thread = ThreadPoolExecutor(1, "checkpoint")

    def start(self, work: Callable[[], Result]) -> PendingResult[Result]:
        return self._thread.submit(work)

    def stage(self, plan: SavePlan, tensor_of: TensorOf, stream: torch.cuda.Stream | None) -> None:
        with torch.cuda.stream(stream):  # and its device, which a new thread does not have from training's
            if self._copies is None or self._copies.plan is not plan:
                self._forget_copies()
                self._copies = Copies(plan, self._memory, pinned=stream is not None)
                self._process.prepare(plan)
            self._copies.fill(tensor_of)
        if stream is not None:
            stream.synchronize()

    def write(self, path: Path) -> WrittenFiles:
        return self._process.write(path)

    def do(self, work: Callable[[], Result]) -> Result:
        return self._process.do(work)

    def close(self, *, at_once: bool = False) -> None:
        if at_once:
            self._process.kill()
        self._thread.shutdown(cancel_futures=at_once)
        self._process.close()
        self._forget_copies()
        os.close(self._memory)

    def _forget_copies(self) -> None:
        copies, self._copies = self._copies, None
        if copies is not None:
            copies.close()
