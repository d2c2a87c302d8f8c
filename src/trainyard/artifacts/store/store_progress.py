"""Report the reads of a store as progress; everything else is passed to the store unchanged."""

from collections.abc import Generator, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

from trainyard.run.progress import Progress

if TYPE_CHECKING:
    from trainyard.artifacts.store.object_store import Store


def with_progress(store: "Store", progress: Progress) -> "Store":
    """Return `store` wrapped so that each block read from it advances `progress`.

    The store's gateway reports what is sent.
    """
    return _WatchedStore(store, progress)


class _WatchedStore:
    def __init__(self, store: "Store", progress: Progress) -> None:
        self._store, self._progress = store, progress

    def read_chunks(
        self, key: str, *, start: int = 0, length: int | None = None, identity: str = ""
    ) -> Iterator[bytes]:
        for chunk in self._store.read_chunks(key, start=start, length=length, identity=identity):
            self._progress.advance(len(chunk))
            yield chunk

    def stream(
        self, key: str, start: int, size: int, *, identity: str = ""
    ) -> Generator[bytes | memoryview, None, None]:
        with closing(self._store.stream(key, start, size, identity=identity)) as pieces:
            for piece in pieces:
                self._progress.advance(len(piece))
                yield piece

    def read_pieces(self, key: str, start: int, length: int, room: memoryview) -> Iterator[memoryview]:
        for piece in self._store.read_pieces(key, start, length, room):
            self._progress.advance(len(piece))
            yield piece

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)
