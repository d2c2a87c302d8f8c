"""Reduce curves to a size that can be drawn: to their extremes for pictures, to even means for text.

It works on columns of numbers, whatever they mean.
"""

from itertools import pairwise

from trainyard.report.facts.history import Curve

_BLOCKS = "▁▂▃▄▅▆▇█"
# The means of equal numbers differ by their rounding, as a share.
_ROUNDING = 1e-9


def thin_curve(curve: Curve, buckets: int) -> Curve:
    """Return at most 2 × `buckets` points in the order of the rows: lowest and highest of each bucket.

    This keeps a spike of a single step, which means or strides would lose. Both ends are kept.
    """
    import numpy as np

    count = len(curve)
    if count <= 2 * buckets:
        return curve
    edges = np.linspace(0, count, buckets + 1).astype(int)
    chosen = {0, count - 1}
    for begin, end in pairwise(edges):
        part = curve.values[begin:end]
        chosen.update((begin + int(part.argmin()), begin + int(part.argmax())))
    places = sorted(chosen)
    return Curve(curve.steps[places], curve.values[places])


def average_curve(curve: Curve, count: int) -> Curve:
    """The means of `count` equal stretches of rows; the rows themselves when there are fewer."""
    import numpy as np

    count = min(count, len(curve))
    if count < 2:
        return curve
    begins = np.linspace(0, len(curve), count + 1).astype(int)[:-1]
    sizes = np.diff([*begins, len(curve)])
    return Curve(*(np.add.reduceat(column, begins) / sizes for column in (curve.steps, curve.values)))


def sparkline(curve: Curve, cells: int = 32) -> str:
    """The curve in one line of blocks; empty when there are not two values."""
    values = average_curve(curve, cells).values.tolist()
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    is_flat = high - low <= _ROUNDING * max(abs(low), abs(high))
    scale = 0.0 if is_flat else (len(_BLOCKS) - 1) / (high - low)
    return "".join(_BLOCKS[round((value - low) * scale)] for value in values)
