"""Read windows of tokens from a stream of texts that is too long to prepare, with a position to resume from.

    texts, a chunk at a time -> tokens, documents joined as in token files -> consecutive windows

Everything is a function of the position: reading from a saved position gives the tokens that would have come
next. The stream has no end: after the last text it continues with the first and counts the epoch.
`stream_batches` shuffles and makes batches.
"""

from collections.abc import Iterator
from concurrent.futures import CancelledError
from dataclasses import asdict, dataclass
from threading import Event
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from trainyard.errors import DataError
from trainyard.training.data.document_reader import Piece
from trainyard.training.data.document_starts import encoded
from trainyard.training.data.hugging_face import StreamPosition
from trainyard.training.data.vocabulary import Vocabulary

_CHUNK_ROWS = 64
"""Enough rows to keep the tokenizer's threads busy, and few enough to read again when a run resumes."""
Tokens = npt.NDArray[np.int64]


class Texts(Protocol):
    """A source of texts with a position to continue from."""

    def read(self, place: StreamPosition, count: int) -> tuple[list[bytes], StreamPosition]:
        """Read the texts of up to `count` rows in UTF-8, and the position after them; None at the end."""
        ...


@dataclass(frozen=True)
class Position:
    """The position at which a stream of tokens continues, as plain data."""

    place: StreamPosition = None
    """The position of the chunk that holds the next token."""
    consumed: int = 0
    """The number of tokens of that chunk that were already read."""
    epoch: int = 0
    """The number of times the texts were read to the end."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Windows:
    """Consecutive windows, and the position of the next one."""

    tokens: Tokens
    """`[window, length + 1]`; each window begins with the last token of the one before."""
    end: Position


@dataclass(frozen=True)
class _Chunk:
    tokens: Tokens
    place: StreamPosition
    epoch: int
    following: Position


class TokenStream:
    """The tokens of all texts, repeated without end."""

    def __init__(self, texts: Texts, vocabulary: Vocabulary, name: str, *, marked: bool = False) -> None:
        """With `marked`, the tokens that begin a document are marked as in `batches`."""
        self.name = name
        self._texts, self._vocabulary, self._is_marked = texts, vocabulary, marked

    def windows(self, start: Position, *, count: int, length: int, stop: Event | None = None) -> Windows:
        """Read `count` windows from `start` on.

        Raises DataError when a whole epoch has no tokens, CancelledError soon after `stop` is set.
        """
        needed = start.consumed + count * length
        parts: list[Tokens] = []
        before = 0
        for chunk in self._chunks(start):
            if stop is not None and stop.is_set():
                raise CancelledError
            parts.append(chunk.tokens)
            if before + chunk.tokens.size > needed:
                end = Position(chunk.place, needed - before, chunk.epoch)
                break
            before += chunk.tokens.size
        tokens = np.concatenate(parts)[start.consumed : needed + 1]
        every_start = np.lib.stride_tricks.sliding_window_view(tokens, length + 1)
        return Windows(every_start[::length].copy(), end)

    def first_tokens(self, count: int) -> Tokens:
        """The first `count` tokens of an epoch, or fewer if it has fewer."""
        parts, size = [np.empty(0, np.int64)], 0
        for chunk in self._chunks(Position()):
            if chunk.epoch > 0 or size >= count:
                break
            parts.append(chunk.tokens)
            size += chunk.tokens.size
        return np.concatenate(parts)[:count]

    def _chunks(self, start: Position) -> Iterator[_Chunk]:
        place, epoch, fruitful = start.place, start.epoch, start.epoch
        while True:
            chunk = self._chunk(place, epoch)
            yield chunk
            if chunk.tokens.size:
                fruitful = epoch
            elif epoch > fruitful + 1:
                raise DataError(f"{self.name}: no row has a text. Check data.text_field.")
            place, epoch = chunk.following.place, chunk.following.epoch

    def _chunk(self, place: StreamPosition, epoch: int) -> _Chunk:
        texts, following = self._texts.read(place, _CHUNK_ROWS)
        next_epoch = epoch + (following is None)
        return _Chunk(self._encoded(texts), place, epoch, Position(following, 0, next_epoch))

    def _encoded(self, texts: list[bytes]) -> Tokens:
        pieces: list[Piece] = []
        for text in texts:
            pieces += [text, None]
        parts = [np.empty(0, np.int64)]
        for tokens, begins in encoded(self._vocabulary, iter(pieces)):
            parts.append(tokens.astype(np.int64))
            if self._is_marked and begins:
                parts[-1][:1] = ~parts[-1][:1]
        return np.concatenate(parts)
