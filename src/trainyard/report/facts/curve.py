"""Reduce curves to a size that can be drawn: to their extremes for pictures, to even means for text.

It works on columns of numbers, whatever they mean.
"""

from dataclasses import dataclass
from itertools import pairwise

from trainyard.report.facts.history import Curve

_BLOCKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Point:
    """A value at a step."""

    step: float
    value: float


def thin_curve(curve: Curve, buckets: int) -> list[Point]:
    """At most 2 × `buckets` points in the order of the rows: the lowest and the highest of each bucket.

    This keeps a spike of a single step, which means or strides would lose. Both ends are kept.
    """
    count = len(curve)
    if count <= 2 * buckets:
        return [Point(s, v) for s, v in zip(curve.steps, curve.values, strict=True)]
    import numpy as np

    values = np.frombuffer(curve.values)
    edges = np.linspace(0, count, buckets + 1).astype(int)
    chosen = {0, count - 1}
    for begin, end in pairwise(edges):
        part = values[begin:end]
        chosen.update((begin + int(part.argmin()), begin + int(part.argmax())))
    return [Point(curve.steps[i], curve.values[i]) for i in sorted(chosen)]


def average_curve(curve: Curve, count: int) -> list[Point]:
    """The means of `count` equal stretches of rows; the rows themselves when there are fewer."""
    count = min(count, len(curve))
    if count < 2:
        return [Point(s, v) for s, v in zip(curve.steps, curve.values, strict=True)]
    import numpy as np

    edges = np.linspace(0, len(curve), count + 1).astype(int)
    steps, values = np.frombuffer(curve.steps), np.frombuffer(curve.values)
    return [
        Point(float(steps[begin:end].mean()), float(values[begin:end].mean()))
        for begin, end in pairwise(edges)
    ]


def sparkline(curve: Curve, cells: int = 32) -> str:
    """The curve in one line of blocks; empty when there are not two values."""
    values = [point.value for point in average_curve(curve, cells)]
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round((value - low) * scale)] for value in values)
