"""The axes of the charts."""

import re
import xml.etree.ElementTree as ET

import pytest

from trainyard.report.dashboard.chart import Frame, Layer, line_chart, round_ticks
from trainyard.report.facts.curve import Point


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


def test_the_chart_is_well_formed_and_stays_in_its_frame() -> None:
    frame = Frame(900, 320)
    layers = [
        Layer("mean", [Point(step, 5 / step) for step in range(1, 601)]),
        Layer("dots", [Point(300, 7.0)], "a <b>"),
    ]
    root = ET.fromstring(line_chart(layers, frame, label='Loss "x"', format_value=lambda value: f"<{value}>"))
    assert root.get("aria-label") == 'Loss "x"'
    for line in root.iter("polyline"):
        for pair in (line.get("points") or "").split():
            across, down = (float(number) for number in pair.split(","))
            assert frame.left <= across <= frame.width - frame.right
            assert frame.top <= down <= frame.height - frame.bottom


def test_large_step_numbers_are_shortened() -> None:
    layers = [Layer("mean", [Point(0, 1.0), Point(1_000_000, 2.0)])]
    text = line_chart(layers, Frame(900, 320), label="Loss", format_value=str)
    assert ">200k<" in text
    assert ">1M<" in text
    assert "1,000,0" not in text


@pytest.mark.parametrize("last", [1, 2, 3, 7, 15, 25, 40, 99])
def test_every_tick_is_at_a_whole_step(last: int) -> None:
    """A tick between two steps would be labelled with one of them."""
    frame = Frame(900, 320)
    points = [Point(float(step), 1.0) for step in range(1, last + 1)]
    text = line_chart([Layer("mean", points)], frame, label="Loss", format_value=str)
    bottom = frame.height - frame.bottom + 18
    labels = re.findall(rf'<text x="([\d.]+)" y="{bottom}"[^>]*>(\d+)</text>', text)
    left, right = frame.left, frame.width - frame.right
    first = 0 if last >= 10 else 1
    assert labels
    for at, label in labels:
        share = (int(label) - first) / (max(last, 1.1) - first)
        assert float(at) == pytest.approx(left + share * (right - left), abs=0.06)
