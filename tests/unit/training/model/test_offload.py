"""`compute.cpu_offload`: parameters are in main memory, and a step computes on the device.

The device is `meta`, which every machine has: its tensors have shapes and no values, and an operation over
tensors of two devices fails as on a GPU. Other processes do not exist (torch's fake process group).
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.unit.training.model.worlds import config_of, fake_world

from trainyard.training.model.parallel import Parallel, put_on_devices
from trainyard.training.model.shard_assignment import own_part
from trainyard.training.runtime.world import World

RANK, SIZE = 1, 2


class Queue:
    """A stream or an event of a device that computes nothing: all of it is done already."""

    def __init__(self, *_args: Any, **_settings: Any) -> None:
        pass

    def record(self, *_args: Any) -> "Queue":
        return self

    record_event = record

    def wait_event(self, _event: Any) -> None:
        pass

    wait_stream = wait_event


class Meta(ModuleType):
    """The interface that torch requires of a module such as `torch.cuda`."""

    Stream = Event = Queue

    @staticmethod
    def current_device() -> int:
        return 0

    @staticmethod
    def device_count() -> int:
        return SIZE

    @staticmethod
    def is_initialized() -> bool:
        return True

    @staticmethod
    def current_stream(*_args: Any) -> Queue:
        return Queue()

    @staticmethod
    def stream(_stream: Queue) -> AbstractContextManager[None]:
        return nullcontext()


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Rank 1 of two processes with a device each."""
    monkeypatch.setattr(torch, "meta", Meta("torch.meta"), raising=False)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)  # needs a GPU
    with fake_world(RANK, SIZE) as world:
        yield world


@pytest.fixture(params=["none", "full"])
def offloaded_model(request: pytest.FixtureRequest, two: World) -> Parallel:
    compute = {"strategy": "fsdp", "cpu_offload": True, "activation_checkpointing": request.param}
    config = config_of({"hidden_size": 16, "intermediate_size": 24, "num_layers": 2}, compute=compute)
    return put_on_devices(config, two, torch.device("meta"))


def test_parameters_are_in_main_memory_and_a_pass_finds_everything_on_the_device(
    offloaded_model: Parallel,
) -> None:
    parameters = [own_part(parameter) for parameter in offloaded_model.model.parameters()]
    assert {parameter.device.type for parameter in parameters} == {"cpu"}
    assert {table.device.type for table in offloaded_model.model.buffers()} == {"meta"}
    assert all(torch.isfinite(parameter).all() for parameter in parameters)
    logits = offloaded_model.forward(torch.zeros(2, 8, dtype=torch.int64, device="meta"))
    assert (logits.device.type, logits.shape) == ("meta", (2, 8, 256))
