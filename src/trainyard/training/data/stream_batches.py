"""Make batches from a stream: read ahead in blocks, shuffle within each block, the same on every process.

    position --read--> block of windows --permutation by block number--> steps

A block is a function of its position; the order within it is a function of seed and block number. Only the
position of the current block has to be saved; a resumed run reads that block again. Every process reads the
whole stream and takes its share of each batch, so the order does not depend on the number of processes.
"""

from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from threading import Event, Lock, Thread
from types import TracebackType
from typing import Any

import numpy as np

from trainyard.training.data.order import Permutation
from trainyard.training.data.token_stream import Position, Tokens, TokenStream, Windows

_END_SECONDS = 2.0
"""`close` waits this long for a running read; one that hangs on the network is abandoned."""


@dataclass(frozen=True)
class _Block:
    number: int
    start: Position
    windows: Windows
    order: np.ndarray


class StreamBatches:
    """The batches of a run, by step. Steps may come in any order, but going back reads the stream again."""

    steps_per_epoch: int | None = None
    """None, because the length of a stream is not known."""

    def __init__(
        self, stream: TokenStream, *, sequence_length: int, batch_size: int, seed: int, shuffled: int
    ) -> None:
        """`batch_size` is the global batch. A block has about `shuffled` sequences, at least one batch."""
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
        """The JSON value that `restore` needs to continue at `step`, the step after the last batch."""
        number = step // self._steps_per_block
        block = self._block
        if block is not None and number == block.number + 1:
            return {"block": number, **block.windows.end.to_json()}
        origin = (block.number, block.start) if block is not None else self._origin
        return {"block": origin[0], **origin[1].to_json()}

    def restore(self, position: dict[str, Any]) -> None:
        """Continue from a position; batches of earlier blocks are no longer available."""
        plain = dict(position)
        self._origin = (int(plain.pop("block")), Position(**plain))
        self._block = self._next = None

    def close(self) -> None:
        """Stop reading ahead and discard a running read."""
        self._stop.set()
        if self._reader is not None:
            self._reader.join(_END_SECONDS)

    def _block_of(self, number: int) -> _Block:
        """The block `number`, read if needed; start to read the next one in the background."""
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
        """Read in a daemon thread. The end of the process would wait for the threads of a pool."""
        future: Future[Windows] = Future()

        def read() -> None:
            with _Answering(future):
                future.set_result(self._windows(start))

        self._reader = Thread(target=read, name="data", daemon=True)
        self._reader.start()
        return future

    def _windows(self, start: Position) -> Windows:
        with self._reading:  # only one thread may read the stream at a time
            return self._read_windows(start)

    def _read_windows(self, start: Position) -> Windows:
        count = self._steps_per_block * self._batch_size
        return self._stream.windows(start, count=count, length=self._length, stop=self._stop)


class _Answering(AbstractContextManager[None]):
    """Stores an exception of the body in the future, so that it is raised where the block is needed."""

    def __init__(self, future: Future[Windows]) -> None:
        self._future = future

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> bool:
        if error is not None:
            self._future.set_exception(error)
        return True
