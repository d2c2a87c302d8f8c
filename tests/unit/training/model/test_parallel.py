"""The placement of a model on devices, as the configuration decides it."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from tests.unit.training.model.worlds import config_of, fake_world, group_of_one
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from trainyard.training.model import parallel
from trainyard.training.runtime.world import ALONE


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
