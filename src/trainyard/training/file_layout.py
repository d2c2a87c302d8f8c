"""The file of a plan, recorded once: where each tensor is in it, and the bytes in between, always the same.

    plan --record--> FileLayout --Buffers--> memory, as the file is to be --write_files--> __R_0.distcp

torch.distributed.checkpoint writes the file into a recorder out of memory that nobody fills, and the recorder
notices a tensor's bytes by their address. A save is then a copy of each tensor to its place, and hashing and
writing that memory, in any process that sees it and without torch.
"""

import io
import math
import mmap
import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, WriteItem
from torch.distributed.checkpoint.storage import WriteResult

from trainyard.errors import CheckpointError
from trainyard.training.shards import Resolving, without_second_checksum
from trainyard.training.staged_files import StagedFile
from trainyard.training.write_items import ALIGNMENT, ItemsStream, bytes_of, form_of, rounded_up


@dataclass(frozen=True)
class FileLayout:
    """What one process writes in every save of a plan, in memory of `size` bytes."""

    plan: SavePlan
    files: tuple[StagedFile, ...]
    places: dict[MetadataIndex, int]
    """The offset in the memory of each item that has bytes."""
    fixed: tuple[tuple[int, bytes], ...]
    """All other bytes of the files, by their offset."""
    results: list[WriteResult]
    """Where in which file each item of the plan is."""

    @property
    def size(self) -> int:
        """Bytes of the memory; some at least, even when nothing is written."""
        return max((file.start + file.size for file in self.files), default=0) or mmap.PAGESIZE


def record(plan: SavePlan) -> FileLayout:
    """How the files of `plan` are made. Raises CheckpointError when a tensor's bytes were not noticed."""
    folder = _Recorder(_Unfilled(plan))
    writer = FileSystemWriter("", sync_files=False, per_thread_copy_ahead=0)
    writer.fs = folder
    with without_second_checksum():
        results = writer.write_data(plan, Resolving(folder.tensors.tensor_of)).value()
    needed = {item.index for item in plan.items if bytes_of(item)}
    places = folder.places
    if folder.strays or places.keys() != needed or any(place % ALIGNMENT for place in places.values()):
        raise CheckpointError(
            "tensors could not be told from the rest of their file: this version of torch writes it in an "
            "unknown way. Use checkpointing.mode sync."
        )
    return FileLayout(plan, tuple(folder.files), places, tuple(folder.fixed), results)


def tensor_in(memory: mmap.mmap, item: WriteItem, place: int) -> Tensor:
    """The tensor of `item` whose bytes begin at `place` of the memory; an empty one needs none."""
    shape, dtype = form_of(item)
    if not bytes_of(item):
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=math.prod(shape), offset=place).view(shape)


class _Unfilled:
    """Tensors of the right form over one memory that nobody reads or fills: it takes up no room."""

    def __init__(self, plan: SavePlan) -> None:
        self._memory = mmap.mmap(-1, max((bytes_of(item) for item in plan.items), default=0) or 1)
        self._start = torch.frombuffer(self._memory, dtype=torch.uint8).data_ptr()
        self._last: WriteItem | None = None

    def tensor_of(self, item: WriteItem) -> Tensor:
        self._last = item
        return tensor_in(self._memory, item, 0)

    def holds(self, view: memoryview) -> bool:
        """Whether `view` begins in the memory."""
        return 0 <= _address(view) - self._start < len(self._memory)

    def whose(self, view: memoryview) -> WriteItem | None:
        """The last item asked for, if `view` is all its bytes."""
        whole = self._last is not None and (_address(view), len(view)) == (self._start, bytes_of(self._last))
        return self._last if whole else None


class _Recorder(FileSystem):
    """A file system whose files lie in memory one behind the other; it keeps what of them is no tensor."""

    def __init__(self, tensors: _Unfilled) -> None:
        self.tensors = tensors
        self.files: list[StagedFile] = []
        self.places: dict[MetadataIndex, int] = {}
        self.fixed: list[tuple[int, bytes]] = []
        self.strays = 0
        """Writes of a tensor's bytes that are not all of it, or of one that was written before."""

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Generator[io.IOBase, None, None]:
        assert mode == "wb"
        last = self.files[-1] if self.files else StagedFile("", 0, 0)
        stream = _RecordingFile(self, rounded_up(last.start + last.size, mmap.PAGESIZE))
        yield stream
        self.files.append(StagedFile(Path(path).name, stream.start, stream.size))

    def mkdir(self, path: str | os.PathLike[str]) -> None: ...


class _RecordingFile(ItemsStream):
    def __init__(self, folder: _Recorder, start: int) -> None:
        super().__init__()
        self._folder = folder
        self.start = start

    def put(self, view: memoryview) -> None:
        folder, place = self._folder, self.start + self.size
        if folder.tensors.holds(view):
            item = folder.tensors.whose(view)
            if item is None or item.index in folder.places:
                folder.strays += 1
            else:
                folder.places[item.index] = place
            return
        before, content = folder.fixed[-1] if folder.fixed else (place, b"")
        if before + len(content) == place and folder.fixed:
            folder.fixed[-1] = before, content + bytes(view)
        else:
            folder.fixed.append((place, bytes(view)))


def _address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)
