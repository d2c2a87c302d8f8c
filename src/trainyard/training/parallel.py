"""A model put on the devices of the world, in one order: cut, recompute, compile, shard or copy.

Cutting is tensor parallelism (`tensor_parallel`), sharding FSDP2 (`fully_shard`) over a device mesh, copying
DDP. What differs between them afterwards is in
`Parallel`; the loop knows no strategy.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

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
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
    noop_context_fn,
)

from trainyard.config.mesh import MeshShape, mesh_shape
from trainyard.config.schema import ComputeConfig, Config
from trainyard.training.gradient_compression import CompressedExchange
from trainyard.training.model import Block, Llama, build_model, initialize
from trainyard.training.tensor_parallel import cut_over_group
from trainyard.training.world import DataShare, World

_KEPT = {
    torch.ops.aten.mm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
}
"""What selective recomputation keeps: the results that cost most to make again."""


@dataclass(frozen=True)
class Parallel:
    """A model ready to train on this process's device."""

    model: Llama
    """Holds the parameters under their plain names, sharded or whole."""
    forward: Callable[[Tensor], Tensor]
    """Token ids `[batch, seq]` to logits."""
    share: DataShare
    """Which of the sequences are this process's."""
    loss_scale: float
    """What the loss is multiplied by: DDP and FSDP average gradients over processes, the loop sums them."""
    autocast: bool
    """Whether bfloat16 comes from autocast; sharding casts parameters itself."""
    compressed: CompressedExchange | None = None
    """What exchanges the gradients where they are compressed."""

    @property
    def settles(self) -> bool:
        """Whether the first backward pass decides how later ones exchange gradients, to the bit.

        DDP lays its buckets out anew after it, in the order in which gradients came. Where three or more are
        added up, the place of a number decides the order of the addition.
        """
        return isinstance(self.forward, DistributedDataParallel) and self.share.world.size > 2

    def accumulating(self, last: bool) -> AbstractContextManager[Any]:
        """Around one forward and backward pass: gradients are exchanged in the last one of a step only."""
        if isinstance(self.forward, DistributedDataParallel) and not last:
            return self.forward.no_sync()
        if isinstance(self.model, FSDPModule):
            self.model.set_requires_gradient_sync(last)
        return nullcontext()


def put_on_devices(config: Config, world: World, device: torch.device) -> Parallel:
    """Build the model of `config` with its initial weights and spread it over the world."""
    compute, shape = config.compute, config.model.architecture
    if compute.strategy in ("fsdp", "hsdp"):
        return _sharded(config, world, device)
    model = build_model(shape, seed=config.training.seed).to(device)
    _recompute(model, compute)
    forward: nn.Module = model
    if compute.compile:
        forward = torch.compile(model)  # type: ignore[assignment]
    compressed = None
    if compute.gradient_compression == "powersgd" and world.size > 1:
        # Every process makes the same weights of the same seed, so that nothing else need be exchanged.
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


def _sharded(config: Config, world: World, device: torch.device) -> Parallel:
    """FSDP2, layer by layer, then the rest; made empty, sharded, then filled: no process holds it whole."""
    compute = config.compute
    with torch.device("meta"):
        model = Llama(config.model.architecture)
    shape = mesh_shape(compute, world.size)
    mesh = _mesh(shape, compute, device)
    if shape.tensor > 1:
        cut_over_group(model, mesh["tensor"])
    _recompute(model, compute)
    if compute.compile:
        for layer in model.model.layers:
            layer.compile()
    shard = partial(
        fully_shard,
        mesh=mesh["replicate", "shard"] if compute.strategy == "hsdp" else mesh["shard"],
        mp_policy=_precision(config),
        # On a CPU everything is in its memory already.
        offload_policy=CPUOffloadPolicy()
        if compute.cpu_offload and device.type != "cpu"
        else OffloadPolicy(),
    )
    for layer in model.model.layers:
        shard(layer)
    shard(model)
    model.to_empty(device="cpu" if compute.cpu_offload else device)
    initialize(model, config.model.architecture, seed=config.training.seed)
    share = DataShare(world, processes=shape.tensor)
    return Parallel(model, model, share, loss_scale=float(shape.data), autocast=False)


def _mesh(shape: MeshShape, compute: ComputeConfig, device: torch.device) -> DeviceMesh:
    """Its dimensions are those that the configuration has; neighbours in rank cut matrices between them."""
    sizes = {"shard": shape.shards}
    if compute.strategy == "hsdp":
        sizes = {"replicate": shape.replicas, **sizes}
    if shape.tensor > 1:
        sizes["tensor"] = shape.tensor
    return init_device_mesh(device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def _precision(config: Config) -> MixedPrecisionPolicy:
    """Computation in `model.dtype`; gradients exchanged in `compute.reduce_dtype`."""
    if config.model.dtype == "float32":
        return MixedPrecisionPolicy()
    reduced = torch.bfloat16 if config.compute.reduce_dtype == "bfloat16" else torch.float32
    return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduced)


def _recompute(model: Llama, compute: ComputeConfig) -> None:
    """Make the layers compute their activations again in the backward pass instead of keeping them."""
    if compute.activation_checkpointing == "none":
        return
    selective = partial(create_selective_checkpoint_contexts, _keep_the_dear)
    contexts = noop_context_fn if compute.activation_checkpointing == "full" else selective

    def run(layer: Block, *inputs: Tensor) -> Tensor:
        result: Tensor = checkpoint(layer, *inputs, use_reentrant=False, context_fn=contexts)
        return result

    model.model.run_layer = run


def _keep_the_dear(_context: Any, operation: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE
