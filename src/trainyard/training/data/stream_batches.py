"""Make batches from a stream: read ahead in blocks, shuffle within each block, the same on every process.

    position --read--> block of windows --permutation by block number--> steps

A block is a function of its position; the order within it is a function of seed and block number. Only the
position of the current block has to be saved; a resumed run reads that block again.

The processes of a run share the work. In the background, a thread of each reads and encodes its chunks of the
next block (`stream_reading`). When the block is needed, the processes exchange their chunks on training's
thread, so each has the complete block and the order does not depend on their number.
"""

import math
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from threading import Event, Lock, Thread
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from trainyard.training.data.hugging_face import StreamPosition
from trainyard.training.data.order import Permutation
from trainyard.training.data.stream_reading import Chunk, ChunkOrder, ChunkReader
from trainyard.training.data.token_stream import (
    CHUNK_ROWS,
    ChunkTokens,
    Position,
    Tokens,
    TokenStream,
    Windows,
)
from trainyard.training.runtime.world import ALONE, World, attempt

_Own = TypeVar("_Own")
_MOST_CHUNKS = 64
"""The most chunks that a process encodes between two exchanges of the first tokens."""
_END_SECONDS = 2.0
"""`close` waits this long for a running read; one that hangs on the network is abandoned."""


@dataclass(frozen=True)
class _Block:
    number: int
    start: Position
    windows: Windows
    order: np.ndarray


@dataclass
class _ReadState:
    """The reading of a stream from one position on."""

    reader: ChunkReader
    order: ChunkOrder
    stop: Event
    ahead: Future[list[Chunk]] | None = None
    """The read under way."""
    rounds: int = 0
    """The rounds that it reads."""


class StreamBatches:
    """The batches of a run, by step. Steps may come in any order, but going back reads the stream again."""

    steps_per_epoch: int | None = None
    """None, because the length of a stream is not known."""

    def __init__(
        self,
        stream: TokenStream,
        *,
        sequence_length: int,
        batch_size: int,
        seed: int,
        shuffled: int,
        tracks: int = 1,
    ) -> None:
        """`batch_size` is the global batch. A block has about `shuffled` sequences, at least one batch.

        A run from the start reads up to `tracks` tracks in turn, a restored one as many as it started with.
        """
        self._stream, self._length, self._batch_size, self._seed = stream, sequence_length, batch_size, seed
        self._steps_per_block = max(1, shuffled // batch_size)
        self._origin = (0, stream.beginning(tracks))
        self._world = ALONE
        self._block: _Block | None = None
        self._reading: _ReadState | None = None
        self._one_at_a_time = Lock()
        self._thread: Thread | None = None

    def share_with(self, world: World) -> None:
        """Share the reading with the other processes, which must then all request the same batches."""
        self._world = world
        self._drop()

    def batch(self, step: int) -> Tokens:
        """The tokens `[batch, sequence_length + 1]` of `step`, which counts from 0 over the run.

        An error of reading in one process is raised in all of them.
        """
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
        self._origin = (int(position["block"]), Position.from_json(position))
        self._drop()

    def close(self) -> None:
        """Stop reading ahead and discard a running read."""
        self._drop()
        if self._thread is not None:
            self._thread.join(_END_SECONDS)

    def _drop(self) -> None:
        """Forget the block and the chunks that were read beyond it."""
        if self._reading is not None:
            self._reading.stop.set()
        self._block = self._reading = None

    def _block_of(self, number: int) -> _Block:
        """The block `number`, read if needed; start to read the next one in the background."""
        if self._block is not None and number < self._block.number:
            self._drop()
        if self._block is None:
            first, start = self._origin
            self._block = self._next_block(first, start)
        while self._block.number < number:
            self._block = self._next_block(self._block.number + 1, self._block.windows.end)
        return self._block

    def _next_block(self, number: int, start: Position) -> _Block:
        """The block that starts at `start`, the position of the current read or of a new one."""
        count = self._steps_per_block * self._batch_size
        reading = self._reading or self._start_reading(start)
        while (windows := reading.order.take(count, self._length)) is None:
            if reading.ahead is None:
                self._read_ahead(reading)
            assert reading.ahead is not None
            ahead, reading.ahead = reading.ahead, None
            chunks = _exchange_reads(self._world, ahead.result)
            reading.reader.note_ends(chunks)
            reading.order.add(chunks, reading.rounds)
        self._read_ahead(reading)
        order = Permutation(count, seed=self._seed, epoch=number)(np.arange(count))
        return _Block(number, start, windows, order)

    def _start_reading(self, start: Position) -> _ReadState:
        reader = ChunkReader(self._stream, start, rank=self._world.rank, of=self._world.size)
        self._reading = _ReadState(reader, ChunkOrder(self._stream.name, start), Event())
        return self._reading

    def _read_ahead(self, reading: _ReadState) -> None:
        """Start to read the missing chunks of the next block, in a daemon thread.

        The end of the process would wait for the threads of a pool.
        """
        count = self._steps_per_block * self._batch_size
        reading.rounds = reading.order.needed_rounds(count, self._length)
        if not reading.rounds:
            return
        future: Future[list[Chunk]] = Future()

        def read() -> None:
            # A dropped read may still be at the same texts.
            with _FutureErrors(future), self._one_at_a_time:
                future.set_result(reading.reader.read(reading.rounds, reading.stop))

        reading.ahead = future
        self._thread = Thread(target=read, name="data", daemon=True)
        self._thread.start()


def first_tokens(stream: TokenStream, count: int, world: World) -> Tokens:
    """The first `count` tokens of an epoch in the dataset's own order, or fewer if it has fewer.

    The processes of `world` share the encoding; all must call it. An error of reading in one of them is
    raised in all.
    """
    beginning = _StreamHead(stream, world)
    parts, size, chunks = [np.empty(0, np.int64)], 0, world.size
    while size < count and not beginning.is_at_end:
        found = sorted(_exchange_reads(world, partial(beginning.read, chunks)), key=itemgetter(0))
        parts += [tokens.astype(np.int64) for _, tokens in found]
        size = sum(part.size for part in parts)
        usual = max(1, size // (len(parts) - 1))
        chunks = min(math.ceil((count - size) / usual), _MOST_CHUNKS * world.size)
    return np.concatenate(parts)[:count]


class _StreamHead:
    """The first texts of a stream: every process reads all of them and encodes its share of the chunks."""

    def __init__(self, stream: TokenStream, world: World) -> None:
        self._stream, self._world = stream, world
        (self._texts,) = stream.tracks(1)
        self._place: StreamPosition = None
        self._number = 0
        self.is_at_end = False

    def read(self, count: int) -> list[tuple[int, ChunkTokens]]:
        """Read up to `count` further chunks; return the numbers and the tokens of those of this process."""
        numbers, own = [], []
        while count and not self.is_at_end:
            texts, self._place = self._texts.read(self._place, CHUNK_ROWS)
            if self._number % self._world.size == self._world.rank:
                numbers.append(self._number)
                own.append(texts)
            self.is_at_end = self._place is None
            self._number += 1
            count -= 1
        return list(zip(numbers, self._stream.encode(own), strict=True))


def _exchange_reads(world: World, read: Callable[[], list[_Own]]) -> list[_Own]:
    """Read, and return the reads of all processes in order of rank. All raise the error of one."""
    error, own = attempt(read)
    answers = world.gather((error, own))
    if first := error or next((other for other, _ in answers if other is not None), None):
        raise first
    return [one for _, others in answers for one in others]


class _FutureErrors(AbstractContextManager[None]):
    """Stores an exception of the body in the future, so that it is raised where the block is needed."""

    def __init__(self, future: Future[list[Chunk]]) -> None:
        self._future = future

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> bool:
        if error is not None:
            self._future.set_exception(error)
        return True
