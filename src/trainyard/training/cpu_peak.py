"""What the CPU threads of this process multiply at most, measured: no table knows every machine."""

import time

import torch

_SIZE = 1024
_SECONDS = 0.1
_ROUNDS = 3


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
