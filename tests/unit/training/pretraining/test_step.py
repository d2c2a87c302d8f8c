"""The side effects of a step: how often it waits for the device, and when it draws its batch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from trainyard.config.schema import Config
from trainyard.run.records import Row
from trainyard.training.model.parallel import put_on_devices
from trainyard.training.pretraining.step import TrainStep
from trainyard.training.runtime.world import ALONE

STEPS = {"training": {"max_steps": 3, "gradient_accumulation_steps": 2}}
RunTraining = Callable[..., dict[str, Any]]


class Readings(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts how often the value of a tensor is read, for which the host waits for a GPU."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, operation: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += operation in (
            torch.ops.aten._local_scalar_dense.default,
            torch.ops.aten.nonzero.default,
        )
        return operation(*args, **kwargs or {})


def test_a_step_asks_for_values_once(
    tiny_config: Callable[..., Config], run_training: RunTraining, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings, lists = Readings(), []
    run, read = TrainStep.run, Tensor.tolist

    def count_step(step: TrainStep) -> Row:
        with readings:
            return run(step)

    def list_values(tensor: Tensor) -> Any:
        lists.append(tensor)
        return read(tensor)

    monkeypatch.setattr(TrainStep, "run", count_step)
    monkeypatch.setattr(Tensor, "tolist", list_values)
    run_training(tiny_config(**STEPS))
    assert readings.count == 0
    assert len(lists) == 3  # loss and gradient norm together, in each of three steps


def test_a_batch_that_was_prepared_ahead_is_the_same(
    tiny_config: Callable[..., Config], run_training: RunTraining, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = run_training(tiny_config(**STEPS), "plain")
    used: list[bool] = []
    read, own = TrainStep._read, TrainStep._own_batch

    def ahead(step: TrainStep, *tensors: Tensor) -> tuple[float, float]:
        step._prefetch()  # as on a GPU
        return read(step, *tensors)

    def record_read(step: TrainStep, number: int) -> Any:
        ready, batch = step._next, own(step, number)
        used.append(batch is ready)
        return batch

    monkeypatch.setattr(TrainStep, "_read", ahead)
    monkeypatch.setattr(TrainStep, "_own_batch", record_read)
    prefetched = run_training(tiny_config(**STEPS), "prefetched")
    assert used == [False, True, True]
    assert prefetched["state_sha256"] == plain["state_sha256"]


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_for_a_checkpoint_is_not_drawn(tied: bool, tiny_config: Callable[..., Config]) -> None:
    config = tiny_config(model={"architecture": {"tie_word_embeddings": tied}})
    drawn = put_on_devices(config, ALONE, torch.device("cpu")).model
    before = torch.get_rng_state()
    empty = put_on_devices(config, ALONE, torch.device("cpu"), draw=False).model
    assert torch.equal(torch.get_rng_state(), before)
    assert (empty.lm_head.weight is empty.model.embed_tokens.weight) == tied
    shapes = {name: value.shape for name, value in drawn.named_parameters()}
    assert {name: value.shape for name, value in empty.named_parameters()} == shapes
    for name, table in drawn.named_buffers():
        assert torch.equal(empty.get_buffer(name), table)
