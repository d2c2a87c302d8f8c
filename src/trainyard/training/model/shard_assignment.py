"""Copy values into a parameter that may be sharded: each process keeps its own shard, and nothing is sent."""

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor


@torch.no_grad()
def place(parameter: Tensor, values: Tensor) -> None:
    """Copy `values`, which every process has in whole, into `parameter`."""
    if not isinstance(parameter, DTensor):
        parameter.copy_(values)
        return
    mesh, placements = parameter.device_mesh, parameter.placements
    own = distribute_tensor(values.to(mesh.device_type), mesh, placements, src_data_rank=None)
    parameter.copy_(own)


def own_part(tensor: Tensor) -> Tensor:
    """The shard of `tensor` that this process holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """The whole `tensor`, gathered from all processes if it is sharded. All processes must call it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
