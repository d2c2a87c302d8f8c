"""The SVG of a chart, which paper and browsers without scripts show."""

import numpy as np

from trainyard.report.dashboard.charts import HEIGHT, WIDTH, Chart, DrawnPanel, Panel, Series, draw_chart
from trainyard.report.facts.history import Curve


def chart_of(*lines: list[tuple[float, float]], figure: str = "loss") -> Chart:
    series = (Series(0, 0, figure, "", Curve(*np.array(line).T), None, "c0") for line in lines)
    return draw_chart(DrawnPanel(Panel("Loss", "", ((figure, ""),)), "", tuple(series)))


def test_the_chart_stays_in_its_frame_and_keeps_a_spike() -> None:
    values = [(float(step), 50.0 if step == 333 else 5 / step) for step in range(1, 1001)]
    chart = chart_of(values, [(300.0, 7.0)])
    points = [tuple(map(int, pair.split(","))) for pair in chart.lines[0][1].split()]
    assert len(points) < 1000
    assert all(0 <= across <= WIDTH and 0 <= down <= HEIGHT for across, down in points)
    assert min(down for _, down in points) < 10 < min(down for at, down in points if abs(at - 160) > 2)
    assert (chart.low, chart.high, chart.first, chart.last) == ("0.005", "50", "1", "1 k")
    assert chart_of([(1, 0.0029543), (2, 23_663.2)]).high == "23.7 k", "a longer one is cut off"


def test_equal_values_are_a_flat_line_in_the_middle() -> None:
    noise = [(float(step), 3e-4 + step * 1e-16) for step in range(1, 50)]
    assert {point.partition(",")[2] for point in chart_of(noise).lines[0][1].split()} == {"100"}


def test_sizes_have_units_and_start_at_zero() -> None:
    chart = chart_of([(1, 22.1), (2, 22.1)], figure="gpu_memory_bytes")
    assert (chart.low, chart.high) == ("0 GB", "22.1 GB")
