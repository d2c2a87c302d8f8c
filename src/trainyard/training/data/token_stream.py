"""The texts of a stream as tokens, divided into lanes, and the position in a lane as plain data.

The lanes of a stream are its files, or where these cannot be divided evenly its rows, in turn. A lane has no
end: after its last text it begins again. `stream_batches` reads the lanes of a process.
"""

from collections import deque
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from threading import Event
from typing import Protocol

import numpy as np
import numpy.typing as npt

from trainyard.errors import DataError
from trainyard.training.data.document_reader import Piece
from trainyard.training.data.document_starts import encode_pieces
from trainyard.training.data.hugging_face import StreamPosition
from trainyard.training.data.vocabulary import Vocabulary

CHUNK_ROWS = 64
"""Enough rows to keep the tokenizer's threads busy, and few enough to read again when a run resumes."""
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
