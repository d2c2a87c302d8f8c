"""Tensor parallelism: divide a model's matrices over a group of processes that trains on the same sequences.

    embedding: rows | q, k, v: heads | o: inputs | gate, up: width | down: inputs | output: rows

The method is that of Megatron-LM (arXiv:1909.08053): two all-reduces over the group per block and pass, none
within attention or feed-forward. Norms are replicated on each process and get the same gradients. The module
knows no optimizer and no data.
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

from trainyard.training.model.model import Llama
from trainyard.training.model.shard_assignment import gather_tensor


def cut_over_group(model: Llama, group: DeviceMesh) -> None:
    """Divide the matrices of `model` over the one-dimensional mesh `group`; tied weights stay tied.

    The size of the group must divide heads, key-value heads, the inner width and the vocabulary
    (`config.combinations`).
    """
    for layer in model.model.layers:
        parallelize_module(layer, group, _block_plan())
        for half in ("self_attn", "mlp"):
            layer.get_submodule(half).register_forward_pre_hook(partial(_replicate_input, group))
    tables: dict[str, ParallelStyle] = {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate()),
        "lm_head": ColwiseParallel(output_layouts=Replicate()),
    }
    tied = model.lm_head.weight is model.model.embed_tokens.weight
    parallelize_module(model, group, tables)
    model.model.embed_tokens.register_forward_hook(_wait_for_output)
    if tied:
        model.lm_head.weight = model.model.embed_tokens.weight


def _wait_for_output(_module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
    """Wait for the all-reduce of the output, because a compiled block does not accept a pending tensor."""
    return output.clone()


def _replicate_input(group: DeviceMesh, _module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Wrap the input of attention or feed-forward as one DTensor, so that its gradient is summed once."""
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
    """Scale the gradients of `model` to a norm of at most `limit`; return their complete norm before that.

    With tensor parallelism, the norm layers are on another mesh than the matrices; each mesh is summed
    separately.
    """
    groups: dict[DeviceMesh | None, list[Tensor]] = {}
    for parameter in model.parameters():
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        groups.setdefault(mesh, []).append(parameter)
    norms = [gather_tensor(_norm(group)) for group in groups.values()]
    total = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
    for group in groups.values():
        nn.utils.clip_grads_with_norm_(group, limit, total)
    return total


def _norm(parameters: list[Tensor]) -> Tensor:
    return nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
