"""Fill a parameter that may be sharded: each process keeps its own shard, and nothing is sent.

Random values are drawn a few rows at a time, so that no process ever holds a complete matrix.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

# torch has no public name for it; its own checkpoints are written by it.
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

_DRAWN_AT_ONCE = 1 << 22  # values: 16 MB in float32
_GROUP = 16  # torch draws normal values in groups of this size, and the end of other tensors once more


@torch.no_grad()
def draw_normal(parameter: Tensor, deviation: float, *, generator: torch.Generator) -> None:
    """Fill the matrix `parameter` with the values that `normal_` gives to a complete one on a CPU.

    A process draws only the rows of its own shard, and lets the generator skip the others, which takes two
    thirds of the time. Equal generators are equal afterwards, whatever the shard.
    """
    rows, width = parameter.shape[0], parameter[0].numel()
    own = own_slices(parameter) if isinstance(parameter, DTensor) else (slice(0, rows),)
    target = own_part(parameter)
    for chunk in _chunks(rows, width):
        first, last = max(chunk.start, own[0].start), min(chunk.stop, own[0].stop)
        size = (chunk.stop - chunk.start) * width
        if first >= last and size % _GROUP == 0:
            torch.empty(size, dtype=torch.int32).random_(generator=generator)  # one draw for each value
            continue
        values = torch.empty(chunk.stop - chunk.start, *parameter.shape[1:])
        values.normal_(0.0, deviation, generator=generator)
        if first < last:
            part = values[(slice(first - chunk.start, last - chunk.start), *own[1:])]
            target[first - own[0].start : last - own[0].start].copy_(part)


def _chunks(rows: int, width: int) -> Iterator[slice]:
    """Cut the rows where torch's groups end; the last chunk is never smaller than a group."""
    at_once, start = max(1, _DRAWN_AT_ONCE // (_GROUP * width)) * _GROUP, 0
    while start < rows:
        end = min(start + at_once, rows)
        if (rows - end) * width < _GROUP:
            end = rows
        yield slice(start, end)
        start = end


@torch.no_grad()
def place(parameter: Tensor, values: Tensor) -> None:
    """Copy `values`, which every process has completely, into `parameter`.

    Only the own shard moves to the device of the parameter.
    """
    if not isinstance(parameter, DTensor):
        parameter.copy_(values)
        return
    parameter.to_local().copy_(values[own_slices(parameter)])


def own_slices(parameter: DTensor) -> tuple[slice, ...]:
    """The slices of the complete tensor that this process holds, one per dimension."""
    sizes, starts = compute_local_shape_and_global_offset(
        parameter.shape, parameter.device_mesh, parameter.placements
    )
    return tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True))


def own_part(tensor: Tensor) -> Tensor:
    """The shard of `tensor` that this process holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def gather_tensor(tensor: Tensor) -> Tensor:
    """The complete `tensor`, gathered from all processes if it is sharded. All processes must call it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
