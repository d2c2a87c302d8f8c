"""Run the work of a save: in training's own thread, or in the background by a thread and a writer process.

    sync    training waits: stage (nothing is copied), write, complete
    async   a thread copies the state into shared memory, then hands the rest to the writer process:
            Copies.fill --path--> torch's own writer, digests, fsync --files--> trainer

Each trainer starts a writer process before its first step. It takes no part in collectives and sees no GPU.
It ignores Ctrl-C and SIGTERM, because the trainer handles them, and ends at once when its trainer is gone.
`checkpoint` decides what the work is. Nothing here communicates with other processes of the run.
"""

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, cast

import torch
from torch.distributed.checkpoint.planner import SavePlan

from trainyard.errors import CheckpointError, TrainyardError
from trainyard.training.checkpoint.shards import (
    Copies,
    TensorOf,
    WrittenFiles,
    open_memory,
    require_finite,
    write_shards,
)
from trainyard.training.runtime.stop_signals import shield_children

Result = TypeVar("Result")
# The start method of `multiprocessing`; the process shares only its arguments with its trainer.
START_METHOD = "spawn"
_END_SECONDS = 10
# Low enough that a step on the same processors goes first, but not so low that a save starves beside it.
_NICENESS = 5


class WriterProcess:
    """The trainer's end of the connection. One request at a time, from one thread."""

    def __init__(self, memory: int) -> None:
        """Start the process without waiting for it; it writes from the memory of the descriptor `memory`."""
        context: Any = get_context(START_METHOD)
        self._pipe, theirs = context.Pipe()
        resource_tracker.ensure_running()  # its start would unblock the signals again
        with shield_children():
            self._process = context.Process(
                target=_serve, args=(theirs,), name="checkpoint-writer", daemon=True
            )
            self._process.start()
        theirs.close()
        send_handle(self._pipe, memory, self._process.pid)

    def kill(self) -> None:
        """Kill it, whatever it is doing."""
        self._process.kill()
        self._process.join()

    def close(self) -> None:
        """End it. No thread may be waiting for an answer."""
        self.kill()
        self._pipe.close()

    def request(self, name: str, argument: Any) -> Any:
        """Return the answer of `_serve`. Raises its OSError or TrainyardError; CheckpointError at its end."""
        try:
            self._pipe.send((name, argument))
            answer = self._pipe.recv()
        except (EOFError, ConnectionError) as error:
            self._process.join(_END_SECONDS)
            code = self._process.exitcode
            how = f"ended with {code}"
            if code is not None and code < 0:
                how = f"was ended by {signal.Signals(-code).name}"
                how += ", as Linux does when memory runs out" if code == -signal.SIGKILL else ""
            raise CheckpointError(f"the process that writes checkpoints {how}") from error
        if isinstance(answer, Exception):
            raise answer
        return answer


def _serve(pipe: Connection) -> None:
    """Answer requests until the pipe is closed."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_trainer, daemon=True).start()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # torch's writer would open a context of each GPU
    os.nice(_NICENESS)
    torch.set_num_threads(1)
    with suppress(EOFError, ConnectionError):
        memory, engine = recv_handle(pipe), Engine()
        while True:
            name, argument = pipe.recv()
            try:
                answer: Any = None
                if name == "prepare":
                    engine.stage(argument, Copies(argument, memory).tensor_of, None)
                else:
                    answer = getattr(engine, name)(argument)
            except (OSError, TrainyardError) as error:
                answer = error
            pipe.send(answer)


def _end_with_trainer() -> None:
    """End with the trainer: otherwise a writer would continue to write into the folder of the resumed run."""
    trainer = parent_process()
    assert trainer is not None
    trainer.join()
    os._exit(1)


class _LazyResult(Generic[Result]):
    """Work that runs once, when its result is first requested."""

    def __init__(self, work: Callable[[], Result]) -> None:
        self._work = work

    def done(self) -> bool:
        return True

    def result(self) -> Result:
        return self._work()


PendingResult = _LazyResult[Result] | Future[Result]
Mode = Literal["sync", "async"]


class Engine:
    """Does the work of one save at a time. Training waits for it, and the written tensors are not copied.

    Started work calls all methods except `start` and `close`.
    """

    is_background = False

    def __init__(self) -> None:
        self._staged: tuple[SavePlan, TensorOf] | None = None

    def start(self, work: Callable[[], Result]) -> PendingResult[Result]:
        """Run `work` after the work that was started before."""
        return _LazyResult(work)

    def stage(self, plan: SavePlan, tensor_of: TensorOf, stream: torch.cuda.Stream | None) -> None:  # noqa: ARG002
        """Protect the tensors to be written from later steps; on a GPU by copies on `stream`."""
        self._staged = plan, tensor_of

    def write(self, path: Path) -> WrittenFiles:
        """Write the staged tensors below `path`. Raises NotFiniteError, before it writes anything."""
        assert self._staged is not None
        require_finite(*self._staged)
        return write_shards(path, *self._staged)

    def do(self, work: Callable[[], Result]) -> Result:
        """Do other work on files. `work` can be pickled."""
        return work()

    def close(self, *, at_once: bool = False) -> None:  # noqa: ARG002 - nothing runs in the background
        """Release thread and process; with `at_once` even in the middle of a write."""
        self._staged = None


class BackgroundEngine(Engine):
    """A thread copies the state, and the writer process does the rest; training waits for neither."""

    is_background = True

    def __init__(self) -> None:
        super().__init__()
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
                self._process.request("prepare", plan)
            self._copies.fill(tensor_of)
        if stream is not None:
            stream.synchronize()

    def write(self, path: Path) -> WrittenFiles:
        return cast(WrittenFiles, self._process.request("write", path))

    def do(self, work: Callable[[], Result]) -> Result:
        return cast(Result, self._process.request("do", work))

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


def open_engine(mode: Mode) -> Engine:
    """The engine for `checkpointing.mode`."""
    return BackgroundEngine() if mode == "async" else Engine()
