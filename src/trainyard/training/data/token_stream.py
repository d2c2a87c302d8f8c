"""The texts of a stream as tokens, and the position in it as plain data.

A stream is read in one or more tracks. One track holds all texts in the dataset's own order. Of `T` tracks,
track `t` holds the files `t`, `t + T`, `t + 2T`, …; the tracks take turns, a chunk of rows each. A stream has
no end: once all tracks are at their end, an epoch is over and all begin again. `stream_reading` reads them.
"""

from concurrent.futures import CancelledError
from dataclasses import dataclass
from threading import Event
from typing import Any, Protocol

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

    @property
    def files(self) -> int:
        """The number of parts that can be read without reading the others."""

    def part(self, number: int, of: int) -> "Texts":
        """The texts of the files `number`, `number + of`, `number + 2 of`, …"""

    def read(self, place: StreamPosition, count: int) -> tuple[list[bytes], StreamPosition]:
        """Read the texts of up to `count` rows in UTF-8, and the position after them; None at the end."""


@dataclass(frozen=True)
class Position:
    """The position at which a stream of tokens continues: the chunk that holds the next token."""

    places: tuple[StreamPosition, ...] = (None,)
    """The position of the next chunk of each track."""
    ended: tuple[int, ...] = ()
    """The tracks that have no more chunk in this epoch."""
    turn: int = 0
    """The track of the chunk that holds the next token."""
    consumed: int = 0
    """The number of tokens of that chunk that were already read."""
    epoch: int = 0
    """The number of times the texts were read to the end."""

    def to_json(self) -> dict[str, Any]:
        """Return the state; with one track, the form of checkpoints from before there were several."""
        counted = {"consumed": self.consumed, "epoch": self.epoch}
        if len(self.places) == 1:
            return {"place": self.places[0], **counted}
        return {"places": list(self.places), "ended": list(self.ended), "turn": self.turn, **counted}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Position":
        """The position that `to_json` converted; other keys are ignored."""
        places = tuple(value["places"]) if "places" in value else (value["place"],)
        ended, turn = tuple(value.get("ended", ())), value.get("turn", 0)
        return cls(places, ended, turn, value["consumed"], value["epoch"])


@dataclass(frozen=True)
class Windows:
    """Consecutive windows, and the position of the next one."""

    tokens: Tokens
    """`[window, length + 1]`; each window begins with the last token of the one before."""
    end: Position


class TokenStream:
    """The texts of a split and the vocabulary that encodes them."""

    def __init__(self, texts: Texts, vocabulary: Vocabulary, name: str, *, marked: bool = False) -> None:
        """Create the stream. With `marked`, the tokens that begin a document are marked as in `batches`."""
        self.name = name
        self._texts, self._vocabulary, self._is_marked = texts, vocabulary, marked

    def beginning(self, tracks: int) -> Position:
        """The position of the first token when up to `tracks` tracks are read in turn."""
        return Position((None,) * max(1, min(tracks, self._texts.files)))

    def tracks(self, count: int) -> list[Texts]:
        """The texts of each of `count` tracks. Raises DataError when there are fewer files."""
        if count == 1:
            return [self._texts]
        if count > self._texts.files:
            raise DataError(
                f"{self.name} is {self._texts.files} files, and the checkpoint's position is in {count} that "
                "are read in turn. Install the versions of the lock file, whose datasets library wrote it."
            )
        return [self._texts.part(number, count) for number in range(count)]

    def encode(self, chunks: list[list[bytes]], stop: Event | None = None) -> list[ChunkTokens]:
        """The tokens of the texts of each chunk. Raises CancelledError soon after `stop` is set."""
        pieces: list[Piece] = [piece for texts in chunks for text in texts for piece in (text, None)]
        arrays = encode_pieces(self._vocabulary, iter(pieces))
        result = []
        for texts in chunks:
            parts = [np.empty(0, np.int32)]
            for _ in range(2 * len(texts)):
                if stop is not None and stop.is_set():
                    raise CancelledError
                tokens, begins = next(arrays)
                parts.append(tokens.astype(np.int32))
                if self._is_marked and begins:
                    parts[-1][:1] = ~parts[-1][:1]
            result.append(np.concatenate(parts))
        return result
