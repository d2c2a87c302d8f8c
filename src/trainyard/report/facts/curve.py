"""Reduce curves to a size that can be drawn: to their extremes for pictures, to even means for text.

It works on columns of numbers, whatever they mean.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from trainyard.report.facts.history import Curve

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_BLOCKS = "▁▂▃▄▅▆▇█"
# The means of equal numbers differ by their rounding, as a share.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Point:
    """A value at a step."""

    step: float
    value: float


def thin_curve(curve: Curve, buckets: int) -> list[Point]:
    """Return at most 2 × `buckets` points in the order of the rows: lowest and highest of each bucket.

    This keeps a spike of a single step, which means or strides would lose. Both ends are kept.
    """
    import numpy as np

    count = len(curve)
    if count <= 2 * buckets:
        return _points(curve.steps, curve.values)
    edges = np.linspace(0, count, buckets + 1).astype(int)
    chosen = {0, count - 1}
    for begin, end in pairwise(edges):
        part = curve.values[begin:end]
        chosen.update((begin + int(part.argmin()), begin + int(part.argmax())))
    places = sorted(chosen)
    return _points(curve.steps[places], curve.values[places])


def average_curve(curve: Curve, count: int) -> list[Point]:
    """The means of `count` equal stretches of rows; the rows themselves when there are fewer."""
    import numpy as np

    count = min(count, len(curve))
    if count < 2:
        return _points(curve.steps, curve.values)
    begins = np.linspace(0, len(curve), count + 1).astype(int)[:-1]
    sizes = np.diff([*begins, len(curve)])
    return _points(
        np.add.reduceat(curve.steps, begins) / sizes, np.add.reduceat(curve.values, begins) / sizes
    )


def _points(steps: "NDArray[np.float64]", values: "NDArray[np.float64]") -> list[Point]:
    return [Point(step, value) for step, value in zip(steps.tolist(), values.tolist(), strict=True)]


def sparkline(curve: Curve, cells: int = 32) -> str:
    """The curve in one line of blocks; empty when there are not two values."""
    values = [point.value for point in average_curve(curve, cells)]
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    is_flat = high - low <= _ROUNDING * max(abs(low), abs(high))
    scale = 0.0 if is_flat else (len(_BLOCKS) - 1) / (high - low)
    return "".join(_BLOCKS[round((value - low) * scale)] for value in values)
