"""Batches of token windows, a pure function of (seed, epoch, step).

The corpus is cut into consecutive windows; each epoch visits them in another order (`order`). There is no
state to save: the step number is the position. It knows no devices and no ranks: a batch is the global one,
and who trains splits it.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from trainyard.errors import DataError
from trainyard.training.order import Permutation

_BLOCK_WINDOWS = 4096


def window_count(tokens: int, sequence_length: int) -> int:
    """How many windows `tokens` hold: one starts every `sequence_length` tokens and needs one token more."""
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
        """`batch_size` is the global batch: sequences an optimizer step.

        Raises DataError when `tokens` have fewer windows than that.
        """
        self.windows = window_count(tokens.size, sequence_length)
        if self.windows < batch_size:
            raise DataError(
                f"{tokens.size:,} tokens are {self.windows:,} sequences of {sequence_length:,}, fewer than "
                f"the {batch_size:,} of one step (training.batch_size × gradient_accumulation_steps). "
                "Add data, or lower one of these or data.sequence_length."
            )
        self.steps_per_epoch = self.windows // batch_size
        # A view `[windows, sequence_length + 1]` that copies nothing; a memory map stays one.
        every_start = sliding_window_view(tokens.view(np.ndarray), sequence_length + 1)
        self._windows = every_start[::sequence_length]
        self._batch_size, self._seed = batch_size, seed
        self._steps_per_block = max(1, _BLOCK_WINDOWS // batch_size)
        self._block: tuple[tuple[int, int], npt.NDArray[np.int64]] | None = None

    def batch(self, step: int) -> npt.NDArray[np.int64]:
        """The tokens `[batch, sequence_length + 1]` of `step`, which counts from 0 over the whole run.

        Input is `[:, :-1]`, target `[:, 1:]`.
        """
        return self._windows[self._windows_of(step)].astype(np.int64)

    def position(self, _step: int) -> None:
        """Nothing: the step says it all."""

    def restore(self, _position: object) -> None:
        """Nothing is to be restored."""

    def close(self) -> None:
        """Nothing is held open."""

    def _windows_of(self, step: int) -> npt.NDArray[np.int64]:
        """The windows `[batch]` of `step`. A block of steps is computed at once and kept until the next."""
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


def first_windows(tokens: np.ndarray, *, length: int, count: int) -> np.ndarray:
    """Up to `count` consecutive windows `[window, length + 1]` of token ids, the same at every validation."""
    available = min(count, max(0, (len(tokens) - 1) // length))
    rows = [tokens[i * length : (i + 1) * length + 1].astype(np.int64) for i in range(available)]
    return np.stack(rows) if rows else np.empty((0, length + 1), dtype=np.int64)
