"""Read a stream of tokens in parts that several processes share out, and put the parts in order.

    own chunks of each track --ChunkReader--> every process's chunks --ChunkOrder--> windows

The order of the chunks is a function of the position alone: in each round, every track that is not at its end
has one. Their number determines which process encodes them. The module exchanges nothing: `stream_batches`
hands the chunks of all processes to each.
"""

import math
from collections import defaultdict, deque
from collections.abc import Iterable
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from threading import Event

import numpy as np

from trainyard.errors import DataError
from trainyard.training.data.hugging_face import StreamPosition
from trainyard.training.data.token_stream import (
    CHUNK_ROWS,
    ChunkTokens,
    Position,
    Texts,
    Tokens,
    TokenStream,
    Windows,
)

_SPARE = 1.1
"""Read this many times as much as the last windows needed, so that a second round trip is rare."""


@dataclass(frozen=True)
class ChunkKey:
    """Key of a chunk, as counted by every process that reads from the same position."""

    epoch: int
    round: int
    """The number of the track's chunk in this epoch, from the position where reading started."""
    track: int


@dataclass(frozen=True)
class Chunk:
    """A few consecutive texts of one track, as tokens."""

    key: ChunkKey
    tokens: ChunkTokens
    following: StreamPosition
    """The position of the next chunk of the track; None at the end of the track."""


@dataclass
class _Track:
    """A track that this process reads."""

    texts: Texts
    next: ChunkKey
    place: StreamPosition
    is_at_end: bool

    def read(self) -> tuple[list[bytes], StreamPosition]:
        """Read the texts of the next chunk, and the place after it."""
        texts, self.place = self.texts.read(self.place, CHUNK_ROWS)
        self.next = replace(self.next, round=self.next.round + 1)
        self.is_at_end = self.place is None
        return texts, self.place

    def begin_again(self) -> None:
        self.next = ChunkKey(self.next.epoch + 1, 0, self.next.track)
        self.is_at_end = False


class ChunkReader:
    """Reads and encodes the chunks of this process, ahead of their use."""

    def __init__(self, stream: TokenStream, start: Position, *, rank: int, of: int) -> None:
        """Process `rank` encodes every `of`-th chunk, so it reads every `gcd(tracks, of)`-th track.

        Raises DataError when the stream does not have the tracks of `start`.
        """
        self._stream, self._rank, self._of = stream, rank, of
        self._count = len(start.places)
        apart = math.gcd(self._count, of)
        self._tracks = [
            _Track(
                texts,
                ChunkKey(start.epoch, int(number < start.turn), number),
                start.places[number],
                number in start.ended,
            )
            for number, texts in enumerate(stream.tracks(self._count))
            if (number - rank) % apart == 0
        ]
        self._ended: dict[int, set[int]] = defaultdict(set, {start.epoch: set(start.ended)})

    def read(self, rounds: int, stop: Event) -> list[Chunk]:
        """Read up to `rounds` further chunks of each track, and encode those of this process.

        A track waits at its end until the ends of all tracks are known. Raises what reading raises, and
        CancelledError soon after `stop` is set.
        """
        keys: list[ChunkKey] = []
        places: list[StreamPosition] = []
        chunks: list[list[bytes]] = []
        for _ in range(rounds):
            for track in self._tracks:
                if stop.is_set():
                    raise CancelledError
                if track.is_at_end and len(self._ended[track.next.epoch]) < self._count:
                    continue
                if track.is_at_end:
                    track.begin_again()
                key, (texts, following) = track.next, track.read()
                if following is None:
                    self._ended[key.epoch].add(key.track)
                if (key.round * self._count + key.track) % self._of == self._rank:
                    keys.append(key)
                    places.append(following)
                    chunks.append(texts)
        return list(map(Chunk, keys, self._stream.encode(chunks, stop), places))

    def note_ends(self, chunks: Iterable[Chunk]) -> None:
        """Learn from the chunks of all processes which tracks are at their end."""
        for chunk in chunks:
            if chunk.following is None:
                self._ended[chunk.key.epoch].add(chunk.key.track)


class ChunkOrder:
    """The chunks of all processes in the order of the stream, from a position on; gives windows of them."""

    def __init__(self, name: str, start: Position) -> None:
        """`name` is the stream's, for messages."""
        self._name = name
        self._known: dict[ChunkKey, Chunk] = {}
        self._here, self._round = replace(start, consumed=0), 0
        self._ready: deque[tuple[Position, ChunkTokens]] = deque()
        """Chunks whose predecessors are all known, with their positions."""
        self._size, self._consumed = 0, start.consumed
        """The number of tokens in `_ready`, and how many of them were given."""
        self._is_fruitful, self._barren = False, 0
        self._rounds, self._tokens = 0, 0
        """The chunks read since the last windows were taken."""
        self._usual = (0, 0)
        """The same for the windows before."""

    def add(self, chunks: Iterable[Chunk], rounds: int) -> None:
        """Add the chunks that all processes read in `rounds`.

        Raises DataError when two complete epochs have no tokens.
        """
        self._known.update((chunk.key, chunk) for chunk in chunks)
        self._rounds += rounds
        while (chunk := self._known.pop(self._next_key(), None)) is not None:
            self._ready.append((self._here, chunk.tokens))
            self._size += chunk.tokens.size
            self._tokens += chunk.tokens.size
            self._is_fruitful = self._is_fruitful or bool(chunk.tokens.size)
            self._advance(chunk.following)

    def take(self, count: int, length: int) -> Windows | None:
        """The next `count` windows; None when they need chunks that are not known yet."""
        first, end = self._consumed, self._consumed + count * length
        if self._size <= end:
            return None
        parts, size = [], 0
        for _, chunk in self._ready:
            parts.append(chunk)
            size += chunk.size
            if size > end:
                break
        tokens: Tokens = np.concatenate(parts)[first : end + 1].astype(np.int64)
        every_start = np.lib.stride_tricks.sliding_window_view(tokens, length + 1)
        self._forget(end)
        if self._rounds:
            self._usual, self._rounds, self._tokens = (self._rounds, self._tokens), 0, 0
        return Windows(every_start[::length].copy(), replace(self._ready[0][0], consumed=self._consumed))

    def needed_rounds(self, count: int, length: int) -> int:
        """Return how many rounds to read next for `count` windows, estimated from the last ones.

        It is 0 if they can be taken already. It grows at most twofold, in case the last rounds held little.
        """
        missing = self._consumed + count * length + 1 - self._size
        if missing <= 0:
            return 0
        rounds, tokens = (self._rounds, self._tokens) if self._rounds else self._usual
        most = max(1, 2 * self._rounds, self._usual[0])
        return min(most, math.ceil(_SPARE * missing * rounds / tokens)) if tokens else most

    def _next_key(self) -> ChunkKey:
        return ChunkKey(self._here.epoch, self._round, self._here.turn)

    def _advance(self, following: StreamPosition) -> None:
        """Advance to the next chunk, after one whose track continues at `following`."""
        here = self._here
        places = (*here.places[: here.turn], following, *here.places[here.turn + 1 :])
        ended = here.ended if following is not None else tuple(sorted({*here.ended, here.turn}))
        left = [track for track in range(len(places)) if track not in ended]
        if not left:
            self._note_epoch()
            self._round = 0
            self._here = Position(places, epoch=here.epoch + 1)
            return
        turn = next((track for track in left if track > here.turn), None)
        if turn is None:
            self._round, turn = self._round + 1, left[0]
        self._here = Position(places, ended, turn, epoch=here.epoch)

    def _note_epoch(self) -> None:
        """Refuse a stream without tokens, which would be read endlessly.

        After a resume the first epoch is only a part of one, so one without tokens is no evidence.
        """
        self._barren = 0 if self._is_fruitful else self._barren + 1
        self._is_fruitful = False
        if self._barren > 1:
            raise DataError(f"{self._name}: no row has a text. Check data.text_field.")

    def _forget(self, end: int) -> None:
        """Drop the chunks before the token `end` of those that are ready."""
        while end >= self._ready[0][1].size:
            size = self._ready.popleft()[1].size
            end -= size
            self._size -= size
        self._consumed = end
