"""Copy what a process writes into memory that the writer process maps as well.

    weights and moments --fill, beside the next backward pass--> Copies --writer process--> files

The memory is one anonymous block (`memfd_create`), pinned for weights on a GPU, and kept from save to save;
docs/decisions/0017 says why it is not torch's own. `checkpoint_save` decides when to copy.
"""

import math
import mmap
import os
import tempfile

import numpy as np
import torch
from torch import Tensor
from torch.cuda._pin_memory_utils import pin_memory, unpin_memory
from torch.distributed.checkpoint.planner import SavePlan, WriteItem

from trainyard.errors import CheckpointError
from trainyard.training.checkpoint.shards import TensorOf, bytes_of, form_of

_ALIGNMENT = 64
"""Alignment in bytes: a cache line, which is a multiple of every element's size."""


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
