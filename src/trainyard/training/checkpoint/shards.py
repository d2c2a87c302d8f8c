"""Write a state in torch.distributed.checkpoint's format, with each part written by one process.

    tensors --share_out--> Shares --write_shards, on every process--> __R_0.distcp --write_index--> .metadata

Only `share_out` communicates with other processes. The rest of a save may run in the background, where a
collective would interleave with those of training. Digests are computed from the bytes while they are
written.

For a save in the background, `Copies` holds what a process writes in memory that the writer process maps as
well: one anonymous block (`memfd_create`), pinned for weights on a GPU, and kept from save to save;
docs/decisions/0017 says why it is not torch's own.
"""

import io
import math
import mmap
import os
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import torch
from torch import Tensor
from torch.cuda._pin_memory_utils import pin_memory, unpin_memory
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, WriteItem
from torch.distributed.checkpoint.storage import WriteResult

from trainyard.errors import CheckpointError
from trainyard.run.atomic_files import FileDigests
from trainyard.run.checkpoint_manifest import ManifestFile
from trainyard.training.runtime.world import World

_CHUNK_BYTES = 1 << 20
# Size of the file buffer; it is small, because a chunk as small as the buffer would be copied into it.
_BUFFER_BYTES = 1 << 16
TensorOf = Callable[[WriteItem], Tensor]


@dataclass(frozen=True)
class Shares:
    """Assignment of parts to the processes that write them, for all tensors of the same names and shapes."""

    own: SavePlan
    """The parts that this process writes."""
    index: Metadata
    """The index of the complete checkpoint, without the positions in files."""


@dataclass(frozen=True)
class WrittenFiles:
    """The files that one process wrote."""

    results: list[WriteResult]
    files: tuple[ManifestFile, ...]


def share_out(tensors: Mapping[str, Mapping[str, Tensor]], world: World) -> Shares:
    """Agree with all processes on who writes which part of `tensors`; a part that several hold, once."""
    planner = _planner(tensors, is_main=world.is_main)
    plans = world.gather(planner.create_local_plan())
    plans, index = planner.create_global_plan(plans)
    own = FileSystemWriter("").prepare_global_plan(plans)[world.rank]
    return Shares(own, index)


def form_of(item: WriteItem) -> tuple[tuple[int, ...], torch.dtype]:
    """The shape and type of the written part of a tensor."""
    assert item.tensor_data is not None, f"{item.index.fqn} is not a tensor"
    return tuple(item.tensor_data.chunk.sizes), item.tensor_data.properties.dtype


def bytes_of(item: WriteItem) -> int:
    """The number of bytes of a tensor's written part."""
    shape, dtype = form_of(item)
    return math.prod(shape) * dtype.itemsize


def live_tensors(tensors: Mapping[str, Mapping[str, Tensor]]) -> TensorOf:
    """The parts of `tensors` to write, with their present values."""
    planner = _planner(tensors, is_main=True)
    return lambda item: cast(Tensor, planner.resolve_data(item))


def write_shards(path: Path, plan: SavePlan, tensor_of: TensorOf) -> WrittenFiles:
    """Write this process's file below `path`, fsynced. Raises OSError."""
    writer, files = _writer(path)
    with _skip_second_checksum(), _raise_system_error():
        results = writer.write_data(plan, _TensorResolver(tensor_of)).value()
    return WrittenFiles(results, tuple(files.described))


@contextmanager
def _raise_system_error() -> Iterator[None]:
    """Raise the OSError that caused torch's error: torch cannot close its archive after a failed write."""
    try:
        yield
    except RuntimeError as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__cause__ or cause.__context__
        if cause is None:
            raise
        raise cause from error


def write_checkpoint_index(path: Path, index: Metadata, written: Iterable[WrittenFiles]) -> None:
    """Write `.metadata`: the file and position of each part of each tensor."""
    writer, _ = _writer(path)
    writer.set_up_storage_writer(is_coordinator=True)
    writer.finish(copy(index), [own.results for own in written])


class _TensorResolver(DefaultSavePlanner):
    """Gives a writer the tensors of its items, wherever they are kept."""

    def __init__(self, tensor_of: TensorOf) -> None:
        super().__init__()
        self._tensor_of = tensor_of

    def resolve_data(self, write_item: WriteItem) -> Tensor:
        return self._tensor_of(write_item)


class _HashingFile(io.RawIOBase):
    """Hashes the bytes that are written to `file`."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file = file
        self.digests = FileDigests()

    def write(self, content: Any) -> int:
        view = memoryview(content).cast("B")
        for start in range(0, len(view), _CHUNK_BYTES):
            chunk = view[start : start + _CHUNK_BYTES]
            self.digests.update(chunk)
            self._file.write(chunk)
        return len(view)

    def tell(self) -> int:
        return self.digests.size

    def flush(self) -> None:
        if not self._file.closed:
            self._file.flush()

    def fileno(self) -> int:
        self._file.flush()
        return self._file.fileno()


class _HashingFileSystem(FileSystem):
    """The local file system; it records the size and the digests of each written file."""

    def __init__(self) -> None:
        self.described: list[ManifestFile] = []

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Generator[io.IOBase, None, None]:
        with Path(path).open(mode, buffering=_BUFFER_BYTES) as file:
            stream = _HashingFile(cast(BinaryIO, file))
            yield stream
        self.described.append(ManifestFile.of(Path(path).name, stream.digests))


def _writer(path: Path) -> tuple[FileSystemWriter, _HashingFileSystem]:
    writer, files = FileSystemWriter(path, sync_files=True), _HashingFileSystem()
    writer.fs = files
    return writer, files


def _planner(tensors: Mapping[str, Mapping[str, Tensor]], *, is_main: bool) -> DefaultSavePlanner:
    planner = DefaultSavePlanner()
    planner.set_up_planner({part: dict(named) for part, named in tensors.items()}, is_coordinator=is_main)
    return planner


@contextmanager
def _skip_second_checksum() -> Iterator[None]:
    """Skip the CRC-32 that torch adds to each tensor, because the manifest has the SHA-256 of all bytes."""
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(before)


_ALIGNMENT = 64  # alignment in bytes: a cache line, which is a multiple of every element's size


class NotFiniteError(CheckpointError):
    """A tensor to save has an element that is infinite or not a number; the message is the tensor's name."""


def open_memory() -> int:
    """A descriptor of memory that grows as needed; outside Linux, of an unnamed temporary file."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("checkpoint")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Copies:
    """A tensor for each item of a plan, in the memory behind a descriptor."""

    def __init__(self, plan: SavePlan, descriptor: int, *, pinned: bool = False) -> None:
        """Map the memory, and enlarge it if it is too small. A GPU can copy into `pinned` memory directly.

        Raises OSError when there is not enough memory, RuntimeError when it cannot be pinned.
        """
        self.plan = plan
        places, size = [], 0
        for item in plan.items:
            places.append(size)
            size += -(-bytes_of(item) // _ALIGNMENT) * _ALIGNMENT
        size = max(size, mmap.PAGESIZE)
        if os.fstat(descriptor).st_size < size:
            os.ftruncate(descriptor, size)
        memory = mmap.mmap(descriptor, size)
        self._pinned: int | None = None
        if pinned:
            self._pinned = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
            pin_memory(self._pinned, size)
        self._tensors = {
            item.index: _tensor_in(memory, item, place)
            for item, place in zip(plan.items, places, strict=True)
        }

    def tensor_of(self, item: WriteItem) -> Tensor:
        """The copy of `item`."""
        return self._tensors[item.index]

    @torch.no_grad()
    def fill(self, tensor_of: TensorOf) -> None:
        """Copy every item. A copy from a GPU is complete once the current stream is synchronised."""
        for item in self.plan.items:
            target, source = self.tensor_of(item), tensor_of(item).detach()
            if source.is_cpu and source.is_contiguous():
                # In a second thread torch would start a second team of threads, which slows training's.
                np.copyto(_bytes_in(target), _bytes_in(source))
            else:
                target.copy_(source, non_blocking=True)

    def close(self) -> None:
        """Unpin the memory; this must happen before it is unmapped."""
        if self._pinned is not None:
            unpin_memory(self._pinned)
            self._pinned = None


def side_stream() -> torch.cuda.Stream | None:
    """A stream whose copies wait for the work queued on the GPU so far, and for no later work.

    None if no GPU is used. Call it on training's thread.
    """
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    return stream


def require_finite(plan: SavePlan, tensor_of: TensorOf) -> None:
    """Raise NotFiniteError when an item has an element that is infinite or not a number."""
    for item in plan.items:
        if not all_finite(tensor_of(item).detach()):
            raise NotFiniteError(item.index.fqn)


def all_finite(tensor: Tensor) -> bool:
    """Return whether no element is infinite or not a number.

    The tensor is read once unless its sum overflows.
    """
    if not tensor.is_floating_point():
        return True
    return math.isfinite(float(tensor.sum())) or bool(torch.isfinite(tensor).all())


def _tensor_in(memory: mmap.mmap, item: WriteItem, place: int) -> Tensor:
    """A tensor with a storage of its own, so that torch's writer does not copy it again."""
    shape, dtype = form_of(item)
    if not bytes_of(item):
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=math.prod(shape), offset=place).view(shape)


def _bytes_in(tensor: Tensor) -> "np.ndarray":
    return tensor.reshape(-1).view(torch.uint8).numpy()
