"""The place of every shard in a step among 32 processes; only one exists, in torch's fake process group.

The fake group sends nothing, so the values mean nothing. Placements, shapes and the order of calls are
those of a real run.
"""

from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch
from tests.unit.training.model.worlds import config_of, fake_world
from torch.distributed.tensor import DTensor, Replicate, Shard

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


@pytest.fixture(autouse=True)
def thirty_two() -> Iterator[None]:
    with fake_world(RANK, SIZE):
        yield


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module .* returned a view tensor")  # nothing writes to it
@pytest.mark.parametrize(("replicas", "dtype"), [(1, "float32"), (2, "bfloat16"), (32, "float32")])
def test_a_step_of_two_passes_leaves_every_shard_in_its_place(replicas: int, dtype: str) -> None:
    mesh = {"strategy": "fsdp" if replicas == 1 else "hsdp", "replicas": replicas}
    wanted = config_of(SHAPE, dtype=dtype, compute=mesh, training={"gradient_accumulation_steps": 2})
    parallel = put_on_devices(wanted, World(RANK, SIZE, RANK % 8, None), torch.device("cpu"))
    optimizer = build_optimizer(parallel.model, wanted.training)
    plain = dict(build_model(wanted.model.architecture, seed=42).named_parameters())
    for name, parameter in parallel.model.named_parameters():
        assert isinstance(parameter, DTensor)
        shards = SIZE // replicas
        assert parameter.device_mesh.shape == ((replicas, shards) if replicas > 1 else (shards,))
        assert parameter.placements == ((Replicate(), Shard(0)) if replicas > 1 else (Shard(0),))
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
