"""The order of samples: a keyed permutation that computes any position of any epoch directly.

Nothing is stored or shuffled in memory: seeking costs the same at every step, and memory does not grow with
the corpus. The module handles indices only, neither tokens nor batches.
"""

import hashlib
import math
from typing import Any

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.uint64]
_ROUNDS = 12
_HALF_WORD = np.uint64(32)


class Permutation:
    """A pseudo-random bijection of range(size), determined by `seed` and `epoch` alone.

    It is a generalised Feistel network over pairs (low, high), where low is below the root of `size`. Cycle
    walking handles the few pairs beyond `size`. Both are from J. Black and P. Rogaway, "Ciphers with
    Arbitrary Finite Domains", CT-RSA 2002 (https://ia.cr/2001/012). The round function is strongly universal
    hashing (M. Dietzfelbinger, "Universal Hashing and k-wise Independent Random Variables via Integer
    Arithmetic without Primes", STACS 1996), mapped to its range as in D. Lemire, "Fast Random Integer
    Generation in an Interval", 2019 (arXiv:1805.10941). The round keys are SHAKE-256 of seed and epoch.
    """

    def __init__(self, size: int, *, seed: int, epoch: int) -> None:
        if not 0 < size < 1 << 63:
            raise ValueError(f"a permutation needs between one and 2^63 elements, got {size}")
        self.size = size
        lows = math.isqrt(size - 1) + 1
        self._lows, self._highs = np.uint64(lows), np.uint64(-(-size // lows))
        keys = hashlib.shake_256(f"{seed}:{epoch}".encode()).digest(16 * _ROUNDS)
        self._keys: Indices = np.frombuffer(keys, "<u8").astype(np.uint64).reshape(-1, 2, 2)

    def __call__(self, places: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int64]:
        """The elements at `places`, each in range(size)."""
        values = self._network(places.astype(np.uint64))
        while (outside := np.flatnonzero(values >= self.size)).size:
            values[outside] = self._network(values[outside])
        return values.astype(np.int64)

    def _network(self, values: Indices) -> Indices:
        """A bijection of pairs. The term added to one half depends on the other half, so it is invertible."""
        high, low = np.divmod(values, self._lows)
        for first, second in self._keys:
            low = _sum_below(self._lows, low, _hash(high, first, below=self._lows))
            high = _sum_below(self._highs, high, _hash(low, second, below=self._highs))
        result: Indices = high * self._lows + low
        return result


def _hash(half: Indices, key: Indices, *, below: np.uint64) -> Indices:
    """Hash to numbers below `below`. It and the halves are at most 2^32; `key` is a factor and a summand."""
    product: Indices = half * key[0]
    product += key[1]
    product >>= _HALF_WORD
    product *= below
    product >>= _HALF_WORD
    return product


def _sum_below(limit: np.uint64, first: Indices, second: Indices) -> Indices:
    """The sum modulo `limit` of two numbers below it.

    If the sum is below `limit`, the unsigned difference wraps around and is larger, so the minimum is right.
    """
    total = first + second
    result: Indices = np.minimum(total, total - limit)
    return result
