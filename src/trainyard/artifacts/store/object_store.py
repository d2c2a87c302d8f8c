"""The interface of an object store. Gateways implement it; nothing here knows S3 or a file system.

Keys are relative to the store's prefix and use forward slashes. Every method raises ServiceError when the
store cannot be reached or refuses, after retrying errors that a retry can fix.
"""

from bisect import bisect_left
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol, cast

from trainyard.run.progress import Progress

SHA256 = "SHA256"
FULL_OBJECT = "FULL_OBJECT"
"""The checksum covers the object's bytes."""


class StoredObject(Protocol):
    """The store's own description of an object."""

    @property
    def key(self) -> str: ...

    @property
    def size(self) -> int:
        """Bytes."""
        ...

    @property
    def etag(self) -> str:
        """Changes when the bytes do; empty if the store has none."""
        ...

    @property
    def identity(self) -> str:
        """Distinguishes the object from all others under this key, past or future; empty if unknown."""
        ...

    @property
    def checksum(self) -> Mapping[str, Any]:
        """`algorithm`, `type` and `value` (base64, as the store returned it).

        The store computed it from all bytes of the object. It is empty in listings and for stores that
        compute none.
        """
        ...

    @property
    def modified(self) -> float:
        """When the store last received it, in Unix seconds by the store's clock; 0 if unknown."""
        ...

    @property
    def has_requested_encryption(self) -> bool:
        """False if `describe` reports an encryption other than the one for new objects."""
        ...

    @property
    def archived(self) -> str:
        """The archive (`GLACIER`, …) from which the object cannot be read now; empty if it can be read.

        A listing reports it also for an object that was restored from the archive; `describe` does not.
        """
        ...


class Upload(Protocol):
    """A staged file that becomes visible in the store with `commit`."""

    @property
    def size(self) -> int: ...

    @property
    def sha256(self) -> str:
        """Lower-case hex, of the bytes read for sending."""
        ...

    def commit(self) -> StoredObject:
        """Make the object visible, or find it there with the same bytes.

        It has no checksum if the store does not show that its bytes are these; then read it back. Raises
        VerificationError when the store computed another checksum, or has other bytes under this name, which
        are not replaced.
        """
        ...

    def abort(self) -> None:
        """Discard the upload; never raises."""
        ...


class Store(Protocol):
    """A place for objects: `s3://bucket/prefix` or `file:///folder`."""

    @property
    def url(self) -> str: ...

    @property
    def prefix(self) -> str:
        """The prefix of every key in the bucket: empty, or ending with a slash."""
        ...

    @property
    def part_bytes(self) -> int | None:
        """Files above this size are sent in parts of this size; None: the store chooses."""
        ...

    def folders(self) -> Iterator[str]:
        """Yield the first part of all keys that have more than one."""
        ...

    def list_objects(self, prefix: str) -> Iterator[StoredObject]:
        """Yield every object whose key starts with `prefix`, without checksums."""
        ...

    def describe(self, key: str) -> StoredObject | None:
        """Return one object with the store's own checksum; None if there is none."""
        ...

    def read_chunks(
        self, key: str, *, start: int = 0, length: int | None = None, identity: str = ""
    ) -> Iterator[bytes]:
        """Yield at most `length` of the object's bytes from `start` on; nothing beyond its end.

        Raises FileNotFoundError when there is no such object, ObjectChangedError when it is not the one of
        `identity`, or is replaced while it is read.
        """
        ...

    def read_object(self, key: str) -> bytes | None:
        """Return a small object; None if there is none.

        If the store sends its own checksum along, the bytes are compared with it, because other objects
        depend on these. Raises VerificationError for an object that is too large for a record.
        """
        ...

    def stream(
        self, key: str, start: int, size: int, *, identity: str = ""
    ) -> Generator[bytes | memoryview, None, None]:
        """Yield the bytes from `start` on of an object that should have `size`, as fast as the store can.

        There are more or fewer if the object has another size. A piece is valid until the next one is
        requested. Close the generator to stop early: it holds memory that others wait for.
        """
        ...

    def put_new(self, key: str, content: bytes, *, metadata: Mapping[str, str]) -> bool:
        """Store a small object with a conditional put; return False if the key is taken."""
        ...

    def swap(self, key: str, old: bytes, new: bytes, *, metadata: Mapping[str, str]) -> bool:
        """Replace a small object with a conditional put; return False if it is no longer `old`."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object; a missing one is not an error."""
        ...

    def stage(self, path: Path, key: str, *, metadata: Mapping[str, str], replaces: str = "") -> Upload:
        """Read the file once, in constant memory, and prepare it to become the object `key`.

        `replaces` is the `identity` of the object under this key that may be replaced; without it, the key
        must be free.
        """
        ...

    def refuses_to_join(self, key: str) -> bool:
        """Try to join an upload in parts under a key that is taken; return whether the store refuses that.

        If it does not, `key` becomes an object of one byte. True for a store without uploads in parts.
        """
        ...

    def can_abort(self, key: str) -> bool:
        """Start an upload in parts of `key` and abort it; return False if that is refused. None stays open.

        If it is refused, `key` may become an object of one byte.
        """
        ...

    def abort_uploads(self) -> None:
        """Abort, from any thread, what a check of the store has started to send in parts; never raises."""
        ...

    def sweep(self, older_than_seconds: float) -> int:
        """Abort uncompleted uploads of runs that started this long ago; return the count. Never raises."""
        ...


def put_and_confirm(
    store: Store, key: str, new: bytes, *, old: bytes | None = None, metadata: Mapping[str, str] | None = None
) -> bool:
    """Store a small object where `old` (None: nothing) is stored; return whether the object is `new` now.

    It is read back: the put may have succeeded although its response was lost, or somebody else was first.
    """
    if old is None:
        store.put_new(key, new, metadata=metadata or {})
    else:
        store.swap(key, old, new, metadata=metadata or {})
    return store.read_object(key) == new


def snapshot(store: Store) -> Store:
    """Return `store` with the names that it has now: listings are answered from one listing of all objects.

    With it, work over all runs takes a time in proportion to their number. Objects that are stored later are
    not there; the content of the others is read from the store.
    """
    return cast(Store, _Snapshot(store))


class _Snapshot:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._objects = {found.key: found for found in store.list_objects("")}
        self._keys = sorted(self._objects)

    def folders(self) -> Iterator[str]:
        yield from dict.fromkeys(key.partition("/")[0] for key in self._keys if "/" in key)

    def list_objects(self, prefix: str) -> Iterator[StoredObject]:
        for place in range(bisect_left(self._keys, prefix), len(self._keys)):
            if not self._keys[place].startswith(prefix):
                return
            yield self._objects[self._keys[place]]

    def read_object(self, key: str) -> bytes | None:
        return self._store.read_object(key) if key in self._objects else None

    def describe(self, key: str) -> StoredObject | None:
        return self._store.describe(key) if key in self._objects else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def with_progress(store: Store, progress: Progress) -> Store:
    """Return `store` wrapped so that each block read from it advances `progress`.

    The store's gateway reports what is sent.
    """
    return _WatchedStore(store, progress)


class _WatchedStore:
    def __init__(self, store: Store, progress: Progress) -> None:
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

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)
