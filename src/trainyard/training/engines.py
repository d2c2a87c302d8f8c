"""Where the work of a save is done: at once, in threads, or in threads and a process of its own.

What the work is belongs to `pending_save`. No work here speaks to the other processes of the run.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Generic, Literal, Protocol, TypeVar

import torch
from torch.distributed.checkpoint.planner import SavePlan

from trainyard.training.file_layout import FileLayout, record
from trainyard.training.priority import GivesWay, in_one_piece
from trainyard.training.shards import TensorOf, Written, write_shards
from trainyard.training.staging import Buffers, is_finite
from trainyard.training.stretches import write_files
from trainyard.training.writer_process import WriterProcess

Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)
Mode = Literal["sync", "async", "async_process"]


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

    def stage(self, plan: SavePlan, tensor_of: TensorOf) -> Outcome[str | None]:
        """Make what is to be written safe from later steps; gives the name of one that is not finite."""

    def write(self, path: Path) -> Outcome[Written]:
        """Write what was staged below `path`."""

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

    def stage(self, plan: SavePlan, tensor_of: TensorOf) -> Outcome[str | None]:
        self._staged = plan, tensor_of
        return _WhenAsked(
            lambda: next(
                (item.index.fqn for item in plan.items if not is_finite(tensor_of(item))),
                None,
            )
        )

    def write(self, path: Path) -> Outcome[Written]:
        assert self._staged is not None
        plan, tensor_of = self._staged
        return _WhenAsked(lambda: write_shards(path, plan, tensor_of))

    def run(self, work: Callable[[], Result]) -> Outcome[Result]:
        return _WhenAsked(work)

    def hurry(self) -> None:
        """It never gives way."""

    def close(self, *, at_once: bool = False) -> None:  # noqa: ARG002 - nothing goes on behind training
        self._staged = None


class Behind:
    """Behind training: a thread copies, another writes, or waits for the process that does."""

    def __init__(self, process: WriterProcess | None) -> None:
        self._process = process
        self._abandoned, self._awaited = threading.Event(), threading.Event()
        self._buffers: Buffers | None = None
        self._layout: FileLayout | None = None
        self._copier = ThreadPoolExecutor(1, "checkpoint-copier")
        self._writer = ThreadPoolExecutor(1, "checkpoint-writer")
        self._way = GivesWay(self._awaited.is_set)
        self._preparing = self._copying = self._after_writing = 0.0
        self._writing: float | None = None

    @property
    def save_seconds(self) -> float | None:
        if self._writing is None:
            return None
        return self._preparing + self._copying + self._writing + self._after_writing

    def stage(self, plan: SavePlan, tensor_of: TensorOf) -> Outcome[str | None]:
        start = time.perf_counter()
        self._copying = self._after_writing = 0.0
        if self._buffers is None or self._buffers.plan is not plan:
            self._buffers = Buffers(plan, self._process.memory if self._process else -1)
            self._layout = record(self._buffers)
        self._preparing = time.perf_counter() - start
        return self._copier.submit(self._fill, self._buffers, tensor_of, _side_stream())

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
        for executor in (self._copier, self._writer):
            executor.shutdown(cancel_futures=at_once)
        self._way.close()

    def _fill(self, buffers: Buffers, tensor_of: TensorOf, stream: torch.cuda.Stream | None) -> str | None:
        start = time.perf_counter()
        with torch.cuda.stream(stream):
            bad = buffers.fill(tensor_of)
        self._copying = time.perf_counter() - start
        return bad

    def _run(self, work: Callable[[], Result]) -> Result:
        result = self._way.run(in_one_piece(work))
        self._after_writing = self._way.seconds
        return result

    def _write(self, path: Path) -> Written:
        assert self._buffers is not None
        assert self._layout is not None
        files, memory = self._layout.files, self._buffers.memory
        if self._process is not None:
            written = self._process.write(path, files)
            self._writing = self._process.seconds
        else:
            written = self._way.run(write_files(path, files, memory, goes_on=self._is_wanted))
            self._writing = self._way.seconds
        return Written(self._layout.results, written)

    def _set_awaited(self, awaited: bool) -> None:
        (self._awaited.set if awaited else self._awaited.clear)()
        if self._process is not None:
            self._process.hurry(awaited)

    def _is_wanted(self) -> bool:
        return not self._abandoned.is_set()


def _side_stream() -> torch.cuda.Stream | None:
    """Its copies wait for what is queued on the GPU so far, and for nothing later; None without a GPU."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    return stream
