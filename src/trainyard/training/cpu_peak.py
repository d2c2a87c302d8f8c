"""The peak FLOP/s of a device, from which MFU is computed. The peak of a CPU is measured; there is no table.

Other programs slow a measurement down. If training exceeds the peak, the measurement was too low; it is
repeated and the best one counts. A speed that still exceeds the peak has no MFU.
"""

import time
from collections.abc import Callable

import torch

_SIZE = 1024
_SECONDS = 0.1
_ROUNDS = 3
_MEASUREMENTS = 5
"""The largest number of measurements; a machine that needs more is too busy for a meaningful peak."""


class Peak:
    """The peak FLOP/s of all devices of a run."""

    def __init__(self, known: float | None, measure: Callable[[], float] | None = None) -> None:
        """`measure` estimates a peak that is not `known`. Without it, an unknown peak stays unknown."""
        self._flops, self._measure = known, measure
        self._left = _MEASUREMENTS

    def share(self, flops: float) -> float | None:
        """`flops` (FLOP/s) as a share of the peak, at most 1; None when it is not known."""
        while self._measure is not None and self._left and (self._flops is None or flops > self._flops):
            self._left -= 1
            self._flops = max(self._flops or 0.0, self._measure())
        return flops / self._flops if self._flops and flops <= self._flops else None


def cpu_peak_flops(dtype: torch.dtype) -> float:
    """Measure the FLOP/s of the fastest of several square matrix products in `dtype`, with torch's threads.

    It takes a tenth of a second, or longer if one product does. It draws no random numbers.
    """
    left, right = torch.ones(_SIZE, _SIZE, dtype=dtype), torch.ones(_SIZE, _SIZE, dtype=dtype)
    product = left @ right  # the first product prepares threads and kernels
    fastest, rounds, start = float("inf"), 0, time.perf_counter()
    while rounds < _ROUNDS or time.perf_counter() - start < _SECONDS:
        before = time.perf_counter()
        torch.mm(left, right, out=product)
        fastest, rounds = min(fastest, time.perf_counter() - before), rounds + 1
    return float(2 * _SIZE**3 / fastest)
