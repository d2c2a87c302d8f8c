"""Copy values into a parameter that may be sharded: each process keeps its own shard, and nothing is sent."""

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

# torch has no public name for it; its own checkpoints are written by it.
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset


@torch.no_grad()
def place(parameter: Tensor, values: Tensor) -> None:
    """Copy `values`, which every process has in whole, into `parameter`.

    Only the own shard moves to the device of the parameter.
    """
    if not isinstance(parameter, DTensor):
        parameter.copy_(values)
        return
    parameter.to_local().copy_(values[own_slices(parameter)])


def own_slices(parameter: DTensor) -> tuple[slice, ...]:
    """The slices of the whole tensor that this process holds, one per dimension."""
    sizes, starts = compute_local_shape_and_global_offset(
        parameter.shape, parameter.device_mesh, parameter.placements
    )
    return tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True))


def own_part(tensor: Tensor) -> Tensor:
    """The shard of `tensor` that this process holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """The whole `tensor`, gathered from all processes if it is sharded. All processes must call it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
