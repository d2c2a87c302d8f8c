"""A copy of what a process writes, made in kept memory while training computes the next gradients.

The files lie there as they are to be, so that nothing is copied once more on its way to the disk. The memory
has no name in any file system and grows once; another process given its descriptor sees the same bytes. When
to copy, and when the copy must be done, is `saving`'s.
"""

import math
import mmap
import os
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.distributed.checkpoint.planner import SavePlan, WriteItem

from trainyard.errors import CheckpointError
from trainyard.training.file_layout import FileLayout, tensor_in
from trainyard.training.priority import Pieces
from trainyard.training.shards import TensorOf
from trainyard.training.staged_files import AbandonedError

_NUMPY_SUMS = (torch.float32, torch.float64)
_PIECE_ELEMENTS = 1 << 20
_TEAMLESS_ELEMENTS = 1 << 15
"""As many as torch sums up without a team of threads, which the thread that asks would get of its own."""


class NotFiniteError(CheckpointError):
    """A tensor that was to be saved has an element that is infinite or not a number; its name."""


class Buffers:
    """The files of a layout in memory, and a tensor in it for every item."""

    def __init__(self, layout: FileLayout, descriptor: int = -1) -> None:
        """In the memory behind `descriptor`, which is made large enough; by default in this process's own."""
        self.layout = layout
        if descriptor >= 0 and os.fstat(descriptor).st_size < layout.size:
            os.ftruncate(descriptor, layout.size)
        self.memory = mmap.mmap(descriptor, layout.size)
        for place, content in layout.fixed:
            self.memory[place : place + len(content)] = content
        self._tensors = {
            item.index: tensor_in(self.memory, item, layout.places.get(item.index, 0))
            for item in layout.plan.items
        }

    def tensor_of(self, item: WriteItem) -> Tensor:
        """The copy of `item`."""
        return self._tensors[item.index]

    def shares(self, count: int) -> list[list[WriteItem]]:
        """The items in up to `count` lists of about as many bytes each."""
        shares: list[list[WriteItem]] = [[] for _ in range(count)]
        loads = [0] * count
        for item in sorted(self.layout.plan.items, key=lambda item: -self.tensor_of(item).nbytes):
            least = loads.index(min(loads))
            shares[least].append(item)
            loads[least] += self.tensor_of(item).nbytes
        return [share for share in shares if share]

    @torch.no_grad()
    def fill(self, items: Iterable[WriteItem], tensor_of: TensorOf) -> None:
        """Copy `items`."""
        for item in items:
            _copy(self.tensor_of(item), tensor_of(item).detach())


def require_finite(
    plan: SavePlan, tensor_of: TensorOf, *, goes_on: Callable[[], bool] = lambda: True
) -> Pieces[None]:
    """Raise NotFiniteError when a floating item has an element that is not.

    Raises AbandonedError once `goes_on()` is false.
    """
    for item in plan.items:
        for piece in _pieces(tensor_of(item).detach()):
            if not goes_on():
                raise AbandonedError("the save was abandoned")
            if not is_finite(piece):
                raise NotFiniteError(item.index.fqn)
            yield


def _pieces(tensor: Tensor) -> Sequence[Tensor]:
    """Of a few milliseconds each, where they cost no copy."""
    if not tensor.is_cpu or not tensor.is_contiguous():
        return (tensor,)
    size = _PIECE_ELEMENTS if tensor.dtype in _NUMPY_SUMS else _TEAMLESS_ELEMENTS
    return torch.split(tensor.view(-1), size)


def is_finite(tensor: Tensor) -> bool:
    """Whether no element is infinite or not a number. Read once, without a copy, unless it looks bad."""
    if not tensor.is_floating_point():
        return True
    if tensor.is_cpu and tensor.dtype in _NUMPY_SUMS:
        with np.errstate(all="ignore"):
            total = float(np.add.reduce(tensor.detach().reshape(-1).numpy()))
    else:
        total = float(tensor.sum())
    # A sum may overflow though no element does.
    return math.isfinite(total) or bool(torch.isfinite(tensor).all())


def _copy(buffer: Tensor, source: Tensor) -> None:
    """By numpy where it can be: in a second thread torch starts a second team, which slows training's."""
    if source.is_cpu and source.is_contiguous():
        np.copyto(_bytes(buffer), _bytes(source))
    else:
        buffer.copy_(source)


def _bytes(tensor: Tensor) -> "np.ndarray":
    return tensor.reshape(-1).view(torch.uint8).numpy()
