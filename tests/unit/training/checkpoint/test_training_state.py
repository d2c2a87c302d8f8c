import json
import math
import random
from collections.abc import Callable
from dataclasses import asdict

import numpy as np
import torch
from tests.cases import each_case

from trainyard.training.checkpoint.training_state import (
    LossRecord,
    digest_tensors,
    generator_states,
    restore_generators,
)
from trainyard.training.runtime.hardware import seed_everything


def draws() -> list[float]:
    by_numpy = [float(np.random.random()), float(np.random.normal())]
    return [random.random(), random.gauss(), *by_numpy, float(torch.rand(()))]


def test_generator_states_survive_json() -> None:
    seed_everything(6)
    random.gauss()
    states = json.loads(json.dumps(generator_states()))
    first = draws()
    restore_generators(states)
    assert draws() == first


def test_the_seed_decides_every_generator() -> None:
    seed_everything(9)
    first = draws()
    seed_everything(10)
    assert all(a != b for a, b in zip(first, draws(), strict=True))
    seed_everything(9)
    assert draws() == first


def test_the_digest_sees_name_type_shape_and_every_bit() -> None:
    base = {"a": torch.arange(6, dtype=torch.float32), "b": torch.ones(2)}
    assert digest_tensors(base) == digest_tensors(dict(reversed(base.items())))
    nudged = base["a"].clone()
    nudged.view(torch.int32)[3] ^= 1
    for other in (
        {"a": nudged, "b": base["b"]},
        {"a": base["a"].view(2, 3), "b": base["b"]},
        {"a": base["a"].double(), "b": base["b"]},
        {"a": base["a"], "c": base["b"]},
        {"a": base["a"]},
    ):
        assert digest_tensors(other) != digest_tensors(base)


def test_the_digest_takes_any_layout_and_type() -> None:
    matrix = torch.arange(6, dtype=torch.bfloat16).view(2, 3)
    assert digest_tensors({"m": matrix.T}) == digest_tensors({"m": matrix.T.contiguous()})
    assert digest_tensors({"scalar": torch.tensor(1.0)}) != digest_tensors({"scalar": torch.tensor(2.0)})
    assert digest_tensors({"empty": torch.empty(0, 3)}) != digest_tensors({"empty": torch.empty(0, 4)})
    one, other = {"m": torch.tensor(1.0)}, {"m": torch.tensor(2.0)}
    taking_part = digest_tensors(one, hashed=False)
    assert taking_part == digest_tensors(other, hashed=False) != digest_tensors(one), "it hashes nothing"


STEPS = 600
COURSES: dict[str, Callable[[int], float]] = {
    "falling": lambda step: 5.5 * math.exp(-step / 200) + 1,
    "flat": lambda _step: 2.0,
    "rising": lambda step: 2.0 + 4.0 * step / STEPS,
    "falling, then rising": lambda step: 1.0 + abs(step - 250) / 100,
    "too high from the second step": lambda step: 5.6 if step == 0 else 19.0,
    "not positive": lambda _step: -1.0,
}


@each_case("noise", [0.0, 0.02, 0.1])
@each_case("spike", [None, 10, 100, 599])
@each_case("course", COURSES)
def test_only_the_start_of_a_spike_is_one(course: str, spike: int | None, noise: float) -> None:
    drawn = random.Random(7)
    record, found = LossRecord(), []
    for step in range(STEPS):
        loss = COURSES[course](step) * math.exp(drawn.gauss(0, noise)) * (20 if step == spike else 1)
        if step == 300:
            record = LossRecord(**asdict(record))  # as in a checkpoint
        if record.add(loss):
            found.append(step)
    is_seen = spike is not None and spike >= 100 and course != "not positive"
    assert found == ([spike] if is_seen else [])
