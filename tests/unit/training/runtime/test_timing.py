"""The parts of a step's time, and the peak speed of the device."""

import time
from collections import deque
from statistics import median

import pytest
from tests.unit.training.lab import Lab

from trainyard.training.runtime.timing import GpuClock, HostClock

PARTS = ("data_seconds", "forward_seconds", "backward_seconds", "optimizer_seconds")


def test_laps_of_a_part_add_up_and_time_between_steps_belongs_to_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    clock = HostClock()
    for pause in (0.25, 0.5):
        clock.begin()
        clock.lap("data")
        now[0] += pause
        clock.lap("forward")
        now[0] += 8
    seconds = clock.read()
    assert seconds == {"data_seconds": 0.0, "forward_seconds": 0.75}
    assert clock.read() == {}


class Event:
    """A CUDA event that passes when the test sets it."""

    now = 0.0
    passed_until = 0.0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at = Event.now

    def query(self) -> bool:
        return self.at <= Event.passed_until

    def elapsed_time(self, end: "Event") -> float:
        return (end.at - self.at) * 1e3


def test_a_gpus_update_is_in_the_reading_of_the_step_that_waited_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch.cuda.Event", Event)
    clock, readings = GpuClock(), deque[dict[str, float]]()
    for start in (0.0, 100.0):
        for at, part in enumerate((None, "data", "forward", "backward", "optimizer")):
            Event.now = start + at * at
            clock.begin() if part is None else clock.lap(part)
        Event.passed_until = start + 9  # the update, 7 seconds, is still running
        readings.append(clock.read())
    assert readings[0] == {"data_seconds": 1.0, "forward_seconds": 3.0, "backward_seconds": 5.0}
    assert readings[1] == readings[0] | {"optimizer_seconds": 7.0}


def test_each_row_has_the_times_of_the_parts_of_its_step(lab: Lab) -> None:
    lab.run(lab.config(training={"max_steps": 6, "validation_steps": None}))
    rows = lab.rows()
    for row in rows:
        assert all(row[part] > 0 for part in PARTS)
        assert sum(row[part] for part in PARTS) <= row["step_seconds"] + 1e-6
    # A busy machine may take the processor away between two parts, so the median step is judged, not each.
    assert median(sum(row[part] for part in PARTS) / row["step_seconds"] for row in rows) > 0.8
    held_up = [row["checkpoint_seconds"] > 0 for row in rows]
    assert held_up == [False, False, False, False, True, False], "step 4 was saved before step 5"


def test_mfu_is_the_share_of_the_peak_of_all_devices(lab: Lab) -> None:
    requested: list[str] = []

    def peak(name: str) -> float:
        requested.append(name)
        return 4e9

    config = lab.config(training={"max_steps": 2})
    lab.run(config, "known", flops_per_token=1000, peak_flops=peak)
    for row in lab.rows("known"):
        assert row["mfu"] == pytest.approx(row["tokens_per_second"] * 1000 / 4e9)
    record = lab.record("known")
    assert (record["plan"]["flops_per_token"], record["hardware"]["peak_flops"]) == (1000, 4e9)
    assert set(requested) == {"cpu"}
    lab.run(config, "no count", peak_flops=peak)
    lab.run(config, "no peak", flops_per_token=1000, peak_flops=lambda name: None)
    lab.run(config, "above 1", flops_per_token=1000, peak_flops=lambda name: 1.0)
    for run in ("no count", "no peak", "above 1"):
        assert not any("mfu" in row for row in lab.rows(run)), run
