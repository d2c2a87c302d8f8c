"""Reduced curves keep their extremes, their ends and their means."""

from trainyard.report.facts.curve import average_curve, sparkline, thin_curve
from trainyard.report.facts.history import Curve


def curve(values: list[float]) -> Curve:
    result = Curve()
    for step, value in enumerate(values, start=1):
        result.append(step, value)
    return result


def test_a_spike_of_one_step_survives() -> None:
    values = [1.0] * 10_000
    values[7_777] = 9.0
    values[2_222] = 0.1
    points = thin_curve(curve(values), 100)
    assert len(points) <= 202
    assert max(point.value for point in points) == 9.0
    assert min(point.value for point in points) == 0.1
    assert (points[0].step, points[-1].step) == (1, 10_000)
    assert [point.step for point in points] == sorted(point.step for point in points)


def test_a_short_curve_is_kept_whole() -> None:
    assert [point.value for point in thin_curve(curve([3, 2, 1]), 100)] == [3, 2, 1]
    assert thin_curve(curve([]), 100) == []


def test_means_cover_every_row_once() -> None:
    points = average_curve(curve([float(value) for value in range(1, 101)]), 10)
    assert [point.value for point in points] == [5.5 + 10 * index for index in range(10)]
    assert [point.step for point in points] == [5.5 + 10 * index for index in range(10)]


def test_a_sparkline_runs_from_high_to_low() -> None:
    assert sparkline(curve([8, 7, 6, 5, 4, 3, 2, 1]), 8) == "█▇▆▅▄▃▂▁"
    assert sparkline(curve([2, 2, 2]), 8) == "▁▁▁"
    assert sparkline(curve([2]), 8) == ""
