"""The loss against torch's own; the schedules and steps of the optimizer; PowerSGD and its error."""

import itertools
import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import each_case
from tests.conditions import COMPILES
from tests.unit.training.model.worlds import group_of_one
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn import functional

from trainyard.config.schema import ArchitectureConfig, TrainingConfig
from trainyard.training.model import loss
from trainyard.training.model.gradient_compression import CompressedExchange, choose_rank
from trainyard.training.model.loss import LossKernels, compiled_kernels, summed_loss
from trainyard.training.model.model import build_model
from trainyard.training.model.optimizer import build_optimizer, learning_rate

WORDS = 11


def example(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Logits of 3 × 5 tokens and their targets; two targets do not count."""
    generator = torch.Generator().manual_seed(3)
    logits = (4 * torch.randn(3, 5, WORDS, generator=generator)).to(dtype).requires_grad_()
    targets = torch.randint(0, WORDS, (3, 5), generator=generator)
    targets[0, 0], targets[2, 3] = -1, -7
    return logits, targets


def gradient(logits: Tensor, total: Tensor) -> Tensor:
    (total / 13).backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    return logits.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_torchs_cross_entropy_forward_and_backward(dtype: torch.dtype) -> None:
    logits, targets = example(dtype)
    total = summed_loss(logits, targets)
    again = logits.detach().clone().requires_grad_()
    expected = functional.cross_entropy(
        again.float().flatten(0, 1), targets.clamp(min=-1).flatten(), reduction="sum", ignore_index=-1
    )
    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(gradient(logits, total), gradient(again, expected))


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize(
    ("dtype", "compiled"),
    [
        (torch.float32, False),
        (torch.bfloat16, False),
        pytest.param(torch.bfloat16, True, marks=[pytest.mark.slow, COMPILES]),
    ],
)
def test_one_pass_over_all_rows_has_the_values_of_a_few_at_a_time(dtype: torch.dtype, compiled: bool) -> None:
    """The kernel for GPUs; here the compiler builds it for the CPU, or it runs uncompiled."""
    kernels = LossKernels(loss._row_sums, loss._row_gradients)
    logits, targets = example(dtype)
    total = summed_loss(logits, targets, compiled_kernels() if compiled else kernels)
    again = logits.detach().clone().requires_grad_()
    expected = summed_loss(again, targets)
    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(gradient(logits, total), gradient(again, expected))


def test_how_many_rows_it_takes_at_a_time_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for at_once in (100, 1, 4, 15):
        monkeypatch.setattr(loss, "ROWS_BYTES", (4 * WORDS * at_once,) * 2)
        logits, targets = example()
        total = summed_loss(logits, targets)
        results.append((total, gradient(logits, total)))
    for total, some in results[1:]:
        assert torch.equal(total, results[0][0])
        assert torch.equal(some, results[0][1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_leaves_the_logits_as_they_are_and_keeps_no_copy_of_them(dtype: torch.dtype) -> None:
    logits, targets = example(dtype)
    before, kept = logits.detach().clone(), list[Tensor]()

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        total = summed_loss(logits, targets)
    assert gradient(logits, total).dtype == dtype
    assert torch.equal(logits, before)
    large = [tensor for tensor in kept if tensor.numel() == logits.numel()]
    assert [tensor.untyped_storage().data_ptr() for tensor in large] == [logits.untyped_storage().data_ptr()]


def test_logits_too_large_for_an_exponential_have_a_finite_loss() -> None:
    logits = torch.tensor([[[1000.0, -1000.0], [-1000.0, 1000.0]]], requires_grad=True)
    total = summed_loss(logits, torch.tensor([[0, 0]]))
    assert total.item() == 2000
    assert torch.equal(gradient(logits, total), torch.tensor([[[0.0, 0], [-1, 1]]]) / 13)


CONFIG = TrainingConfig(learning_rate=1.0, warmup_steps=4, min_learning_rate_ratio=0.1, max_steps=20)


def rates(config: TrainingConfig, steps: int) -> list[float]:
    return [learning_rate(step, steps, config) for step in range(steps)]


def test_warm_up_is_linear_and_never_zero() -> None:
    constant = rates(CONFIG.model_copy(update={"lr_scheduler": "constant"}), 20)
    assert rates(CONFIG, 20)[:4] == constant[:4] == [0.25, 0.5, 0.75, 1.0]
    assert set(constant[4:]) == {1.0}
    assert [rates(CONFIG, steps)[-1] for steps in (1, 2, 3)] == [1.0] * 3, "shorter than the warm-up"


def test_cosine_starts_at_the_peak_ends_at_the_floor_and_is_half_way_in_the_middle() -> None:
    values = rates(CONFIG.model_copy(update={"warmup_steps": 0}), 21)
    assert values[0] == 1.0
    assert values[10] == pytest.approx(0.55)
    assert values[5] == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 4)))
    assert values[-1] == pytest.approx(0.1)
    assert values == sorted(values, reverse=True)


@each_case("decay", [None, 1, 3, 40])
@each_case("warmup", [0, 1, 4, 20])
@each_case("steps", [1, 2, 5, 20, 33])
@each_case("name", ["cosine", "linear", "warmup_stable_decay"])
def test_every_schedule_rises_to_the_peak_and_ends_at_the_floor(
    name: str, steps: int, warmup: int, decay: int | None
) -> None:
    changes = {"lr_scheduler": name, "warmup_steps": warmup, "decay_steps": decay}
    values = rates(CONFIG.model_copy(update=changes), steps)
    assert max(values) == 1.0
    rising = values[: min(warmup, steps)]
    assert rising == sorted(rising)
    falling = values[max(0, min(warmup, steps) - 1) :]
    assert falling == sorted(falling, reverse=True)
    if steps > warmup + 1:
        assert values[-1] == pytest.approx(0.1)
    if name == "warmup_stable_decay":
        below = sum(value < 1.0 for value in values[warmup:])
        assert below <= (decay or math.ceil(steps / 5))
    if name == "linear" and len(falling) > 2:
        drops = [first - second for first, second in itertools.pairwise(falling[1:])]
        assert drops == pytest.approx([drops[0]] * len(drops))


def test_only_matrices_decay() -> None:
    model = build_model(ArchitectureConfig(num_layers=1), seed=0)
    optimizer = build_optimizer(model, CONFIG.model_copy(update={"weight_decay": 0.5}))
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert {decay[id(p)] for p in model.parameters() if p.ndim < 2} == {0.0}
    assert {decay[id(p)] for p in model.parameters() if p.ndim >= 2} == {0.5}


def test_moments_made_in_advance_give_the_steps_of_an_optimizer_that_makes_its_own() -> None:
    config = CONFIG.model_copy(update={"learning_rate": 1e-2})
    models = [build_model(ArchitectureConfig(num_layers=1), seed=0) for _ in range(2)]
    ours = build_optimizer(models[0], config)
    plain = build_optimizer(models[1], config)
    plain.state.clear()
    for _ in range(3):
        for model, optimizer in zip(models, (ours, plain), strict=True):
            model(torch.arange(8)[None]).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    for mine, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(mine, other)


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
