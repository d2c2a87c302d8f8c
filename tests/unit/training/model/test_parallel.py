"""The placement of a model on devices, as the configuration decides it."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from tests.unit.training.model.worlds import config_of, fake_world, group_of_one
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from trainyard.training.model import parallel
from trainyard.training.model.model import build_model
from trainyard.training.model.parallel import Parallel, clip_gradients, cut_over_group, put_on_devices
from trainyard.training.model.shard_assignment import own_part
from trainyard.training.runtime.world import ALONE, World


@pytest.fixture
def group() -> Iterator[None]:
    """A group of this process."""
    with group_of_one():
        yield


@pytest.mark.parametrize(
    ("dtype", "reduced", "computed", "summed"),
    [
        ("float32", "bfloat16", None, None),
        ("bfloat16", "float32", torch.bfloat16, torch.float32),
        ("bfloat16", "bfloat16", torch.bfloat16, torch.bfloat16),
    ],
)
@pytest.mark.usefixtures("group")
def test_shards_are_cast_and_summed_up_as_configured(
    monkeypatch: pytest.MonkeyPatch, dtype: str, reduced: str, computed: Any, summed: Any
) -> None:
    policies: list[MixedPrecisionPolicy] = []
    original = fully_shard

    def record_module(module: Any, **settings: Any) -> Any:
        policies.append(settings["mp_policy"])
        return original(module, **settings)

    monkeypatch.setattr(parallel, "fully_shard", record_module)
    compute = {"strategy": "fsdp", "reduce_dtype": reduced}
    config = config_of({"hidden_size": 16, "num_layers": 1}, dtype=dtype, compute=compute)
    model = parallel.put_on_devices(config, ALONE, torch.device("cpu"))
    assert {(policy.param_dtype, policy.reduce_dtype) for policy in policies} == {(computed, summed)}
    logits = model.forward(torch.zeros(1, 4, dtype=torch.int64))
    assert logits.dtype == (computed or torch.float32)
    torch.autograd.backward(logits.float().sum())
    assert {p.grad.dtype for p in model.model.parameters() if p.grad is not None} == {torch.float32}


def test_a_compiled_model_is_split_at_the_buckets_of_ddp(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single graph would return all gradients at its end, and no bucket would be exchanged earlier."""
    graphs: list[Any] = []

    def count_call(graph: Any, _examples: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=count_call))
    # The parameters of the other process are verified over the network, which is missing here.
    verified = "torch.nn.parallel.distributed._verify_param_shape_across_processes"
    monkeypatch.setattr(verified, lambda *_: None)
    torch.compiler.reset()
    compute = {"strategy": "ddp", "compile": True}
    config = config_of({"hidden_size": 1024, "num_layers": 4}, compute=compute)
    with fake_world(0, 2) as world:
        model = parallel.put_on_devices(config, world, torch.device("cpu"))
        model.forward(torch.zeros(1, 4, dtype=torch.int64))
    torch.compiler.reset()
    size = 4 * sum(parameter.numel() for parameter in model.model.parameters())
    assert len(graphs) >= size // (25 << 20) > 1


SHAPE = {"hidden_size": 16, "intermediate_size": 24, "num_layers": 1, "vocab_size": 258}
RANK, SIZE = 3, 4


@pytest.fixture
def four() -> Iterator[World]:
    """This process is rank 3 of four; the others do not exist."""
    with fake_world(RANK, SIZE) as world:
        yield world


@pytest.fixture(params=[False, True], ids=["untied", "tied"])
def cut(request: pytest.FixtureRequest, four: World) -> Parallel:
    """The model in 2 shards × 2 cuts."""
    compute = {"strategy": "fsdp", "tensor_parallel": 2}
    config = config_of({**SHAPE, "tie_word_embeddings": request.param}, compute=compute)
    return put_on_devices(config, four, torch.device("cpu"))


def test_a_block_is_given_a_tensor_that_has_arrived(four: World) -> None:
    # In torch 2.13 a compiled block computes wrong gradients for a pending one (AsyncCollectiveTensor).
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("shard", "tensor"))
    model = build_model(config_of(SHAPE).model.architecture, seed=42)
    cut_over_group(model, mesh["tensor"])
    given = model.model.embed_tokens(torch.zeros(1, 4, dtype=torch.int64))
    assert type(given) is torch.Tensor
    assert given.shape == (1, 4, 16)


def test_the_norm_is_over_every_mesh_and_all_gradients_shrink_alike(cut: Parallel) -> None:
    for parameter in cut.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    assert len({p.device_mesh for p in cut.model.parameters() if isinstance(p, DTensor)}) == 2
    total = clip_gradients(cut.model, 1.0).item()
    # The fake group sends nothing: the sum is over the gradients that this process holds.
    held = sum(own_part(parameter).numel() for parameter in cut.model.parameters())
    assert total == pytest.approx(held**0.5, rel=1e-5)
    for parameter in cut.model.parameters():
        assert parameter.grad is not None
        assert own_part(parameter.grad).flatten()[0].item() == pytest.approx(1 / total, rel=1e-4)
