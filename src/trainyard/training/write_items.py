"""What one process writes of one tensor, and how such items follow each other in a file."""

import io
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed.checkpoint.planner import WriteItem

ALIGNMENT = 64
"""Bytes; a line of the cache, and a multiple of every element's size."""


def form_of(item: WriteItem) -> tuple[tuple[int, ...], torch.dtype]:
    """The shape and type of what is written of a tensor."""
    assert item.tensor_data is not None, f"{item.index.fqn} is not a tensor"
    return tuple(item.tensor_data.chunk.sizes), item.tensor_data.properties.dtype


def bytes_of(item: WriteItem) -> int:
    """How many are written."""
    shape, dtype = form_of(item)
    return math.prod(shape) * dtype.itemsize


def in_writing_order(items: Iterable[WriteItem]) -> list[WriteItem]:
    """By the bytes of the whole tensor, as torch.distributed.checkpoint does to overlap copies from a GPU.

    Elsewhere it takes them as they come: so a file is the same whichever way it is written.
    """

    def whole(item: WriteItem) -> int:
        assert item.tensor_data is not None, f"{item.index.fqn} is not a tensor"
        return math.prod(item.tensor_data.size) * form_of(item)[1].itemsize

    return sorted(items, key=whole)


def rounded_up(size: int, unit: int) -> int:
    """To a multiple of `unit`."""
    return -(-size // unit) * unit


class ItemsStream(io.RawIOBase):
    """A file of torch.distributed.checkpoint, in which each item begins at a multiple of ALIGNMENT.

    `tell` is called before and after each item, and in it a tensor's bytes begin at a multiple of 64. Where a
    copy of the file begins with a page of memory, every tensor in it is thus one that can be computed with.
    """

    def __init__(self) -> None:
        self.size = 0
        """Bytes so far."""
        self._was_told = False

    def put(self, view: memoryview) -> None:
        """Append `view`."""
        raise NotImplementedError

    def write(self, content: Any) -> int:
        view = memoryview(content).cast("B")
        if len(view):
            self.put(view)
            self.size += len(view)
            self._was_told = False
        return len(view)

    def tell(self) -> int:
        if self._was_told:  # twice with nothing in between: one item has ended, the next one is to begin
            self.write(bytes(rounded_up(self.size, ALIGNMENT) - self.size))
        self._was_told = True
        return self.size
