"""The axes of the charts."""

import pytest
from tests.cases import each_case

from trainyard.report.dashboard.chart import BOTTOM, LEFT, RIGHT, TOP, Chart, draw_chart, round_ticks
from trainyard.report.dashboard.panels import DrawnPanel, Panel, Series
from trainyard.report.facts.curve import Point
from trainyard.report.facts.event_words import AxisMark


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (1.08, 5.56, [0, 2, 4, 6]),
        (0, 600, [0, 200, 400, 600]),
        (0, 0.003, [0, 0.001, 0.002, 0.003]),
        (-1, 1, [-1, 0, 1]),
    ],
)
def test_ticks_are_round_and_enclose_the_values(low: float, high: float, ticks: list[float]) -> None:
    assert round_ticks(low, high, 4) == ticks


@pytest.mark.parametrize("value", [0.0, 1.0, -3.0, 1e-12, 1e12])
def test_a_single_value_has_an_axis(value: float) -> None:
    ticks = round_ticks(value, value, 4)
    assert ticks[0] <= value <= ticks[-1]
    assert ticks[0] < ticks[-1]


def chart_of(*lines: list[tuple[float, float]], marks: tuple[AxisMark, ...] = ()) -> Chart:
    series = (Series(0, 0, "loss", [Point(*point) for point in line], "c0") for line in lines)
    return draw_chart(DrawnPanel(Panel("Loss", ()), tuple(series)), marks)


def test_the_chart_stays_in_its_frame_and_keeps_a_spike() -> None:
    values = [(float(step), 50.0 if step == 333 else 5 / step) for step in range(1, 1001)]
    chart = chart_of(values, [(300.0, 7.0)])
    points = [tuple(map(int, pair.split(","))) for pair in chart.lines[0].points.split()]
    assert len(points) < 200
    assert all(LEFT <= across <= RIGHT and TOP <= down <= BOTTOM for across, down in points)
    assert (
        min(down for _, down in points) < 50 < min(down for at, down in points if at not in range(190, 195))
    )
    assert len(chart.lines[1].dots) == 1


def test_large_step_numbers_are_shortened() -> None:
    labels = [label for _, label in chart_of([(0, 1.0), (1_000_000, 2.0)]).columns]
    assert labels == ["0", "250k", "500k", "750k", "1M"] or labels == [
        "0",
        "200k",
        "400k",
        "600k",
        "800k",
        "1M",
    ]


@each_case("last", [1, 2, 3, 7, 15, 25, 40, 99])
def test_every_tick_is_at_a_whole_step(last: int) -> None:
    """A tick between two steps would be labelled with one of them."""
    first = 0 if last >= 10 else 1
    columns = chart_of([(float(step), 1.0) for step in range(1, last + 1)]).columns
    assert columns
    for at, label in columns:
        share = (int(label) - first) / (max(last, 1.1) - first)
        assert at == pytest.approx(LEFT + share * (RIGHT - LEFT), abs=0.06)


def test_words_of_marks_do_not_cover_each_other() -> None:
    marks = tuple(AxisMark(float(step), "checkpoint failed") for step in range(100, 112))
    placed = chart_of([(0, 1.0), (600, 2.0)], marks=marks).marks
    assert len(placed) == 12
    assert [words for *_, words in placed].count("checkpoint failed") == 3, "one on each of three lines"
    assert len({y for _, _, y, words in placed if words}) == 3
