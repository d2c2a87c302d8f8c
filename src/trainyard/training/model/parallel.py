"""Put a model on the devices of the world: tensor parallelism, recomputation, compiling, then FSDP2 or DDP.

FSDP2 is `fully_shard` over a device mesh. `Parallel` holds the differences between the strategies; the loop
knows no strategy. Tensor parallelism divides a model's matrices over a group of processes that trains on the
same sequences, as in Megatron-LM (arXiv:1909.08053):

    embedding: rows | q, k, v: heads | o: inputs | gate, up: width | down: inputs | output: rows

That takes two all-reduces over the group per block and pass, none within attention or feed-forward. Norms are
replicated on each process and get the same gradients.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from trainyard.config.mesh import MeshShape, mesh_shape
from trainyard.config.schema import ArchitectureConfig, ComputeConfig, Config
from trainyard.training.model.gradient_compression import CompressedExchange
from trainyard.training.model.model import Block, Llama, build_model, fill_tables, initialize
from trainyard.training.model.shard_assignment import gather_tensor
from trainyard.training.runtime.world import DataShare, World

# The operations whose results selective recomputation keeps, because they are the most expensive.
_KEPT = {
    torch.ops.aten.mm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
}


@dataclass(frozen=True)
class Parallel:
    """A model ready to train on this process's device."""

    model: Llama
    """Holds the parameters under their original names, sharded or not."""
    forward: Callable[[Tensor], Tensor]
    """Token ids `[batch, seq]` to logits."""
    share: DataShare
    """This process's share of the sequences."""
    loss_scale: float
    """The factor of the loss; needed because DDP and FSDP average gradients, but the loop needs their sum."""
    autocast: bool
    """Whether bfloat16 uses autocast; FSDP casts parameters itself."""
    compressed: CompressedExchange | None = None
    """Exchanges the gradients if they are compressed."""

    @property
    def has_unsettled_buckets(self) -> bool:
        """Return whether the first backward pass changes the bits of later gradient exchanges.

        DDP rebuilds its buckets after it, in the order in which gradients arrived. With three or more
        processes, the position of a value in a bucket determines the order of summation.
        """
        return isinstance(self.forward, DistributedDataParallel) and self.share.world.size > 2

    def accumulate(self, last: bool) -> AbstractContextManager[Any]:
        """Wrap one forward and backward pass, of which the `last` one completes the gradients of the step.

        DDP exchanges complete gradients, so it does so once. FSDP sums and divides them in every pass;
        otherwise each process would hold the complete gradients of the passes before, in float32. Only the
        all-reduce over the replicas of hsdp, which adds shards to shards, waits for the last pass.
        """
        if isinstance(self.forward, DistributedDataParallel) and not last:
            return self.forward.no_sync()
        if isinstance(self.model, FSDPModule):
            self.model.set_requires_all_reduce(last)
        return nullcontext()


def put_on_devices(config: Config, world: World, device: torch.device, *, draw: bool = True) -> Parallel:
    """Build the model of `config` with its initial weights and distribute it over the world.

    Without `draw` its weights hold no values yet, because a checkpoint is loaded into them.
    """
    compute, shape = config.compute, config.model.architecture
    if compute.strategy in ("fsdp", "hsdp"):
        return _shard(config, world, device, draw=draw)
    model = build_model(shape, seed=config.training.seed).to(device) if draw else _empty_model(shape, device)
    model.model.separates_documents = config.data.packing == "separate"
    _recompute(model, compute)
    forward: nn.Module = model
    if compute.compile:
        # Within DDP, torch splits the graph at the borders of DDP's buckets, so that they are exchanged while
        # other gradients are computed.
        forward = torch.compile(model)  # type: ignore[assignment]
    compressed = None
    if compute.gradient_compression == "powersgd" and world.size > 1:
        # Every process makes the same weights from the same seed, so nothing else has to be exchanged.
        compressed = CompressedExchange(
            model,
            init_device_mesh(device.type, (world.size,)),
            ratio=config.kernel_optimization.compression_ratio,
            seed=config.training.seed,
        )
    elif compute.strategy == "ddp" and world.size > 1:
        forward = DistributedDataParallel(
            forward,
            device_ids=[device.index] if device.type == "cuda" else None,
            gradient_as_bucket_view=True,
        )
    scale = float(world.size)
    return Parallel(model, forward, DataShare(world), scale, autocast=True, compressed=compressed)


def _empty_model(shape: ArchitectureConfig, device: torch.device) -> Llama:
    with torch.device("meta"):
        model = Llama(shape)
    model.to_empty(device=device)
    if shape.tie_word_embeddings:
        model.lm_head.weight = model.model.embed_tokens.weight
    fill_tables(model, shape)
    return model


def _shard(config: Config, world: World, device: torch.device, *, draw: bool) -> Parallel:
    """Apply FSDP2 to each layer, then to the rest.

    The model is created empty, sharded, and then filled, so that no process holds all of it.
    """
    compute = config.compute
    with torch.device("meta"):
        model = Llama(config.model.architecture)
    shape = mesh_shape(compute, world.size)
    mesh = _mesh(shape, compute, device)
    if shape.tensor > 1:
        cut_over_group(model, mesh["tensor"])
    model.model.separates_documents = config.data.packing == "separate"
    _recompute(model, compute)
    if compute.compile:
        for layer in model.model.layers:
            layer.compile()
    shard = partial(
        fully_shard,
        mesh=mesh["replicate", "shard"] if compute.strategy == "hsdp" else mesh["shard"],
        mp_policy=_precision(config),
        # A model on a CPU is in main memory already.
        offload_policy=CPUOffloadPolicy()
        if compute.cpu_offload and device.type != "cpu"
        else OffloadPolicy(),
    )
    for layer in model.model.layers:
        shard(layer)
    shard(model)
    model.to_empty(device="cpu" if compute.cpu_offload else device)
    # Offloading keeps only parameters in main memory.
    for name, table in model.model.named_buffers(recurse=False):
        setattr(model.model, name, torch.empty_like(table, device=device))
    if draw:
        initialize(model, config.model.architecture, seed=config.training.seed)
    else:
        fill_tables(model, config.model.architecture)
    share = DataShare(world, processes=shape.tensor)
    return Parallel(model, model, share, loss_scale=float(shape.data), autocast=False)


def _mesh(shape: MeshShape, compute: ComputeConfig, device: torch.device) -> DeviceMesh:
    """Build the mesh with the configured dimensions; neighbouring ranks form the tensor-parallel groups."""
    sizes = {"shard": shape.shards}
    if compute.strategy == "hsdp":
        sizes = {"replicate": shape.replicas, **sizes}
    if shape.tensor > 1:
        sizes["tensor"] = shape.tensor
    return init_device_mesh(device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def _precision(config: Config) -> MixedPrecisionPolicy:
    """The precision policy: compute in `model.dtype`, reduce gradients in `compute.reduce_dtype`."""
    if config.model.dtype == "float32":
        return MixedPrecisionPolicy()
    reduced = torch.bfloat16 if config.compute.reduce_dtype == "bfloat16" else torch.float32
    return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduced)


def _recompute(model: Llama, compute: ComputeConfig) -> None:
    """Make the layers recompute their activations in the backward pass instead of keeping them."""
    if compute.activation_checkpointing == "none":
        return
    run = _run_recomputing_all if compute.activation_checkpointing == "full" else _run_keeping_products
    for layer in model.model.layers:
        cast(Block, layer).run = run


def _run_recomputing_all(block: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    result: Tensor = checkpoint(block, *inputs, use_reentrant=False)
    return result


def _run_keeping_products(block: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    # The compiler of torch 2.13 refuses a `context_fn` that was made outside of what it compiles.
    contexts = partial(create_selective_checkpoint_contexts, _keep_expensive)
    result: Tensor = checkpoint(block, *inputs, use_reentrant=False, context_fn=contexts)
    return result


def _keep_expensive(_context: Any, operation: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE


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
    gradients = ([p.grad for p in group if p.grad is not None] for group in groups.values())
    norms = [gather_tensor(nn.utils.get_total_norm(own)) for own in gradients]
    total = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
    for group in groups.values():
        nn.utils.clip_grads_with_norm_(group, limit, total)
    return total
