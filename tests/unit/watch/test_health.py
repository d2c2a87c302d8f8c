"""Health: each fault planted in generated streams is found once, with its end, and none in clean ones."""

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.cases import each_case

from trainyard.gateways.nvidia import GpuReading
from trainyard.watch.health import Alert, Health, HealthRule

Row = dict[str, Any]
SPEEDS = (1.0, 6.0, 60.0)
"""Seconds between two rows."""


def clean_rows(seed: int, count: int = 200) -> Iterator[Row]:
    """An ordinary run: noisy losses and times that drift, slow first steps, saves, an odd slow step."""
    chance = random.Random(seed)
    every = math.exp(chance.uniform(math.log(0.1), math.log(300)))
    noise, drift, loss_noise = chance.uniform(0, 0.1), chance.uniform(0, 0.9), chance.uniform(0.002, 0.15)
    start, end, speed = chance.uniform(2, 12), chance.uniform(0.3, 2), chance.uniform(20, 200)
    has_steps, has_data, on_gpu = chance.random() < 0.7, chance.random() < 0.5, chance.random() < 0.5
    save, share, wander, now = chance.choice((7, 20, 50)), chance.uniform(0, 0.2), 0.0, 1.7e9
    for index in range(count):
        wander = drift * wander + chance.gauss(0, noise) * math.sqrt(1 - drift**2)
        pace = every * math.exp(wander) * (5 if index < 2 else 1) * (4 if chance.random() < 0.02 else 1)
        now += pace + (3 * every if index % save == save - 1 else 0)
        row = {"step": 10 * (index + 1), "time": now}
        row["loss"] = (end + (start - end) * math.exp(-index / speed)) * math.exp(chance.gauss(0, loss_noise))
        row |= {"step_seconds": pace / 10} if has_steps else {}
        if has_steps and has_data:
            row["data_seconds"] = row["step_seconds"] * min(1.0, share * math.exp(chance.gauss(0, 0.3)))
        row |= {"gpu_utilization_percent": float(chance.randint(60, 100))} if on_gpu else {}
        yield row


def health_of(rows: list[Row]) -> Health:
    health = Health()
    health.add_event({"event": "started", "time": rows[0]["time"] - 5})
    for row in rows:
        health.add_row(row)
    return health


FIVE = [{"step": step, "time": 1.7e9 + step, "loss": 2.0} for step in range(5)]


@pytest.mark.slow
def test_a_thousand_clean_streams_have_no_alert() -> None:
    found = {seed: health_of(list(clean_rows(seed))).alerts for seed in range(1000)}
    assert {seed: alerts for seed, alerts in found.items() if alerts} == {}


def rows_with(fault: Callable[[Row], None], *, every: float, noise: float, seed: int) -> list[Row]:
    """600 rows; the rows 300 to 399 have the fault."""
    chance, now, rows = random.Random(seed), 1.7e9, []
    for index in range(600):
        row = {"step": index + 1, "step_seconds": every * math.exp(chance.gauss(0, noise))}
        row |= {"data_seconds": 0.05 * row["step_seconds"], "gpu_utilization_percent": 95.0}
        row["loss"] = (1 + 5 * math.exp(-index / 60)) * math.exp(chance.gauss(0, noise))
        if 300 <= index < 400:
            fault(row)
        now += row["step_seconds"]
        rows.append(row | {"time": now})
    return rows


FAULTS: dict[HealthRule, tuple[dict[str, float], float]] = {
    HealthRule.SLOW: ({"step_seconds": 2.2}, 0.0),
    HealthRule.DATA_STARVED: ({"data_seconds": 10.0}, 0.0),
    HealthRule.LOSS_SPIKE: ({"loss": 4.0}, 0.0),
    HealthRule.IDLE_GPU: ({"gpu_utilization_percent": 0.02}, 300.0),
}
"""Rule -> the factors by which a fault multiplies figures, and how long it must last."""


@each_case("every", SPEEDS)
@each_case("rule", FAULTS)
def test_a_planted_fault_is_found_once_with_its_end(rule: HealthRule, every: float) -> None:
    factors, lasting = FAULTS[rule]

    def plant(row: Row) -> None:
        row.update({name: row[name] * factor for name, factor in factors.items()})

    for seed in range(5):
        noise = 0.1 * seed / 5
        rows = rows_with(plant, every=every, noise=noise, seed=seed)
        span = rows[400]["time"] - rows[300]["time"]
        alerts = health_of(rows).alerts
        assert [alert.rule for alert in alerts] == ([rule] if span > lasting else []), (seed, alerts)
        for alert in alerts:
            assert rows[300]["time"] <= alert.since <= rows[310]["time"]
            assert alert.until is not None
            assert rows[400]["time"] <= alert.until <= rows[412]["time"]


@pytest.mark.parametrize("value", ["nan", "inf", math.nan])
def test_a_loss_that_is_not_finite_is_an_alert(value: object) -> None:
    health = health_of([*FIVE, {"step": 6, "time": 1.7e9 + 6, "loss": value}])
    assert [alert.rule for alert in health.open_alerts] == [HealthRule.LOSS_SPIKE]


def test_the_loss_of_a_run_that_trains_on_rewards_is_not_judged() -> None:
    rows = list(rows_with(lambda row: row.update(loss=9 * row["loss"]), every=6.0, noise=0.02, seed=1))
    assert health_of([row | {"reward": 0.5} for row in rows]).alerts == []


def test_another_segment_may_be_slower_because_it_may_run_on_other_machines() -> None:
    rows = list(rows_with(lambda _: None, every=6.0, noise=0.02, seed=1))
    health = health_of(rows)
    health.add_event({"event": "resumed", "time": rows[-1]["time"] + 60, "step": 600})
    for row in rows_with(lambda _: None, every=30.0, noise=0.02, seed=2):
        health.add_row({**row, "time": row["time"] + 1e5})
    assert health.alerts == []


def test_a_suspected_hang_is_an_alert_until_a_row_comes() -> None:
    health = health_of(FIVE)
    health.add_event({"event": "hang_suspected", "time": 1.7e9 + 500, "step": 6, "reason": "rank 1 waits"})
    assert [alert.text for alert in health.open_alerts] == ["nothing moves, step 6: rank 1 waits"]
    health.add_row({"step": 7, "time": 1.7e9 + 600, "loss": 2.0})
    assert health.open_alerts == []


@pytest.mark.parametrize(("every", "limit"), [(1.0, 600.0), (300.0, 3000.0)])
def test_silence_is_an_alert_after_ten_minutes_or_ten_intervals(every: float, limit: float) -> None:
    times = [1.7e9 + every * index for index in range(30)]
    health = Health()
    health.judge_silence(times[-1], times[-1] + limit - 1, times)
    assert health.alerts == []
    for later in (1, 100):
        health.judge_silence(times[-1], times[-1] + limit + later, times)
    assert [(alert.rule, alert.since) for alert in health.alerts] == [(HealthRule.HUNG, times[-1])]


def readings(**changed: Any) -> list[GpuReading]:
    """Eight busy GPUs; number 3 differs."""
    usual = {"utilization_percent": 97.0, "sm_clock_mhz": 1900.0, "is_throttled": False}
    return [GpuReading(index, **(usual | changed if index == 3 else usual)) for index in range(8)]


@pytest.mark.parametrize(
    ("rule", "changed", "seconds"),
    [
        (HealthRule.IDLE_GPU, {"utilization_percent": 0.0}, 300),
        (HealthRule.THROTTLED, {"is_throttled": True, "temperature_celsius": 91.0}, 30),
        (HealthRule.GPU_FAULT, {"faults": ("its memory has no spare rows left",)}, 0),
    ],
)
def test_a_fault_of_one_gpu_is_found_once_it_lasts(
    rule: HealthRule, changed: dict[str, Any], seconds: int
) -> None:
    health = Health()
    for now in range(0, 400, 10):
        health.add_gpus(readings(**(changed if now % 200 == 0 else {})), now, node="n1")
    short = [] if seconds else [rule] * 2
    assert [alert.rule for alert in health.alerts] == short
    for now in range(400, 800, 10):
        health.add_gpus(readings(**changed), now, node="n1")
    [alert] = health.open_alerts
    assert (alert.rule, alert.subject, alert.since) == (rule, "GPU 3 of n1", 400)
    health.add_gpus(readings(), 800, node="n1")
    assert health.alerts[-1].until == 800
    assert len(health.alerts) == len(short) + 1


def test_unknown_readings_are_no_alert() -> None:
    health = Health()
    for now in range(0, 4000, 10):
        health.add_gpus([GpuReading(index) for index in range(8)], now)
    assert health.alerts == []


def test_a_rank_that_needs_longer_than_the_others_is_named() -> None:
    health = Health()
    for now in range(0, 100, 10):
        health.add_ranks({rank: 1.3 if rank == 5 else 1.0 + rank / 100 for rank in range(8)}, now)
    assert [alert.subject for alert in health.open_alerts] == ["rank 5"]
    assert "rank 5 needs 1.3 s" in health.alerts[0].text


def test_a_node_that_leaves_is_an_alert_until_it_is_not_listed() -> None:
    health = Health()
    health.add_node_notices({"n1": "karpenter.sh/disrupted"}, 10)
    health.add_node_notices({"n1": "karpenter.sh/disrupted"}, 20)
    health.add_node_notices({}, 30)
    [alert] = health.alerts
    assert alert == Alert(HealthRule.NODE_LEAVING, "n1", 10, alert.text, 30)
