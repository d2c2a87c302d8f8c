"""Where the work of a save is done: at once, in threads, or in threads and a process of its own.

What the work is belongs to `pending_save`. No work here speaks to the other processes of the run.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Generic, Literal, Protocol, TypeVar

import torch
from torch.distributed.checkpoint.planner import SavePlan, WriteItem

from trainyard.training.file_layout import record
from trainyard.training.priority import GivesWay, in_one_piece, rest_of
from trainyard.training.shards import TensorOf, Written, write_shards
from trainyard.training.staged_files import write_files
from trainyard.training.staging import Buffers, require_finite
from trainyard.training.writer_process import WriterProcess

Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)
Mode = Literal["sync", "async", "async_process"]
_MOST_COPIERS = 16
"""More than a machine's memory needs to be busy."""


class Outcome(Protocol[Result_co]):
    """What some work gives, once it is done; a Future is one."""

    def done(self) -> bool: ...

    def result(self) -> Result_co:
        """Wait for it. Raises what the work raised."""


class Engine(Protocol):
    """Does the work of one save at a time."""

    @property
    def save_seconds(self) -> float | None:
        """What the last save would have taken had it given way to nothing; None when nothing tells.

        Staging, writing and what came after; of the process that asks, before it does any other work.
        """

    def stage(self, plan: SavePlan, tensor_of: TensorOf) -> Outcome[object]:
        """Make what is to be written safe from later steps."""

    def write(self, path: Path) -> Outcome[Written]:
        """Write what was staged below `path`; NotFiniteError, with nothing written, when it is not finite."""

    def run(self, work: Callable[[], Result]) -> Outcome[Result]:
        """Do some other work on files, after that under way."""

    def hurry(self) -> None:
        """Training waits for the save under way: it gives way no more."""

    def close(self, *, at_once: bool = False) -> None:
        """Let go of threads and processes; `at_once`: even in the middle of a write."""


def open_engine(mode: Mode) -> Engine:
    """The engine of `checkpointing.mode`."""
    return AtOnce() if mode == "sync" else Behind(WriterProcess() if mode == "async_process" else None)


class _WhenAsked(Generic[Result]):
    """Work that is done by whoever asks for its result."""

    def __init__(self, work: Callable[[], Result]) -> None:
        self._work = work

    def done(self) -> bool:
        return True

    def result(self) -> Result:
        return self._work()


class AtOnce:
    """Training waits for all of it, and what is written is not copied."""

    save_seconds: float | None = None

    def __init__(self) -> None:
        self._staged: tuple[SavePlan, TensorOf] | None = None

    def stage(self, plan: SavePlan, tensor_of: TensorOf) -> Outcome[object]:
        self._staged = plan, tensor_of
        return _WhenAsked(lambda: None)

    def write(self, path: Path) -> Outcome[Written]:
        assert self._staged is not None
        plan, tensor_of = self._staged

        def work() -> Written:
            rest_of(require_finite(plan, tensor_of))
            return write_shards(path, plan, tensor_of)

        return _WhenAsked(work)

    def run(self, work: Callable[[], Result]) -> Outcome[Result]:
        return _WhenAsked(work)

    def hurry(self) -> None:
        """It never gives way."""

    def close(self, *, at_once: bool = False) -> None:  # noqa: ARG002 - nothing goes on behind training
        self._staged = None


class _Copies:
    """What several threads copy of one state."""

    def __init__(self, copies: Sequence[Future[float]]) -> None:
        self._copies = copies

    def done(self) -> bool:
        return all(copy.done() for copy in self._copies)

    def result(self) -> float:
        """Seconds of the one that took longest."""
        return max((copy.result() for copy in self._copies), default=0.0)


class Behind:
    """Behind training: threads copy, another writes, or waits for the process that does.

    As many copy as training computes with, where that is not a GPU: each processor then loses about the same,
    and a step waits for the one that loses most.
    """

    def __init__(self, process: WriterProcess | None) -> None:
        self._process = process
        self._abandoned, self._awaited = threading.Event(), threading.Event()
        self._buffers: Buffers | None = None
        self._shares: list[list[WriteItem]] = []
        self._threads = min(torch.get_num_threads(), _MOST_COPIERS)
        self._copiers = ThreadPoolExecutor(self._threads, "checkpoint-copier")
        self._copies = _Copies(())
        self._writer = ThreadPoolExecutor(1, "checkpoint-writer")
        self._way = GivesWay(self._awaited.is_set)
        self._preparing = self._after_writing = 0.0
        self._writing: float | None = None

    @property
    def save_seconds(self) -> float | None:
        if self._writing is None:
            return None
        return self._preparing + self._copies.result() + self._writing + self._after_writing

    def stage(self, plan: SavePlan, tensor_of: TensorOf) -> Outcome[object]:
        start, stream = time.perf_counter(), _side_stream()
        self._after_writing = 0.0
        if self._buffers is None or self._buffers.layout.plan is not plan:
            self._buffers = None  # the memory is no older layout's any more, should this one fail
            self._buffers = Buffers(record(plan), self._process.memory if self._process else -1)
            self._shares = self._buffers.shares(1 if stream else self._threads)
        self._preparing = time.perf_counter() - start
        fill = partial(_fill, self._buffers, tensor_of, stream)
        self._copies = _Copies([self._copiers.submit(fill, share) for share in self._shares])
        return self._copies

    def write(self, path: Path) -> Outcome[Written]:
        self._set_awaited(False)
        return self._writer.submit(self._write, path)

    def run(self, work: Callable[[], Result]) -> Outcome[Result]:
        return self._writer.submit(self._run, work)

    def hurry(self) -> None:
        self._set_awaited(True)

    def close(self, *, at_once: bool = False) -> None:
        if at_once:
            self._abandoned.set()
        if self._process is not None:
            self._process.close(at_once=at_once)
        for executor in (self._copiers, self._writer):
            executor.shutdown(cancel_futures=at_once)
        self._way.close()

    def _run(self, work: Callable[[], Result]) -> Result:
        result = self._way.run(in_one_piece(work))
        self._after_writing = self._way.seconds
        return result

    def _write(self, path: Path) -> Written:
        assert self._buffers is not None
        staged, layout = self._buffers, self._buffers.layout
        self._way.run(require_finite(layout.plan, staged.tensor_of, goes_on=self._is_wanted))
        looking = self._way.seconds
        if self._process is not None:
            written = self._process.write(path, layout.files)
            assert self._process.seconds is not None
            self._writing = looking + self._process.seconds
        else:
            files = write_files(path, layout.files, staged.memory, goes_on=self._is_wanted)
            written = self._way.run(files)
            self._writing = looking + self._way.seconds
        return Written(layout.results, written)

    def _set_awaited(self, awaited: bool) -> None:
        (self._awaited.set if awaited else self._awaited.clear)()
        if self._process is not None:
            self._process.hurry(awaited)

    def _is_wanted(self) -> bool:
        return not self._abandoned.is_set()


def _fill(
    buffers: Buffers, tensor_of: TensorOf, stream: torch.cuda.Stream | None, items: Sequence[WriteItem]
) -> float:
    """Copy `items`; returns the seconds it took."""
    start = time.perf_counter()
    with torch.cuda.stream(stream):
        buffers.fill(items, tensor_of)
    return time.perf_counter() - start


def _side_stream() -> torch.cuda.Stream | None:
    """Its copies wait for what is queued on the GPU so far, and for nothing later; None without a GPU."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    return stream
