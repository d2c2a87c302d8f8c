"""Compute the usual value of a series, and how far above it a value is no noise. Pure.

The trainer and `watch.health` judge a loss by the same rule.
"""

import math
from collections.abc import Iterable

LEAST_VALUES = 32
"""Values before the usual one is known."""
KEPT_VALUES = 4 * LEAST_VALUES
"""The usual value is that of so many last values."""
_HIGHER = math.log(1.5)
_DEVIATIONS = 8.0
"""A value this many standard deviations above the usual one is no noise."""


def median_of(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def usual_value(values: Iterable[float]) -> tuple[float, float]:
    """Return the median and the standard deviation, without the weight that single high values would have."""
    values = list(values)
    median = median_of(values)
    # 1.4826: from the median absolute deviation to the standard deviation of normal values.
    return median, 1.4826 * median_of([abs(value - median) for value in values])


def noise_limit(deviation: float) -> float:
    """Return how far the logarithm of a value may lie above the usual one."""
    return max(_HIGHER, _DEVIATIONS * deviation)
