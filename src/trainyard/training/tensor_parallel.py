"""A model's matrices cut over the processes of a group that trains on the same sequences together.

    embedding: rows | q, k, v: heads | o: inputs | gate, up: width | down: inputs | output: rows

The way of Megatron-LM (arXiv:1909.08053): two sums over the group a block and pass, none inside a half of a
block. Norms are whole on each process and get the same gradients. It knows no optimizer and no data.
"""

from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from trainyard.training.model import Llama
from trainyard.training.placement import whole


def cut_over_group(model: Llama, group: DeviceMesh) -> None:
    """Cut the matrices of `model` over the one-dimensional mesh `group`; tied tables stay one.

    Its size must divide heads, key-value heads, the inner width and the vocabulary (`config.combinations`).
    """
    for layer in model.model.layers:
        parallelize_module(layer, group, _block_plan())
        for half in ("self_attn", "mlp"):
            layer.get_submodule(half).register_forward_pre_hook(partial(_whole_on_each, group))
    tables: dict[str, ParallelStyle] = {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate()),
        "lm_head": ColwiseParallel(output_layouts=Replicate()),
    }
    tied = model.lm_head.weight is model.model.embed_tokens.weight
    parallelize_module(model, group, tables)
    model.model.embed_tokens.register_forward_hook(_arrived)
    if tied:
        model.lm_head.weight = model.model.embed_tokens.weight


def _arrived(_module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
    """The output once its sum is there: a compiled block takes no tensor that is still on its way."""
    return output.clone()


def _whole_on_each(group: DeviceMesh, _module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The input of half a block as one distributed tensor, so that its gradient is summed up once."""
    x: Tensor = DTensor.from_local(inputs[0], group, [Replicate()], run_check=False)
    return (x, *inputs[1:])


def _block_plan() -> dict[str, ParallelStyle]:
    return {
        "self_attn.q_proj": ColwiseParallel(),
        "self_attn.k_proj": ColwiseParallel(),
        "self_attn.v_proj": ColwiseParallel(),
        "self_attn.o_proj": RowwiseParallel(),
        "mlp.gate_proj": ColwiseParallel(),
        "mlp.up_proj": ColwiseParallel(),
        "mlp.down_proj": RowwiseParallel(),
    }


def clip_gradients(model: nn.Module, limit: float) -> Tensor:
    """Scale the gradients of `model` to a norm of at most `limit`; gives the norm that they had, whole.

    Under tensor parallelism norms lie on another mesh than matrices; each mesh is summed up for itself.
    """
    groups: dict[DeviceMesh | None, list[Tensor]] = {}
    for parameter in model.parameters():
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        groups.setdefault(mesh, []).append(parameter)
    norms = [whole(_norm(group)) for group in groups.values()]
    total = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
    for group in groups.values():
        nn.utils.clip_grads_with_norm_(group, limit, total)
    return total


def _norm(parameters: list[Tensor]) -> Tensor:
    return nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
