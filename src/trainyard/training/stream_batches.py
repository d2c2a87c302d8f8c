"""Batches from a stream: read ahead in blocks, shuffled within each, the same on every process.

    position --read--> block of windows --permutation of its number--> steps

A block is a function of its position, and the order within it one of seed and block. The position of the
block of a step is all there is to save; a resume reads that block again. Every process reads the whole stream
and takes its part of each batch, so the order does not depend on how many there are.
"""

from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from threading import Event, Lock, Thread
from types import TracebackType
from typing import Any

import numpy as np

from trainyard.training.order import Permutation
from trainyard.training.token_stream import Position, Tokens, TokenStream, Windows

_END_SECONDS = 2.0
"""How long the end waits for a read under way; one that the network holds is left behind."""


@dataclass(frozen=True)
class _Block:
    number: int
    start: Position
    windows: Windows
    order: np.ndarray


class StreamBatches:
    """The batches of a run, by step. Steps may be asked for in any order, but going back reads anew."""

    steps_per_epoch: int | None = None
    """Not known of a stream."""

    def __init__(
        self, stream: TokenStream, *, sequence_length: int, batch_size: int, seed: int, shuffled: int
    ) -> None:
        """`batch_size` is the global batch; at least it and about `shuffled` sequences are read at a time."""
        self._stream, self._length, self._batch_size, self._seed = stream, sequence_length, batch_size, seed
        self._steps_per_block = max(1, shuffled // batch_size)
        self._origin = (0, Position())
        self._block: _Block | None = None
        self._next: tuple[int, Future[Windows]] | None = None
        self._stop = Event()
        self._reading = Lock()
        self._reader: Thread | None = None

    def batch(self, step: int) -> Tokens:
        """The tokens `[batch, sequence_length + 1]` of `step`, which counts from 0 over the whole run."""
        number, row = divmod(step, self._steps_per_block)
        block = self._block_of(number)
        chosen = block.order[row * self._batch_size : (row + 1) * self._batch_size]
        result: Tokens = block.windows.tokens[chosen]
        return result

    def position(self, step: int) -> dict[str, Any] | None:
        """What `restore` needs to go on at `step`, the one after that of the last batch, as JSON."""
        number = step // self._steps_per_block
        block = self._block
        if block is not None and number == block.number + 1:
            return {"block": number, **block.windows.end.to_json()}
        origin = (block.number, block.start) if block is not None else self._origin
        return {"block": origin[0], **origin[1].to_json()}

    def restore(self, position: dict[str, Any]) -> None:
        """Go on from a position; batches of earlier blocks cannot be had any more."""
        plain = dict(position)
        self._origin = (int(plain.pop("block")), Position(**plain))
        self._block = self._next = None

    def close(self) -> None:
        """Stop reading ahead; what is being read is given up."""
        self._stop.set()
        if self._reader is not None:
            self._reader.join(_END_SECONDS)

    def _block_of(self, number: int) -> _Block:
        """The block of that number, read up to if need be; the next one is begun in the background."""
        block = self._block
        if block is None or number < block.number:
            first, start = self._origin
            block = self._read(first, start)
        while block.number < number:
            block = self._read(block.number + 1, block.windows.end)
        if block is not self._block:
            self._block = block
            following = block.windows.end
            self._next = (number + 1, self._begin(following))
        return block

    def _read(self, number: int, start: Position) -> _Block:
        if self._next is not None and self._next[0] == number:
            windows = self._next[1].result()
        else:
            windows = self._begin(start).result()
        count = self._steps_per_block * self._batch_size
        order = Permutation(count, seed=self._seed, epoch=number)(np.arange(count))
        return _Block(number, start, windows, order)

    def _begin(self, start: Position) -> Future[Windows]:
        """Read in a thread that the end of the process does not wait for, as it would for a pool's."""
        future: Future[Windows] = Future()

        def read() -> None:
            with _Answering(future):
                future.set_result(self._windows(start))

        self._reader = Thread(target=read, name="data", daemon=True)
        self._reader.start()
        return future

    def _windows(self, start: Position) -> Windows:
        with self._reading:  # the stream is read by one at a time
            return self._read_windows(start)

    def _read_windows(self, start: Position) -> Windows:
        count = self._steps_per_block * self._batch_size
        return self._stream.windows(start, count=count, length=self._length, stop=self._stop)


class _Answering(AbstractContextManager[None]):
    """What goes wrong inside is raised to whoever asks for the block."""

    def __init__(self, future: Future[Windows]) -> None:
        self._future = future

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> bool:
        if error is not None:
            self._future.set_exception(error)
        return True
