"""PowerSGD: the largest rank that reaches a ratio; the next steps make up for the error of a step."""

import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.training.model.worlds import group_of_one
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from trainyard.training.model.gradient_compression import CompressedExchange, choose_rank

SIZES = st.integers(1, 600)
SHAPES = st.lists(st.one_of(st.tuples(SIZES), st.tuples(SIZES, SIZES)), min_size=1, max_size=8)


def sent_elements(shapes: list[tuple[int, ...]], rank: int) -> int:
    """The number of elements that are sent, counted in the plainest way."""
    numbers = 0
    for shape in shapes:
        thin = rank * sum(shape) if len(shape) == 2 else math.inf
        numbers += int(min(thin, math.prod(shape)))
    return numbers


@given(shapes=SHAPES, ratio=st.floats(1, 200))
def test_the_rank_is_the_largest_that_reaches_the_ratio(shapes: list[tuple[int, ...]], ratio: float) -> None:
    found, total = choose_rank(shapes, ratio), sum(math.prod(shape) for shape in shapes)
    assert found.ratio == pytest.approx(total / sent_elements(shapes, found.rank))
    assert found.rank == 1 or found.ratio >= ratio
    most = max((min(shape) for shape in shapes if len(shape) == 2), default=1)
    assert all(total / sent_elements(shapes, rank) < ratio for rank in range(found.rank + 1, most + 1))


@pytest.fixture
def alone() -> Iterator[DeviceMesh]:
    """A mesh of this process only: the mean over it is its own gradient."""
    with group_of_one():
        yield init_device_mesh("cpu", (1,))


def model_with(*gradients: Tensor) -> nn.Module:
    model = nn.Module()
    for number, gradient in enumerate(gradients):
        parameter = nn.Parameter(torch.zeros_like(gradient))
        parameter.grad = gradient.clone()
        model.register_parameter(f"p{number}", parameter)
    return model


def test_a_gradient_of_low_rank_is_exchanged_exactly(alone: DeviceMesh) -> None:
    generator = torch.Generator().manual_seed(1)
    low = torch.randn(40, 2, generator=generator) @ torch.randn(2, 30, generator=generator)
    vector = torch.randn(40, generator=generator)
    model = model_with(low, vector)
    exchange = CompressedExchange(model, alone, ratio=5, seed=3)
    assert exchange.compression.rank == 2
    exchange.exchange()
    assert torch.allclose(model.get_parameter("p0").grad, low, atol=1e-4)  # type: ignore[arg-type]
    assert torch.equal(model.get_parameter("p1").grad, vector)  # type: ignore[arg-type]


def test_what_is_left_out_is_kept_until_it_is_committed_and_made_up_for(alone: DeviceMesh) -> None:
    gradient = torch.randn(40, 30, generator=torch.Generator().manual_seed(1))
    model = model_with(gradient)
    parameter = model.get_parameter("p0")
    exchange = CompressedExchange(model, alone, ratio=5, seed=3)
    exchange.exchange()
    before = {name: value.clone() for name, value in exchange.tensors().items()}
    assert parameter.grad is not None
    approximate = parameter.grad.clone()
    assert not before["error.p0"].to_local().any()  # type: ignore[attr-defined]
    exchange.commit()
    error = exchange.tensors()["error.p0"].to_local()[0]  # type: ignore[attr-defined]
    assert torch.allclose(approximate + error, gradient, atol=1e-5)
    assert error.norm() > 0.3 * gradient.norm()
    total = approximate
    for _ in range(40):
        parameter.grad = gradient.clone()
        exchange.exchange()
        exchange.commit()
        total = total + parameter.grad
    assert (total / 41 - gradient).norm() < 0.3 * error.norm()


def test_the_same_state_gives_the_same_bits(alone: DeviceMesh) -> None:
    gradient = torch.randn(40, 30, generator=torch.Generator().manual_seed(1))
    first = CompressedExchange(model_with(gradient), alone, ratio=5, seed=3)
    first.exchange()
    first.commit()
    model = model_with(gradient)
    second = CompressedExchange(model, alone, ratio=5, seed=4)
    for name, value in second.tensors().items():
        value.copy_(first.tensors()[name])
    again = CompressedExchange(other := model_with(gradient), alone, ratio=5, seed=3)
    again.exchange()
    again.commit()
    other.get_parameter("p0").grad = gradient.clone()
    again.exchange()
    second.exchange()
    assert torch.equal(model.get_parameter("p0").grad, other.get_parameter("p0").grad)  # type: ignore[arg-type]
