"""Compute the usual value of a series, and the distance above it that noise does not explain. Pure.

The trainer and `watch.health` judge a loss by the same rule.
"""

import math
from collections.abc import Iterable

LEAST_VALUES = 32
"""Number of values that are needed before the usual one is known."""
KEPT_VALUES = 4 * LEAST_VALUES
"""Number of last values from which the usual one is computed."""
_HIGHER = math.log(1.5)
_DEVIATIONS = 8.0
"""A value this many standard deviations above the usual one is more than noise."""


def median_of(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def longest_pause(durations: Iterable[float], *, factor: float, least: float) -> float:
    """Return the seconds without progress that are a hang: `factor` times the usual, at least `least`."""
    known = list(durations)
    return max(least, factor * float(median_of(known)) if known else 0.0)


def usual_value(values: Iterable[float]) -> tuple[float, float]:
    """Return the median and a standard deviation on which single high values have little effect."""
    values = list(values)
    median = median_of(values)
    # 1.4826: from the median absolute deviation to the standard deviation of normal values.
    return median, 1.4826 * median_of([abs(value - median) for value in values])


def noise_limit(deviation: float) -> float:
    """Return the distance by which the logarithm of a value may exceed the usual one."""
    return max(_HIGHER, _DEVIATIONS * deviation)
