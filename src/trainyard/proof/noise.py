"""Measure the noise of a curve, and find rises that no noise explains.

The noise of one value is the spread of its distance from the line between its two neighbours, which removes
any trend, as a median absolute deviation, which ignores single spikes (Gasser, Sroka and Jennen-Steinmetz,
Residual variance and residual pattern in nonlinear regression, Biometrika 73, 1986). Neighbours that rise and
fall together would make it too small, so the same is computed from the means of ten parts, and the larger of
the two counts.

A run that diverges swings so widely that its own noise would excuse its rise. A rise is therefore measured
against the calm noise, that of the smallest tenth of the distances. A run that was calm for a few rows only
has none; `has_left_start` and `is_far_above` judge it by order and by size instead.

It does not know what a curve shows; smaller values are better.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import NormalDist, fmean, median

# The calm noise is that of the smallest tenth of the distances, and of at least so many of them.
_FEWEST_CALM = 3
# It is uncertain by about 1.2 / sqrt(their number), and is raised by two of these standard errors.
_CALM_MARGIN = 2.4
# Rows that chance arranges in one way out of so many or more are not arranged by chance.
_RARE = 200
# A multiple of the first value that its noise does not reach: with fewer than 20 values, and with more.
_FAR_OF_FEW, _FAR, _MANY = 3.0, 2.0, 20
# A person calls no smaller change an improvement, as a share of the level: three digits hardly show it.
LEAST_SHARE = 0.001
# A tenth of fewer values has no median to speak of.
_FEWEST_FOR_MEDIANS = 30
# The standard error of a median of normal values is sqrt(pi / 2) times that of their mean.
_OF_MEDIAN = math.sqrt(math.pi / 2)


@dataclass(frozen=True)
class Noise:
    """The noise of a curve; each field is a standard deviation."""

    one: float
    """Noise of one value; 0 for fewer than three values."""
    tenth: float
    """Noise of the mean of a tenth of the values."""
    calm_one: float
    calm_tenth: float
    """The same, by the calmest part of the curve; never larger."""


def noise_of(values: Sequence[float]) -> Noise:
    """Return the noise of a curve."""
    one, calm_one = _spreads(values)
    among, calm_among = _spreads([fmean(part) for part in tenths(values)])
    share = math.sqrt(tenth(values))
    return Noise(one, max(one / share, among), calm_one, max(calm_one / share, calm_among))


def mean_square_noise(values: Sequence[float]) -> float:
    """Return the noise of one of few values; single spikes count."""
    bends = _bends(values)
    return math.sqrt(fmean(bend * bend for bend in bends) / 1.5) if bends else 0.0


def tenth(values: Sequence[float]) -> int:
    """Return the number of values in a tenth, at least 1."""
    return max(1, len(values) // 10)


def tenths(values: Sequence[float]) -> list[Sequence[float]]:
    """Return ten consecutive parts; at least ten values."""
    count = len(values)
    return [values[i * count // 10 : (i + 1) * count // 10] for i in range(10)]


def falls_by_median(values: Sequence[float], significant: float) -> bool:
    """Return whether the median falls from the first tenth to the last by `significant` standard errors.

    Spikes hide a fall of the means, not of the medians.
    """
    if len(values) < _FEWEST_FOR_MEDIANS:
        return False
    medians = [median(part) for part in tenths(values)]
    noise = max(_OF_MEDIAN * _spreads(values)[0] / math.sqrt(tenth(values)), _spreads(medians)[0])
    return falls_by(medians[0], medians[-1], significant * math.sqrt(2) * noise)


def falls_by(first: float, last: float, noise: float) -> bool:
    """Return whether a level falls by more than its noise, and by more than LEAST_SHARE.

    A curve without noise, such as that of training on all data at once, falls by the last digit, too.
    """
    return first - last > max(noise, LEAST_SHARE * max(abs(first), abs(last)))


def has_left_start(values: Sequence[float]) -> bool:
    """Return whether the first values all lie below all later ones, and so many that chance hardly does that.

    Without any change, each choice of k out of n values is as likely to be the lowest.
    """
    count = len(values)
    highest = list(accumulate(values, max))
    lowest = list(accumulate(reversed(values), min))[::-1]
    return any(
        highest[k - 1] < lowest[k] and math.comb(count, min(k, 5)) >= _RARE for k in range(1, count // 2 + 1)
    )


def is_far_above(level: float, values: Sequence[float]) -> bool:
    """Return whether `level` or the mean of the second half is a multiple of the positive first value.

    Of the second half at most one value in fifty may lie below the first one.
    """
    first, late = values[0], values[len(values) // 2 :]
    if first <= 0 or sum(value <= first for value in late) > len(late) / 50:
        return False
    is_lowest = len(values) >= _MANY and first < min(values[1:])
    return max(level, fmean(late)) > first * (_FAR if is_lowest else _FAR_OF_FEW)


def _spreads(values: Sequence[float]) -> tuple[float, float]:
    """Return the noise of one value, and the calm one."""
    bends = sorted(_bends(values))
    if not bends:
        return 0.0, 0.0
    spread = 1.4826 * median(bends) or math.sqrt(fmean(bend * bend for bend in bends))
    count = min(len(bends), max(_FEWEST_CALM, len(bends) // 10))
    # The size below which so many of the distances of normal noise lie, in standard deviations.
    size = NormalDist().inv_cdf((1 + count / (len(bends) + 1)) / 2)
    calm = bends[count - 1] / size * (1 + _CALM_MARGIN / math.sqrt(count))
    return spread / math.sqrt(1.5), min(spread, calm or spread) / math.sqrt(1.5)


def _bends(values: Sequence[float]) -> list[float]:
    """Return the distance of each value from the line between its neighbours.

    It has 1.5 times the variance of one value.
    """
    return [abs((a + c) / 2 - b) for a, b, c in zip(values, values[1:], values[2:], strict=False)]
