"""Batches of token windows, a pure function of (seed, epoch, step).

The corpus is divided into consecutive windows; each epoch visits them in another order (`order`). There is no
state to save: the step number is the position. The module knows no devices: a batch is the global batch, and
`take_share` divides it between processes.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from trainyard.errors import DataError
from trainyard.training.data.order import Permutation

if TYPE_CHECKING:
    from trainyard.training.runtime.world import DataShare  # preparing data imports no torch

_BLOCK_WINDOWS = 4096


def window_count(tokens: int, sequence_length: int) -> int:
    """The number of windows in `tokens`: one starts every `sequence_length` tokens and needs one more."""
    return max(0, (tokens - 1) // sequence_length)


class TokenBatches:
    """The batches of a run, by step."""

    def __init__(
        self,
        tokens: npt.NDArray[np.integer[Any]],
        *,
        sequence_length: int,
        batch_size: int,
        seed: int,
    ) -> None:
        """`batch_size` is the global batch: sequences per optimizer step.

        Raises DataError when `tokens` have fewer windows than a batch.
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
        self._batch_size, self._seed = batch_size, seed
        self._steps_per_block = max(1, _BLOCK_WINDOWS // batch_size)
        self._block: tuple[tuple[int, int], npt.NDArray[np.int64]] | None = None

    def batch(self, step: int) -> npt.NDArray[np.int64]:
        """The tokens `[batch, sequence_length + 1]` of `step`, which counts from 0 over the run.

        Input is `[:, :-1]`, target `[:, 1:]`.
        """
        return self._windows[self._windows_of(step)].astype(np.int64)

    def share(self, step: int, groups: "DataShare", *, size: int) -> list[np.ndarray]:
        """The micro batches of this process at `step`."""
        return take_share(self.batch(step), size=size, rank=groups.rank, of=groups.size)

    def position(self, _step: int) -> None:
        """None, because the step number is the position."""

    def restore(self, _position: object) -> None:
        """There is nothing to restore."""

    def close(self) -> None:
        """There is nothing to close."""

    def _windows_of(self, step: int) -> npt.NDArray[np.int64]:
        """The windows `[batch]` of `step`. A block of steps is computed at once and cached until the next."""
        epoch, place = divmod(step, self.steps_per_epoch)
        block, row = divmod(place, self._steps_per_block)
        kept = self._block
        if kept is None or kept[0] != (epoch, block):
            kept = self._block = ((epoch, block), self._computed_block(epoch, block))
        windows: npt.NDArray[np.int64] = kept[1][row]
        return windows

    def _computed_block(self, epoch: int, block: int) -> npt.NDArray[np.int64]:
        """The windows `[step, batch]` of a block's steps."""
        first = block * self._steps_per_block
        last = min(first + self._steps_per_block, self.steps_per_epoch)
        places = np.arange(first * self._batch_size, last * self._batch_size, dtype=np.uint64)
        windows = Permutation(self.windows, seed=self._seed, epoch=epoch)(places)
        return windows.reshape(-1, self._batch_size)


def first_windows(tokens: npt.NDArray[np.integer[Any]], *, length: int, count: int) -> npt.NDArray[np.int64]:
    """Return up to `count` consecutive windows `[window, length + 1]` of token ids."""
    available = min(count, window_count(len(tokens), length))
    if not available:
        return np.empty((0, length + 1), dtype=np.int64)
    part = np.asarray(tokens[: available * length + 1]).astype(np.int64)
    return sliding_window_view(part, length + 1)[::length].copy()


def take_share(batch: np.ndarray, *, size: int, rank: int, of: int) -> list[np.ndarray]:
    """The micro batches of process `rank` of `of`: `size` sequences each, assigned round-robin by rank."""
    return [batch[first : first + size] for first in range(0, len(batch), size)][rank::of]
