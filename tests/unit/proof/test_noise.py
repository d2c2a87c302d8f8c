"""The noise of a curve, and the rises that no noise explains."""

import numpy as np

from trainyard.proof.noise import falls_by_median, is_far_above


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
