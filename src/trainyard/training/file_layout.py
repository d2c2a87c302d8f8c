"""The file of a plan, recorded once: which bytes stay the same in every save, and which come from the copy.

    plan + Buffers --record--> FileLayout --write_files (no torch)--> __R_0.distcp

torch.distributed.checkpoint writes the file into a recorder, which notices by their address the bytes that
lie in the copy. Writing a save is then hashing and writing stretches of memory, in any process that sees it.
"""

import io
import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter
from torch.distributed.checkpoint.storage import WriteResult

from trainyard.errors import CheckpointError
from trainyard.training.shards import Resolving, without_second_checksum
from trainyard.training.staging import Buffers
from trainyard.training.stretches import FileStretches, Stretch


@dataclass(frozen=True)
class FileLayout:
    """What one process writes in every save of a plan."""

    files: tuple[FileStretches, ...]
    results: list[WriteResult]
    """Where in which file each item of the plan is."""


def record(buffers: Buffers) -> FileLayout:
    """How the files of `buffers.plan` are made. Raises CheckpointError when a copy was not noticed."""
    folder = _Recorder(buffers)
    writer = FileSystemWriter("", sync_files=False, per_thread_copy_ahead=0)
    writer.fs = folder
    with without_second_checksum():
        results = writer.write_data(buffers.plan, Resolving(buffers.tensor_of)).value()
    noticed = sum(part[1] for file in folder.files for part in file.stretches if not isinstance(part, bytes))
    if noticed != buffers.bytes_used:
        raise CheckpointError(
            f"{buffers.bytes_used:,} bytes of tensors are to be written, {noticed:,} were found in the file: "
            "this version of torch copies them on the way. Use checkpointing.mode sync."
        )
    return FileLayout(tuple(folder.files), results)


class _Recorder(FileSystem):
    """A file system whose files become stretches."""

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self.files: list[FileStretches] = []

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Generator[io.IOBase, None, None]:
        assert mode == "wb"
        stream = _RecordingFile(self._buffers)
        yield stream
        self.files.append(FileStretches(Path(path).name, tuple(stream.stretches)))

    def mkdir(self, path: str | os.PathLike[str]) -> None: ...


class _RecordingFile(io.RawIOBase):
    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self._size = 0
        self.stretches: list[Stretch] = []

    def write(self, content: Any) -> int:
        view = memoryview(content).cast("B")
        if not len(view):
            return 0
        place = self._buffers.place_of(np.frombuffer(view, np.uint8).ctypes.data)
        if place is not None:
            self.stretches.append((place, len(view)))
        elif self.stretches and isinstance(self.stretches[-1], bytes):
            self.stretches[-1] += bytes(view)
        else:
            self.stretches.append(bytes(view))
        self._size += len(view)
        return len(view)

    def tell(self) -> int:
        return self._size
