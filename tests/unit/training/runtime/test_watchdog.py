"""When training counts as standing still, and when it does not."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from trainyard.config.schema import MonitoringConfig
from trainyard.training.runtime.watchdog import Standstill, Watchdog, allow_slow_compilation


def watchdog(floor: float = 0.2, factor: float | None = 4.0) -> Watchdog:
    return Watchdog(MonitoringConfig(hang_seconds=floor, hang_factor=factor))


def started_watchdog(floor: float = 0.2) -> Watchdog:
    """A watchdog that has seen a first, short step."""
    result = watchdog(floor)
    result.record_step(0.001)
    return result


class Alarm:
    """Records its calls and their times."""

    def __init__(self) -> None:
        self.rung: list[Standstill] = []
        self.event = threading.Event()

    def __call__(self, still: Standstill) -> None:
        self.rung.append(still)
        self.event.set()


@pytest.fixture
def alarm() -> Alarm:
    return Alarm()


def test_a_standstill_is_noticed_once(alarm: Alarm) -> None:
    start = time.monotonic()
    with started_watchdog().watch(alarm):
        assert alarm.event.wait(60)
        time.sleep(0.3)
    (still,) = alarm.rung
    assert 0.2 <= still.seconds <= time.monotonic() - start
    assert still.limit == 0.2


def test_progress_raises_no_alarm(alarm: Alarm) -> None:
    dog = started_watchdog(floor=0.5)
    with dog.watch(alarm):
        for _ in range(100):
            dog.beat()
            time.sleep(0.01)
    assert not alarm.rung


def test_the_limit_is_so_many_times_the_median_and_no_less_than_the_floor() -> None:
    dog = watchdog(floor=2.0, factor=4.0)
    assert dog.limit() == 20.0, "the first step may take long"
    for seconds in (30.0, 1.0, 1.0):
        dog.record_step(seconds)
    assert dog.limit() == 4.0
    for _ in range(64):
        dog.record_step(0.01)
    assert dog.limit() == 2.0
    for _ in range(40):
        dog.record_step(3.0)
    assert dog.limit() == 12.0, "the last steps count"


def test_slow_work_has_ten_times_as_long(alarm: Alarm) -> None:
    dog = started_watchdog()
    assert dog.limit() == 0.2
    with dog.watch(alarm), dog.slow_work():
        assert dog.limit() == pytest.approx(2.0)
        time.sleep(0.5)
    assert not alarm.rung
    assert dog.limit() == 0.2


@pytest.mark.slow
def test_time_in_which_the_process_could_not_run_does_not_count(
    alarm: Alarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, slept = time.monotonic, [0.0]
    monkeypatch.setattr("trainyard.training.runtime.watchdog.time.monotonic", lambda: real() + slept[0])
    dog = started_watchdog(floor=2.0)
    with dog.watch(alarm):
        time.sleep(0.1)
        slept[0] = 3600.0
        assert not alarm.event.wait(0.5)
        assert alarm.event.wait(60)
    assert alarm.rung[0].seconds < 60


def test_another_process_can_call(alarm: Alarm) -> None:
    noticed: list[str] = []
    with started_watchdog(floor=60.0).watch(alarm, is_raised=lambda: bool(noticed)):
        noticed.append("rank 1")
        assert alarm.event.wait(50)
    assert alarm.rung[0].seconds < 50


@pytest.mark.slow
def test_patience_is_short_when_a_process_has_ended(alarm: Alarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainyard.training.runtime.watchdog._LOST_SECONDS", 0.2)
    ended: list[int] = []
    dog = started_watchdog(floor=60.0)
    with dog.watch(alarm, lost=lambda: tuple(ended)), dog.slow_work():
        ended.append(3)
        assert alarm.event.wait(50)
    assert (alarm.rung[0].limit, alarm.rung[0].lost) == (0.2, (3,))


def test_nobody_leaves_while_the_alarm_is_at_work() -> None:
    done: list[bool] = []
    at_work = threading.Event()

    def slow_alarm(_still: Standstill) -> None:
        at_work.set()
        time.sleep(0.5)
        done.append(True)

    with started_watchdog().watch(slow_alarm):
        assert at_work.wait(60)
    assert done == [True]


def test_without_a_factor_nothing_is_watched(alarm: Alarm) -> None:
    before = threading.active_count()
    with watchdog(factor=None).watch(alarm, is_raised=lambda: True):
        assert threading.active_count() == before
        time.sleep(0.2)
    assert not alarm.rung


def test_compiling_is_slow_work_and_only_while_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    dog, limits = started_watchdog(), list[float]()

    def backend(module: torch.fx.GraphModule, _inputs: list[Any]) -> Callable[..., Any]:
        limits.append(dog.limit())
        return module.forward

    def double(values: torch.Tensor) -> torch.Tensor:
        return values * 2

    compiled = torch.compile(double, backend=backend, dynamic=False)
    with allow_slow_compilation(dog):
        for size in (2, 2, 3):  # a new shape compiles again
            compiled(torch.ones(size))
        assert dog.limit() == 0.2
    compiled(torch.ones(4))
    assert limits == pytest.approx([2.0, 2.0, 0.2])
