import itertools
import math

import pytest
import torch
from tests.cases import each_case

from trainyard.config.schema import ArchitectureConfig, TrainingConfig
from trainyard.training.model.model import build_model
from trainyard.training.model.optimizer import build_optimizer, learning_rate

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
