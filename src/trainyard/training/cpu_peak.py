"""The peak of a device, which the MFU is a share of; that of a CPU is measured, because no table knows it.

Other programs slow a measurement down, so a peak that training exceeds was too low: it is measured again, and
the best counts. What still exceeds it has no MFU.
"""

import time
from collections.abc import Callable

import torch

_SIZE = 1024
_SECONDS = 0.1
_ROUNDS = 3
_MEASUREMENTS = 5
"""A machine that is that busy has no peak to speak of."""


class Peak:
    """The most FLOP/s of all devices of a run."""

    def __init__(self, known: float | None, measure: Callable[[], float] | None = None) -> None:
        """`measure` estimates what is not `known`; without it the peak is what is known, or nothing."""
        self._flops, self._measure = known, measure
        self._left = _MEASUREMENTS

    def share(self, flops: float) -> float | None:
        """The share that `flops` (FLOP/s) are of the peak, at most 1; None when it is not known."""
        while self._measure is not None and self._left and (self._flops is None or flops > self._flops):
            self._left -= 1
            self._flops = max(self._flops or 0.0, self._measure())
        return flops / self._flops if self._flops and flops <= self._flops else None


def cpu_peak_flops(dtype: torch.dtype) -> float:
    """FLOP/s of the fastest of some products of square matrices in `dtype`, with the threads that torch uses.

    Takes a tenth of a second, longer where one product does. Draws no random number.
    """
    left, right = torch.ones(_SIZE, _SIZE, dtype=dtype), torch.ones(_SIZE, _SIZE, dtype=dtype)
    product = left @ right  # the first one prepares threads and kernels
    fastest, rounds, start = float("inf"), 0, time.perf_counter()
    while rounds < _ROUNDS or time.perf_counter() - start < _SECONDS:
        before = time.perf_counter()
        torch.mm(left, right, out=product)
        fastest, rounds = min(fastest, time.perf_counter() - before), rounds + 1
    return float(2 * _SIZE**3 / fastest)
