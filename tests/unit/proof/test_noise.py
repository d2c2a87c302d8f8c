"""The noise of a curve, and the rises that no noise explains."""

import numpy as np
import pytest
from tests.cases import each_case

from trainyard.proof.noise import falls_by_median, has_left_start, is_far_above, noise_of


def test_noise_is_that_of_the_values_around_their_trend() -> None:
    random = np.random.default_rng(0)
    for trend in (np.zeros(1000), np.linspace(0, 50, 1000)):
        noise = noise_of(list(trend + 0.5 * random.normal(size=1000)))
        assert noise.one == pytest.approx(0.5, rel=0.15)
        assert noise.tenth == pytest.approx(0.05, rel=0.6)
        assert noise.calm_one <= noise.one
        assert noise.calm_tenth <= noise.tenth


@each_case("rows", [40, 400, 4000])
@each_case("calm", [0.2, 0.5, 0.9])
def test_calm_noise_is_that_of_the_calm_part(calm: float, rows: int) -> None:
    random, count = np.random.default_rng(rows), round(calm * rows)
    values = [*(3 + 0.1 * random.normal(size=count)), *random.uniform(10, 90, size=rows - count)]
    assert noise_of(values).calm_one < 1.5


def test_few_or_equal_values_have_no_noise() -> None:
    for values in ([1.0] * 10, [float(each) for each in range(10)]):
        assert noise_of(values).one == pytest.approx(0)
    assert noise_of([0.0] * 6 + [5.0] + [0.0] * 6).one > 0  # more than half of the distances are 0


def test_the_lowest_values_come_first_by_chance_only_where_they_are_few() -> None:
    for rows, fewest in ((9, 10), (10, 4), (20, 3), (40, 2), (200, 1)):
        for first in range(1, rows // 2 + 1):
            values = [1.0] * first + [2.0] * (rows - first)
            assert has_left_start(values) is (first >= fewest), (rows, first)
            assert not has_left_start([*values[:-1], 1.0])


def test_a_multiple_of_the_start_is_far_above_it() -> None:
    assert is_far_above(7.0, [2.0, *[7.0] * 9])
    assert not is_far_above(5.0, [2.0, *[5.0] * 9])
    assert is_far_above(5.0, [2.0, *[5.0] * 19])
    assert not is_far_above(5.0, [2.0, *[5.0] * 18, 1.0])
    assert is_far_above(7.0, [2.0, 1.0, *[7.0] * 18])
    assert not is_far_above(7.0, [0.0, *[7.0] * 19])
    assert not is_far_above(7.0, [-1.0, *[7.0] * 19])


def test_the_median_falls_although_the_mean_does_not() -> None:
    values = [*(np.linspace(5, 1, 100) + 0.1 * np.random.default_rng(0).normal(size=100))]
    values[90] = 1000.0
    assert falls_by_median(values, 3)
    assert not falls_by_median(values[::-1], 3)
    assert not falls_by_median(values[::10], 3)
