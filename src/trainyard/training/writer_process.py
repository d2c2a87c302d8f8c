"""A process of its own that writes what training has copied into memory that both see.

    trainer: Buffers.fill --(folder, files)--> writer: hash, write, fsync --(digests)--> trainer

It is started before the first step, imports no torch and speaks to its trainer only. It gives way to
training, unless a byte that both see says that training waits. It ignores Ctrl-C and SIGTERM, which are the
trainer's to answer, and stops writing when its trainer is gone.
"""

import mmap
import os
import signal
from collections.abc import Sequence
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from typing import Any

from trainyard.errors import CheckpointError, ConfigError
from trainyard.run.checkpoints import ManifestFile
from trainyard.training.priority import GivesWay
from trainyard.training.staged_files import StagedFile, write_files
from trainyard.training.stop import children_shielded

_END_SECONDS = 10


class WriterProcess:
    """The trainer's side of it."""

    def __init__(self) -> None:
        """Start it; the trainer does not wait for it. Raises ConfigError where memory cannot be shared."""
        if not hasattr(os, "memfd_create"):
            raise ConfigError("checkpointing.mode: async_process needs Linux. Use async.")
        self.memory = os.memfd_create("checkpoint")
        self._awaited, awaited = _shared_byte()
        self.seconds: float | None = None
        """What the last write took, without the time that it gave way; None before there was one."""
        self._known: Sequence[StagedFile] = ()
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        resource_tracker.ensure_running()  # its start would take the shield away
        with children_shielded():
            self._process = context.Process(
                target=_serve, args=(theirs, os.getpid()), name="checkpoint-writer", daemon=True
            )
            self._process.start()
        theirs.close()
        for descriptor in (self.memory, awaited):
            send_handle(self._pipe, descriptor, self._process.pid)
        os.close(awaited)

    def hurry(self, awaited: bool) -> None:
        """Whether training waits for what is written now, or next."""
        self._awaited[0] = awaited

    def write(self, folder: Path, files: Sequence[StagedFile]) -> tuple[ManifestFile, ...]:
        """Have `files` written below `folder` out of the memory; waits for it. Raises OSError."""
        try:
            self._pipe.send((folder, None if files is self._known else files))
            self._known = files
            answer: Any = self._pipe.recv()
        except (EOFError, ConnectionError) as error:
            self._process.join(_END_SECONDS)
            raise CheckpointError(_how_it_ended(self._process.exitcode)) from error
        if isinstance(answer, OSError):
            raise answer
        written: tuple[ManifestFile, ...]
        written, self.seconds = answer
        return written

    def close(self, *, at_once: bool = False) -> None:
        """End it, and wait for that; `at_once`: even in the middle of a write."""
        if at_once:
            self._process.kill()
        self._pipe.close()
        self._process.join(_END_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        os.close(self.memory)


def _how_it_ended(code: int | None) -> str:
    if code is None or code >= 0:
        return f"the process that writes checkpoints ended with {code}"
    name = signal.Signals(-code).name
    hint = ", as Linux does when memory runs out" if name == "SIGKILL" else ""
    return f"the process that writes checkpoints was ended by {name}{hint}"


def _shared_byte() -> tuple[mmap.mmap, int]:
    """A byte, and the descriptor by which another process sees it."""
    descriptor = os.memfd_create("checkpoint-awaited")
    os.ftruncate(descriptor, 1)
    return mmap.mmap(descriptor, 1), descriptor


def _serve(pipe: Connection, trainer: int) -> None:
    """The process: write what is asked for until the pipe is closed."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    descriptor, awaited = recv_handle(pipe), mmap.mmap(recv_handle(pipe), 1)
    way = GivesWay(lambda: bool(awaited[0]))
    known: Sequence[StagedFile] = ()
    memory: mmap.mmap | None = None
    while True:
        try:
            folder, files = pipe.recv()
            if files is not None:
                known, memory = files, mmap.mmap(descriptor, os.fstat(descriptor).st_size)
            assert memory is not None
            try:
                written = way.run(write_files(folder, known, memory, goes_on=lambda: os.getppid() == trainer))
                pipe.send((written, way.seconds))
            except OSError as error:
                pipe.send(error)
        except (EOFError, ConnectionError):
            return
