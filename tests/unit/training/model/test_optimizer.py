import math

import pytest
import torch

from trainyard.config.schema import ArchitectureConfig, TrainingConfig
from trainyard.training.model.model import build_model
from trainyard.training.model.optimizer import build_optimizer, learning_rate

CONFIG = TrainingConfig(learning_rate=1.0, warmup_steps=4, min_learning_rate_ratio=0.1, max_steps=20)


def rates(config: TrainingConfig, steps: int) -> list[float]:
    return [learning_rate(step, steps, config) for step in range(steps)]


def test_warm_up_is_linear_and_never_zero() -> None:
    assert rates(CONFIG, 20)[:4] == [0.25, 0.5, 0.75, 1.0]


def test_cosine_starts_at_the_peak_ends_at_the_floor_and_is_half_way_in_the_middle() -> None:
    values = rates(CONFIG.model_copy(update={"warmup_steps": 0}), 21)
    assert values[0] == 1.0
    assert values[10] == pytest.approx(0.55)
    assert values[5] == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 4)))
    assert values[-1] == pytest.approx(0.1)
    assert values == sorted(values, reverse=True)


def test_constant_schedule_stays_at_the_peak() -> None:
    assert set(rates(CONFIG.model_copy(update={"lr_scheduler": "constant"}), 20)[3:]) == {1.0}


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_run_shorter_than_the_warm_up_still_reaches_the_peak(steps: int) -> None:
    assert rates(CONFIG, steps)[-1] == 1.0


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
