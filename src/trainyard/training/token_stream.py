"""Windows of tokens from a stream of texts that is too long to be prepared, and their position.

    texts, a chunk at a time -> tokens, documents joined as in token files -> consecutive windows

Everything is a function of the position: reading from one that was saved gives what would have come next. It
knows no epochs' end: after the last text the first follows, and the epoch is counted. Shuffling and batches
are `stream_batches`'.
"""

from collections.abc import Iterator
from concurrent.futures import CancelledError
from dataclasses import asdict, dataclass
from threading import Event
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from trainyard.errors import DataError
from trainyard.training.document_starts import encoded
from trainyard.training.documents import Piece
from trainyard.training.hugging_face import Place
from trainyard.training.vocabulary import Vocabulary

_CHUNK_ROWS = 64
"""Enough rows to keep the tokenizer's threads busy, few enough to be read again at a resume."""
Tokens = npt.NDArray[np.int64]


class Texts(Protocol):
    """A source of texts with a place to go on from."""

    def read(self, place: Place, count: int) -> tuple[list[bytes], Place]:
        """The texts, in UTF-8, of up to `count` rows, and the place after them: None at the end."""
        ...


@dataclass(frozen=True)
class Position:
    """Where a stream of tokens goes on, as plain data."""

    place: Place = None
    """Of the chunk that holds the next token."""
    consumed: int = 0
    """Tokens of that chunk that were given already."""
    epoch: int = 0
    """How often the texts were read to their end."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Windows:
    """Consecutive windows, and where the next ones begin."""

    tokens: Tokens
    """`[window, length + 1]`; each begins with the last token of the one before."""
    end: Position


@dataclass(frozen=True)
class _Chunk:
    tokens: Tokens
    place: Place
    epoch: int
    following: Position


class TokenStream:
    """The tokens of all texts, over and over."""

    def __init__(self, texts: Texts, vocabulary: Vocabulary, name: str, *, marked: bool = False) -> None:
        """`marked` marks the tokens that begin a document, as `batches` does."""
        self.name = name
        self._texts, self._vocabulary, self._is_marked = texts, vocabulary, marked

    def windows(self, start: Position, *, count: int, length: int, stop: Event | None = None) -> Windows:
        """`count` windows from `start` on.

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
        """The first `count` tokens of one epoch, fewer if it has fewer."""
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

    def _chunk(self, place: Place, epoch: int) -> _Chunk:
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
