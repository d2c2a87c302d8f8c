"""Initial weights: drawn by rows, on each process its own, with the values of one complete draw."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.unit.training.model.worlds import config_of, fake_world
from torch import Tensor
from torch.distributed.tensor import DTensor

from trainyard.config.schema import ArchitectureConfig, Config
from trainyard.training.model import model as model_module
from trainyard.training.model import shard_assignment
from trainyard.training.model.model import Llama, build_model
from trainyard.training.model.parallel import put_on_devices
from trainyard.training.model.shard_assignment import draw_normal, own_part, own_slices
from trainyard.training.runtime.world import ALONE, World

SIZE = 8
SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 72,
    "num_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 264,
}
MESHES: list[dict[str, Any]] = [{"strategy": "fsdp"}, {"strategy": "hsdp", "replicas": 2}]


@pytest.fixture
def eight(request: pytest.FixtureRequest) -> Iterator[World]:
    with fake_world(request.param, SIZE) as world:
        yield world


def config(**compute: Any) -> Config:
    return config_of(SHAPE, compute=compute)


def complete_draw(architecture: ArchitectureConfig, seed: int = 42) -> dict[str, Tensor]:
    """The weights by one `normal_` for each matrix, in the order of the parameters."""
    generator, width = torch.Generator().manual_seed(seed), architecture.initializer_range
    found = {}
    for name, parameter in Llama(architecture).named_parameters():
        found[name] = torch.ones(parameter.shape)
        if parameter.ndim > 1:
            small = name.endswith(("o_proj.weight", "down_proj.weight"))
            deviation = width / math.sqrt(2 * architecture.num_layers) if small else width
            found[name].normal_(0.0, deviation, generator=generator)
    return found


@pytest.mark.parametrize("at_once", [1, 1 << 10, 1 << 22])
@pytest.mark.parametrize("eight", [0, 5], indirect=True)
@pytest.mark.parametrize("mesh", MESHES, ids=lambda mesh: "-".join(map(str, mesh.values())))
def test_every_shard_has_the_values_of_a_complete_draw(
    mesh: dict[str, Any], eight: World, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_assignment, "_DRAWN_AT_ONCE", at_once)
    wanted = config(**mesh)
    expected = complete_draw(wanted.model.architecture)
    for name, parameter in put_on_devices(wanted, eight, torch.device("cpu")).model.named_parameters():
        assert isinstance(parameter, DTensor)
        assert torch.equal(own_part(parameter), expected[name][own_slices(parameter)]), name


@pytest.mark.parametrize("at_once", [1, 1 << 22])
def test_a_model_that_is_not_sharded_has_them_too(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_assignment, "_DRAWN_AT_ONCE", at_once)
    architecture = config(strategy="ddp").model.architecture
    for seed in (42, 7):
        expected = complete_draw(architecture, seed)
        for name, parameter in build_model(architecture, seed=seed).named_parameters():
            assert torch.equal(parameter, expected[name]), name


def test_the_generator_continues_as_after_a_complete_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_assignment, "_DRAWN_AT_ONCE", 1)
    for shape in ((1, 3), (5, 3), (16, 1), (33, 1), (17, 16), (70, 7), (64, 4)):
        ours, plain = (torch.Generator().manual_seed(9) for _ in range(2))
        draw_normal(drawn := torch.empty(shape), 0.5, generator=ours)
        assert torch.equal(drawn, torch.empty(shape).normal_(0, 0.5, generator=plain)), shape
        assert torch.equal(ours.get_state(), plain.get_state()), shape


@pytest.mark.parametrize("eight", [3], indirect=True)
def test_nothing_is_drawn_when_a_checkpoint_is_to_be_loaded(
    eight: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("drew weights that a checkpoint replaces")

    monkeypatch.setattr(model_module, "draw_normal", refuse)
    for mesh in MESHES:
        put_on_devices(config(**mesh), eight, torch.device("cpu"), draw=False)
    for strategy in ("single", "ddp"):
        put_on_devices(config(strategy=strategy), ALONE, torch.device("cpu"), draw=False)
