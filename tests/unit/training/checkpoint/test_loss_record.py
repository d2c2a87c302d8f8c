"""Generated loss curves: which of them spike or rise, also with a record that was copied half way."""

import math
import random
from collections.abc import Callable
from dataclasses import asdict

from tests.cases import each_case

from trainyard.training.checkpoint.training_state import LossRecord

STEPS = 600
COURSES: dict[str, Callable[[int], float]] = {
    "falling": lambda step: 5.5 * math.exp(-step / 200) + 1,
    "flat": lambda _step: 2.0,
    "a little up": lambda step: 2.0 + 0.4 * step / STEPS,
    "rising": lambda step: 2.0 + 4.0 * step / STEPS,
    "falling, then rising": lambda step: 1.0 + abs(step - 250) / 100,
    "too high from the second step": lambda step: 5.6 if step == 0 else 19.0,
    "not positive": lambda _step: -1.0,
}
RISING = ("rising", "falling, then rising", "too high from the second step")


@each_case("noise", [0.0, 0.02, 0.1])
@each_case("spike", [None, 10, 100, 599])
@each_case("course", COURSES)
def test_events_name_the_start_of_a_spike_and_of_a_rise(course: str, spike: int | None, noise: float) -> None:
    drawn = random.Random(7)
    record, found = LossRecord(), []
    for step in range(STEPS):
        loss = COURSES[course](step) * math.exp(drawn.gauss(0, noise)) * (20 if step == spike else 1)
        if step == 300:
            record = LossRecord(**asdict(record))  # as in a checkpoint
        if event := record.add(loss):
            found.append((event[0], step))
    is_seen = spike is not None and spike >= 100 and course != "not positive"
    assert [step for name, step in found if name == "loss_spike"] == ([spike] if is_seen else [])
    if noise <= 0.02:
        assert len([name for name, _ in found if name == "loss_rising"]) == (course in RISING)
