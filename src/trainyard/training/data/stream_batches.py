"""Make batches from a stream: read ahead in blocks, and shuffle within each block.

    texts --tokens--> lane --read--> block of windows --permutation by block number--> rows of a global batch

The lanes of a stream are its files, or where these cannot be divided evenly its rows, in turn. A lane has no
end: after its last text it begins again. At the start of a run the stream has one lane per group of
processes, which reads nothing else. The rows of a global batch are those of the lanes, in order. A resumed
run keeps the number of lanes, so that its batches are the same on any number of processes; a process then
reads each lane that it needs rows of.

A block is a function of the lanes' positions; the order within it is a function of seed, lane and block
number. Only the positions of the current block have to be saved; a resumed run reads that block again.
"""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from threading import Event, Thread
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from trainyard.errors import DataError
from trainyard.training.data.batches import Permutation, count_targets
from trainyard.training.data.document_reader import Piece
from trainyard.training.data.vocabulary import Vocabulary, encode_pieces
from trainyard.training.runtime.world import DataShare, attempt

# The position to continue reading from, as JSON; None is the beginning.
StreamPosition = dict[str, Any] | None
# Enough rows to keep the tokenizer's threads busy, and few enough to read again when a run resumes.
CHUNK_ROWS = 64
Tokens = npt.NDArray[np.int64]
ChunkTokens = npt.NDArray[np.int32]


class Texts(Protocol):
    """A source of texts with a position to continue from."""

    def part(self, number: int, of: int) -> "Texts":
        """The lane `number` of `of`; it is read independently of this one and of other lanes."""

    def read(self, place: StreamPosition, count: int) -> tuple[list[bytes], StreamPosition]:
        """Read the texts of up to `count` rows in UTF-8, and the position after them; None at the end."""


@dataclass(frozen=True)
class Position:
    """The position at which a lane continues: the chunk that holds the next token."""

    place: StreamPosition = None
    consumed: int = 0
    """The number of tokens of that chunk that were already read."""
    epoch: int = 0
    """The number of times the texts were read to the end."""


class TokenStream:
    """The texts of a split and the vocabulary that encodes them."""

    def __init__(self, texts: Texts, vocabulary: Vocabulary, name: str, *, marked: bool = False) -> None:
        """Create the stream. With `marked`, the tokens that begin a document are marked as in `batches`."""
        self.name = name
        self._texts, self._vocabulary, self._is_marked = texts, vocabulary, marked

    def lane(self, number: int, of: int, start: Position) -> "StreamLane":
        return StreamLane(self, self._texts.part(number, of), start)

    def first_tokens(self, count: int) -> Tokens:
        """The first `count` tokens in the dataset's own order, or fewer if it has fewer."""
        texts, place, parts, size = self._texts.part(0, 1), None, [np.empty(0, np.int32)], 0
        while size < count:
            chunk, place = texts.read(place, CHUNK_ROWS)
            parts.append(self.encode(chunk))
            size += parts[-1].size
            if place is None:
                break
        return np.concatenate(parts)[:count].astype(np.int64)

    def encode(self, texts: list[bytes]) -> ChunkTokens:
        pieces: list[Piece] = [piece for text in texts for piece in (text, None)]
        parts = [np.empty(0, np.int32)]
        for tokens, begins in encode_pieces(self._vocabulary, iter(pieces)):
            parts.append(tokens.astype(np.int32))
            if self._is_marked and begins:
                parts[-1][:1] = ~parts[-1][:1]
        return np.concatenate(parts)


class StreamLane:
    """A lane as windows of tokens, from a position on."""

    def __init__(self, stream: TokenStream, texts: Texts, start: Position) -> None:
        self._stream, self._texts = stream, texts
        self._next = replace(start, consumed=0)
        self._ready: deque[tuple[Position, ChunkTokens]] = deque()
        """Chunks that were read, of which the first `_consumed` tokens were given."""
        self._consumed = start.consumed
        self._is_fruitful, self._barren = False, 0

    @property
    def position(self) -> Position:
        """The position after the last windows."""
        here = self._ready[0][0] if self._ready else self._next
        return replace(here, consumed=self._consumed)

    def windows(self, count: int, length: int, stop: Event) -> Tokens:
        """The next windows `[count, length + 1]`; each begins with the last token of the one before.

        Raises what reading raises, DataError when two complete epochs have no tokens, and CancelledError soon
        after `stop` is set.
        """
        end = self._consumed + count * length
        size = sum(chunk.size for _, chunk in self._ready)
        while size <= end:
            if stop.is_set():
                raise CancelledError
            size += self._read_chunk()
        tokens = np.concatenate([chunk for _, chunk in self._ready])[self._consumed : end + 1]
        while end >= self._ready[0][1].size:
            end -= self._ready.popleft()[1].size
        self._consumed = end
        every_start = np.lib.stride_tricks.sliding_window_view(tokens.astype(np.int64), length + 1)
        return every_start[::length]

    def _read_chunk(self) -> int:
        texts, following = self._texts.read(self._next.place, CHUNK_ROWS)
        chunk = self._stream.encode(texts)
        self._ready.append((self._next, chunk))
        self._next = Position(following, epoch=self._next.epoch + (following is None))
        self._is_fruitful = self._is_fruitful or bool(chunk.size)
        if following is None:
            # A stream without tokens would be read endlessly. After a resume the first epoch is only a part
            # of one, so one without tokens is no evidence.
            self._barren = 0 if self._is_fruitful else self._barren + 1
            self._is_fruitful = False
            if self._barren > 1:
                raise DataError(f"{self._stream.name}: no row has a text. Check data.text_field.")
        return chunk.size


_END_SECONDS = 2.0  # `close` waits this long for a running read; one that hangs on the network is abandoned
Positions = dict[int, Position]  # the position of each lane that this process reads


@dataclass(frozen=True)
class _Block:
    """The rows of this process in the steps of one block."""

    number: int
    rows: Tokens
    """`[step, row, length + 1]`."""
    start: Positions
    end: Positions


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
        self._lane_count = 0
        self._origin: tuple[int, Positions] = (0, {})
        self._block: _Block | None = None
        self._targets: list[int] = []
        """The targets of each step of the block, over all processes."""
        self._lanes: dict[int, StreamLane] = {}
        self._stop = Event()
        self._ahead: Future[_Block] | None = None
        self._thread: Thread | None = None

    def share(self, step: int, groups: DataShare, *, size: int) -> tuple[list[np.ndarray], int]:
        """The micro batches of this process at `step`, and the number of targets over all processes.

        Every process must call it. An error of reading in one of them is raised in all.
        """
        self._lane_count = self._lane_count or groups.size
        number, place = divmod(step, self._steps_per_block)
        if self._block is not None and number < self._block.number:
            self._drop()
        while self._block is None or self._block.number < number:
            self._block = self._next_block(groups)
        rows = self._block.rows[place]
        return [rows[first : first + size] for first in range(0, len(rows), size)], self._targets[place]

    def position(self, step: int) -> dict[str, Any] | None:
        """The JSON value of this process's lanes at `step`, the step after the last batch."""
        number, lanes = self._origin
        if self._block is not None:
            is_next = step // self._steps_per_block == self._block.number + 1
            number = self._block.number + is_next
            lanes = self._block.end if is_next else self._block.start
        known = {str(lane): asdict(position) for lane, position in lanes.items()}
        return {"block": number, "lane_count": self._lane_count, "lanes": known}

    def restore(self, positions: Sequence[dict[str, Any]]) -> None:
        """Continue from the positions of all processes; batches of earlier blocks are no longer available."""
        lanes = {int(lane): Position(**value) for each in positions for lane, value in each["lanes"].items()}
        self._origin, self._lane_count = (positions[0]["block"], lanes), positions[0]["lane_count"]
        self._drop()

    def close(self) -> None:
        """Stop reading ahead and discard a running read."""
        self._drop()
        if self._thread is not None:
            self._thread.join(_END_SECONDS)

    def _drop(self) -> None:
        """Forget the block and the read beyond it."""
        self._stop.set()
        self._block = self._ahead = None

    def _next_block(self, groups: DataShare) -> _Block:
        """The block that is read ahead; start to read the one after it."""
        number = self._origin[0] if self._block is None else self._block.number + 1
        if self._ahead is None:
            self._stop = Event()
            self._lanes = self._open_lanes(groups)
            self._read_ahead(number, groups)
        assert self._ahead is not None
        error, block = attempt(self._ahead.result)
        counts = None if block is None else [count_targets(rows) for rows in block.rows]
        answers = groups.world.gather((error, groups.rank, counts))
        if first := error or next((other for other, _, _ in answers if other is not None), None):
            raise first
        assert block is not None
        # The processes of a group have the same rows.
        by_group = {rank: counts for _, rank, counts in answers}
        self._targets = [sum(step) for step in zip(*by_group.values(), strict=True)]
        self._read_ahead(number + 1, groups)
        return block

    def _open_lanes(self, groups: DataShare) -> dict[int, StreamLane]:
        """The lanes that have rows of this process."""
        rows, own, starts = self._batch_size // self._lane_count, self._own_rows(groups), self._origin[1]
        return {
            lane: self._stream.lane(lane, self._lane_count, starts.get(lane, Position()))
            for lane in range(own.start // rows, (own.stop - 1) // rows + 1)
        }

    def _own_rows(self, groups: DataShare) -> range:
        """The rows of the global batch that this process trains on."""
        count = self._batch_size // groups.size
        return range(groups.rank * count, (groups.rank + 1) * count)

    def _read_ahead(self, number: int, groups: DataShare) -> None:
        """Start to read the block `number` in a daemon thread.

        The end of the process would wait for the threads of a pool.
        """
        future: Future[_Block] = Future()
        lanes, own, stop = self._lanes, self._own_rows(groups), self._stop

        def keep_error(_kind: object, error: BaseException | None, _trace: object) -> bool:
            if error is not None:
                future.set_exception(error)
            return True

        def read() -> None:
            with ExitStack() as errors:
                errors.push(keep_error)
                future.set_result(self._read_block(number, lanes, own, stop))

        self._ahead = future
        self._thread = Thread(target=read, name="data", daemon=True)
        self._thread.start()

    def _read_block(self, number: int, lanes: dict[int, StreamLane], own: range, stop: Event) -> _Block:
        steps, rows = self._steps_per_block, self._batch_size // self._lane_count
        start = {lane: texts.position for lane, texts in lanes.items()}
        parts = []
        for lane, texts in lanes.items():
            windows = texts.windows(steps * rows, self._length, stop)
            order = Permutation(len(windows), seed=self._seed + lane, epoch=number)(np.arange(len(windows)))
            parts.append(windows[order].reshape(steps, rows, -1))
        before = min(lanes) * rows
        tokens = np.concatenate(parts, axis=1)[:, own.start - before : own.stop - before]
        return _Block(number, tokens, start, {lane: texts.position for lane, texts in lanes.items()})
