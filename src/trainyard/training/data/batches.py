"""Batches of token windows, a pure function of (seed, epoch, step).

The corpus is divided into consecutive windows; each epoch visits them in another order, a keyed permutation
that computes any position directly: seeking costs the same at every step, and memory does not grow with the
corpus. There is no state to save: the step number is the position. The module knows no devices: a batch is
the global batch, and `take_share` divides it between processes.

When documents are kept apart, the first token of each is marked: its id is replaced by the bitwise complement
`~id`, which is below zero. `attention` reads the marks.
"""

import hashlib
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from trainyard.errors import DataError

if TYPE_CHECKING:
    from trainyard.training.runtime.world import DataShare  # preparing data imports no torch

Places = npt.NDArray[np.int64]


def window_count(tokens: int, sequence_length: int) -> int:
    """The number of windows in `tokens`: one starts every `sequence_length` tokens and needs one more."""
    return max(0, (tokens - 1) // sequence_length)


class TokenBatches:
    """The batches of a prepared dataset. The step number alone determines them: nothing has to be saved."""

    def __init__(
        self,
        tokens: npt.NDArray[np.integer[Any]],
        *,
        sequence_length: int,
        batch_size: int,
        seed: int,
        documents: Places | None = None,
    ) -> None:
        """`batch_size` is the global batch: sequences per optimizer step.

        `documents` are the positions of document starts, ascending; if given, these tokens are marked. Raises
        DataError when `tokens` have fewer windows than a batch.
        """
        self.windows = window_count(tokens.size, sequence_length)
        if self.windows < batch_size:
            raise DataError(
                f"{tokens.size:,} tokens are {self.windows:,} sequences of {sequence_length:,}, fewer than "
                f"the {batch_size:,} of one step (training.batch_size × gradient_accumulation_steps). "
                "Add data, or lower one of these or data.sequence_length."
            )
        self.steps_per_epoch = self.windows // batch_size
        # A view `[windows, sequence_length + 1]` that copies nothing and keeps a memory map.
        every_start = sliding_window_view(tokens.view(np.ndarray), sequence_length + 1)
        self._windows = every_start[::sequence_length]
        self._batch_size, self._seed, self._documents = batch_size, seed, documents

    def batch(self, step: int) -> npt.NDArray[np.int64]:
        """The tokens `[batch, sequence_length + 1]` of `step`, which counts from 0 over the run.

        Input is `[:, :-1]`, target `[:, 1:]`.
        """
        epoch, place = divmod(step, self.steps_per_epoch)
        places = np.arange(place * self._batch_size, (place + 1) * self._batch_size, dtype=np.uint64)
        chosen = Permutation(self.windows, seed=self._seed, epoch=epoch)(places).astype(np.int64)
        rows = self._windows[chosen].astype(np.int64)
        return rows if self._documents is None else _mark_starts(rows, chosen, self._documents)

    def share(self, step: int, groups: "DataShare", *, size: int) -> tuple[list[np.ndarray], int]:
        """The micro batches of this process at `step`, and the number of targets over all processes.

        A micro batch is the tokens `[size, sequence_length + 1]` of one forward pass. Only targets that count
        in the loss are counted.
        """
        batch = self.batch(step)
        return take_share(batch, size=size, rank=groups.rank, of=groups.size), count_targets(batch)

    def position(self, _step: int) -> None:
        """What a checkpoint needs to resume at a step: nothing, because the step number is enough."""

    def restore(self, _positions: object) -> None:
        """There is nothing to restore."""

    def close(self) -> None:
        """There is nothing to close."""


def first_windows(
    tokens: npt.NDArray[np.integer[Any]], *, length: int, count: int, documents: Places | None = None
) -> npt.NDArray[np.int64]:
    """Return up to `count` consecutive windows `[window, length + 1]` of token ids, marked as in a batch."""
    available = min(count, window_count(len(tokens), length))
    if not available:
        return np.empty((0, length + 1), dtype=np.int64)
    part = np.asarray(tokens[: available * length + 1]).astype(np.int64)
    rows = sliding_window_view(part, length + 1)[::length].copy()
    return rows if documents is None else _mark_starts(rows, np.arange(available), documents)


def take_share(batch: np.ndarray, *, size: int, rank: int, of: int) -> list[np.ndarray]:
    """The micro batches of process `rank` of `of`: `size` sequences each, assigned round-robin by rank."""
    return [batch[first : first + size] for first in range(0, len(batch), size)][rank::of]


def plain_ids(marked: np.ndarray) -> np.ndarray:
    """The ids without the marks."""
    return np.where(marked < 0, ~marked, marked)


def count_targets(batch: np.ndarray) -> int:
    """The number of targets in `[batch, seq + 1]` tokens that count in the loss."""
    return int(np.count_nonzero(batch[:, 1:] >= 0))


def _mark_starts(
    rows: npt.NDArray[np.int64], windows: npt.NDArray[np.int64], documents: Places
) -> npt.NDArray[np.int64]:
    """Mark the document starts in `rows` `[window, length + 1]`, which hold the given `windows`."""
    starts = windows * (rows.shape[1] - 1)
    bounds = np.searchsorted(documents, np.stack((starts, starts + rows.shape[1])))
    for row, start, first, last in zip(rows, starts, *bounds, strict=True):
        places = documents[first:last] - start
        row[places] = ~row[places]
    return rows


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
