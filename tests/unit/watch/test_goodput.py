"""The time of a run by its use, for runs made with known losses; and the cost of its machines."""

import itertools
import math
from typing import Any

import pytest
from tests.cases import each_case

from trainyard.errors import ConfigError
from trainyard.watch.goodput import Goodput, Price, goodput_of, paid_seconds, price_of

SECOND, STEPS_PER_ROW = 2.0, 10
"""A step takes 2 seconds, and each tenth is logged."""


class Story:
    """Writes the records of a run, and adds up what it loses."""

    def __init__(self) -> None:
        self.now = self.created = 1.7e9
        self.rows: list[tuple[int, float]] = []
        self.events: list[dict[str, Any]] = []
        self.lost = {"start": 0.0, "recompute": 0.0, "saves": 0.0, "idle": 0.0}
        self.step = 0

    def begin(self, *, start: float, before: float = 0.0) -> "Story":
        """Start with some time before the event, and some until the first step."""
        self.now += before
        event = {"event": "resumed" if self.events else "started", "time": self.now, "step": self.step}
        self.events.append(event)
        self.now += start
        self.lost["start"] += start + before
        return self

    def train(self, rows: int, *, save: float = 0.0) -> "Story":
        for number in range(rows):
            self.step += STEPS_PER_ROW
            self.now += SECOND * STEPS_PER_ROW
            if number == rows // 2:
                self.now += save
                self.lost["saves"] += save
            self.rows.append((self.step, self.now))
        return self

    def lose(self, rows: int, *, pause: float) -> "Story":
        """Die, be away for a while, and resume without the last rows."""
        self.rows = self.rows[: len(self.rows) - rows]
        self.step -= rows * STEPS_PER_ROW
        self.lost["recompute"] += rows * SECOND * STEPS_PER_ROW
        self.now += pause
        self.lost["idle"] += pause
        self.begin(start=30)
        self.events[-1] |= {"dropped_rows": rows} if rows else {}
        return self

    @property
    def goodput(self) -> Goodput:
        steps, times = [float(step) for step, _ in self.rows], [moment for _, moment in self.rows]
        lasting = {"saves": self.lost["saves"], "created": self.created, "end": self.now}
        found = goodput_of(steps, times, self.events, **lasting)
        assert found is not None
        return found


@each_case(
    ("before", "save", "rows", "pause"), [*itertools.product((0.0, 12.0), (0.0, 5.0), (0, 7), (0.0, 600.0))]
)
def test_every_loss_is_found_and_the_rest_is_training(
    before: float, save: float, rows: int, pause: float
) -> None:
    story = Story().begin(start=40, before=before).train(100, save=save).lose(rows, pause=pause).train(50)
    found = story.goodput
    parts = {name: getattr(found, name) for name in story.lost}
    assert parts == pytest.approx(story.lost, abs=0.5)
    assert found.total == pytest.approx(story.now - story.created)
    assert found.training + sum(parts.values()) == pytest.approx(found.total)
    assert found.share == pytest.approx(1 - sum(story.lost.values()) / found.total, abs=0.01)


def test_a_segment_without_a_step_is_start() -> None:
    story = Story().begin(start=100)
    assert (story.goodput.start, story.goodput.training) == (100, 0)


@pytest.mark.parametrize(("created", "end"), [(None, 5.0), (5.0, None), (5.0, 4.0)])
def test_without_times_nothing_is_claimed(created: float | None, end: float | None) -> None:
    assert goodput_of([], [], [], saves=0, created=created, end=end) is None


@each_case(
    ("stated", "kind", "nodes", "usd"),
    [
        ("", "p5.48xlarge", 4, 4 * 55.04),
        ("12.5", "p5.48xlarge", 4, 12.5),
        ("12.5", "", 1, 12.5),
        ("cheap", "p5.48xlarge", 4, None),
        ("", "ml.p5.48xlarge", 4, None),
        ("", "p5e.48xlarge", 4, None),
        ("", "m5.large", 4, None),
        ("", "", 1, None),
    ],
)
def test_the_price_is_the_stated_one_or_that_of_the_catalogue(
    stated: str, kind: str, nodes: int, usd: float | None
) -> None:
    found = price_of(stated, kind, nodes)
    assert (found.usd_per_hour if found else None) == (None if usd is None else pytest.approx(usd))
    if isinstance(found, Price) and not stated:
        assert found.source == "4 × p5.48xlarge on demand, prices of 2026-07-20"


def test_a_pod_pays_for_its_share_of_the_machine_by_rule() -> None:
    """Each part of GPUs, CPUs and memory of each kind of machine: the largest part counts."""
    sizes = {"gpus": 8, "cpu_millis": 192_000, "memory_mib": 2048 * 1024}
    wrongs = []
    kinds, parts = ("p5.48xlarge", "m5.large", "ml.p5.48xlarge", ""), (0.0, 1 / 8, 1 / 2, 1.0)
    for kind, nodes, gpu, cpu, memory in itertools.product(kinds, (1, 4), parts, parts, parts):
        shares = dict(zip(sizes, (gpu, cpu, memory), strict=True))
        requests = {name: int(sizes[name] * part) for name, part in shares.items()}
        share = max(gpu, cpu, memory) or 1.0
        found = price_of("", kind, nodes, requests)
        if kind != "p5.48xlarge":
            wrongs += [f"{kind} has a price"] if found is not None else []
            continue
        says = f"a share of {100 * share:.3g} % of {nodes} × p5" in (found.source if found else "")
        if (
            found is None
            or not math.isclose(found.usd_per_hour, 55.04 * nodes * share)
            or says is (share == 1)
        ):
            wrongs.append(f"{nodes} × {requests}: {found}")
    assert not wrongs, "\n".join(wrongs[:20])
    assert price_of("3", "p5.48xlarge", 1, {"gpus": 1}) == Price(3, "TRAINYARD_USD_PER_HOUR")


@pytest.mark.parametrize(("spent", "left"), [(None, 3600.0), (0.0, 3600.0), (1800.0, 1800.0)])
def test_a_limit_of_the_cost_is_the_time_that_is_left_to_pay(spent: float | None, left: float) -> None:
    before = None if spent is None else Goodput(spent + 500, spent, 0, 0, 0, idle=500)
    assert paid_seconds(110.08, Price(110.08, "2 machines"), before) == left


@pytest.mark.parametrize(
    ("price", "spent", "words"),
    [(None, 0.0, "needs the price"), (Price(10, "of 2026"), 7200.0, r"\$ 20.00 of \$ 15.00 .*Raise it")],
)
def test_without_a_price_or_money_nothing_is_started(price: Price | None, spent: float, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        paid_seconds(15, price, Goodput(spent, spent, 0, 0, 0, 0))
