"""The place of every shard in a step among 32 processes; only one exists, in torch's fake process group.

The fake group sends nothing, so the values mean nothing. Placements, shapes and the order of calls are
those of a real run.
"""

from collections.abc import Iterator
from itertools import cycle
from typing import Any, cast

import pytest
import torch
from tests.unit.training.model.worlds import config_of, fake_world
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from trainyard.training.model.loss import summed_loss
from trainyard.training.model.model import build_model
from trainyard.training.model.optimizer import build_optimizer
from trainyard.training.model.parallel import clip_gradients, put_on_devices
from trainyard.training.model.shard_assignment import own_part, own_slices
from trainyard.training.runtime.world import World

SIZE, RANK = 32, 21
SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}
CUT_ALONG = {"o_proj": 1, "down_proj": 1}
"""The dimension in which tensor parallelism cuts a matrix; 0 for the others."""
MESHES = [
    {"strategy": "fsdp" if replicas == 1 else "hsdp", "replicas": replicas, "tensor_parallel": tensor}
    for replicas, tensor in ((1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (32, 1))
]
"""The processes that are neither replicas nor cuts are shards."""


@pytest.fixture(autouse=True)
def thirty_two() -> Iterator[None]:
    with fake_world(RANK, SIZE):
        yield


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module .* returned a view tensor")  # nothing writes to it
@pytest.mark.parametrize(
    ("mesh", "dtype"), [*zip(MESHES, cycle(["float32", "bfloat16"]), strict=False)], ids=str
)
def test_a_step_of_two_passes_leaves_every_shard_in_its_place(mesh: dict[str, Any], dtype: str) -> None:
    wanted = config_of(SHAPE, dtype=dtype, compute=mesh, training={"gradient_accumulation_steps": 2})
    parallel = put_on_devices(wanted, World(RANK, SIZE, RANK % 8, None), torch.device("cpu"))
    tensor, replicas = mesh["tensor_parallel"], mesh["replicas"]
    assert (parallel.share.size, parallel.share.rank) == (SIZE // tensor, RANK // tensor)
    optimizer = build_optimizer(parallel.model, wanted.training)
    plain = dict(build_model(wanted.model.architecture, seed=42).named_parameters())
    for name, parameter in parallel.model.named_parameters():
        require_place(name, parameter, shards=SIZE // tensor // replicas, tensor=tensor, replicas=replicas)
        assert isinstance(parameter, DTensor)
        assert torch.equal(own_part(parameter), plain[name][own_slices(parameter)])

    before = [(tuple(p.shape), p.placements) for p in parallel.model.parameters() if isinstance(p, DTensor)]
    tokens = torch.arange(2 * 17).reshape(2, 17)
    for last in (False, True):
        with parallel.accumulate(last=last):
            loss = summed_loss(parallel.forward(tokens[:, :-1]), tokens[:, 1:])
            loss.backward()  # type: ignore[no-untyped-call]
        gradients = [p.grad for p in parallel.model.parameters()]
        # Replicas sum gradients after the last pass; without replicas each pass leaves sharded gradients.
        assert all(g is None for g in gradients) == (replicas > 1 and not last)
        require_no_whole_gradient(parallel.model)
    clip_gradients(parallel.model, 1.0)
    optimizer.step()
    after = [(tuple(p.shape), p.placements) for p in parallel.model.parameters() if isinstance(p, DTensor)]
    assert after == before
    for parameter in parallel.model.parameters():
        assert isinstance(parameter, DTensor)
        assert isinstance(parameter.grad, DTensor)
        held = (parameter.grad, optimizer.state[parameter]["exp_avg"])
        assert all(isinstance(its, DTensor) and its.placements == parameter.placements for its in held)
        assert {its.dtype for its in held} == {torch.float32}


def require_place(name: str, parameter: torch.Tensor, *, shards: int, tensor: int, replicas: int) -> None:
    assert isinstance(parameter, DTensor)
    cut = tensor > 1 and parameter.ndim == 2
    sizes = (*((replicas,) if replicas > 1 else ()), shards, *((tensor,) if cut else ()))
    assert parameter.device_mesh.shape == sizes
    along = next((at for part, at in CUT_ALONG.items() if part in name), 0)
    # Where FSDP and the cut both divide rows, FSDP shards each cut, and marks that by a stride.
    rows = _StridedShard(0, split_factor=tensor) if cut and along == 0 else Shard(0)
    wanted = (*((Replicate(),) if replicas > 1 else ()), rows, *((Shard(along),) if cut else ()))
    assert parameter.placements == wanted
    share = shards * (tensor if cut else 1)
    assert own_part(parameter).numel() == pytest.approx(parameter.numel() / share, rel=0.51)


def require_no_whole_gradient(model: torch.nn.Module) -> None:
    """Fail where FSDP holds a complete gradient beside a parameter, as after a pass without a reduction."""
    groups = [
        group
        for module in model.modules()
        if hasattr(module, "_get_fsdp_state")
        for group in cast(Any, module)._get_fsdp_state()._fsdp_param_groups
    ]
    assert groups
    assert all(p.unsharded_accumulated_grad is None for group in groups for p in group.fsdp_params)
