"""What a configuration decides of how a model is put on devices."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import destroy_process_group, init_process_group
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from trainyard.config.schema import Config
from trainyard.training.model import parallel
from trainyard.training.runtime.world import ALONE


@pytest.fixture
def group() -> Iterator[None]:
    """A group of this process."""
    init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        destroy_process_group()


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
    whole = fully_shard

    def watched(module: Any, **settings: Any) -> Any:
        policies.append(settings["mp_policy"])
        return whole(module, **settings)

    monkeypatch.setattr(parallel, "fully_shard", watched)
    config = Config.model_validate(
        {
            "model": {"name": "x", "dtype": dtype, "architecture": {"hidden_size": 16, "num_layers": 1}},
            "training": {"max_steps": 1},
            "compute": {"strategy": "fsdp", "reduce_dtype": reduced},
        }
    )
    model = parallel.put_on_devices(config, ALONE, torch.device("cpu"))
    assert {(policy.param_dtype, policy.reduce_dtype) for policy in policies} == {(computed, summed)}
    logits = model.forward(torch.zeros(1, 4, dtype=torch.int64))
    assert logits.dtype == (computed or torch.float32)
    torch.autograd.backward(logits.float().sum())
    assert {p.grad.dtype for p in model.model.parameters() if p.grad is not None} == {torch.float32}
