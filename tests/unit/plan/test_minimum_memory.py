"""The least memory of another program's step: never more than what the parts add up to, less with every
degree."""

import pytest

from trainyard.config.parameters import count_parameters
from trainyard.config.schema import ArchitectureConfig, Config
from trainyard.plan.minimum_memory import MEGATRON, SHARDED, least_bytes
from trainyard.plan.parallel_degrees import Degrees


def config() -> Config:
    shape = {"num_layers": 8, "hidden_size": 256, "intermediate_size": 1024, "vocab_size": 1000}
    return Config.model_validate(
        {"model": {"name": "x", "architecture": shape}, "training": {"max_steps": 1}}
    )


def degrees(*, world: int = 8, tensor: int = 1, pipeline: int = 1, context: int = 1) -> Degrees:
    return Degrees(world, 8, tensor, pipeline, context, 1, 1, None, 1)


@pytest.mark.parametrize("state", [MEGATRON, SHARDED])
def test_every_degree_takes_from_what_a_gpu_holds(state: tuple[int, int]) -> None:
    whole = least_bytes(config(), degrees(world=1), state)
    for other in (degrees(), degrees(tensor=2), degrees(pipeline=2, world=2), degrees(context=2, world=2)):
        assert 0 < least_bytes(config(), other, state) < whole


def test_one_gpu_holds_all_of_it() -> None:
    made = config()
    parameters = count_parameters(
        ArchitectureConfig(**made.model.architecture.model_dump(exclude={"rope_scaling"}))
    )
    inputs = 8 * made.data.sequence_length * 256 * 2
    held = parameters.total - parameters.norms
    assert least_bytes(made, degrees(world=1), MEGATRON) == held * 18 + inputs
