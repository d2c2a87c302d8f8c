"""The interface of an object store. Gateways implement it; nothing here knows S3 or a file system.

Keys are relative to the store's prefix and use forward slashes. Every method raises ServiceError when the
store cannot be reached or refuses, after retrying errors that a retry can fix.
"""

import base64
import hashlib
from bisect import bisect_left
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from trainyard.errors import ObjectChangedError
from trainyard.run.progress import UNSEEN, Progress

SHA256 = "SHA256"
FULL_OBJECT = "FULL_OBJECT"
"""The checksum covers the object's bytes."""


# The class of the gateways is only named in annotations: no room imports a gateway.
if TYPE_CHECKING:
    from trainyard.gateways import GatewayObject

    StoredObject = GatewayObject
else:
    StoredObject = Any


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

    def read_object(self, key: str) -> bytes | None:
        """Return a small object; None if there is none.

        If the store sends its own checksum along, the bytes are compared with it, because other objects
        depend on these. Raises VerificationError for an object that is too large for a record.
        """
        ...

    def stream(self, key: str, start: int, size: int, *, identity: str = "") -> Generator[bytes, None, None]:
        """Yield the bytes from `start` on of an object that should have `size`, as fast as the store can.

        There are more or fewer if the object has another size. Close the generator to stop early: it holds
        memory that others wait for. Raises FileNotFoundError when there is no such object, ObjectChangedError
        when it is not the one of `identity`, or is replaced while it is read.
        """
        ...

    def put_new(self, key: str, content: bytes, *, metadata: Mapping[str, str]) -> bool:
        """Store a small object with a conditional put; return False if the key is taken."""
        ...

    def accepts_again(self, key: str, content: bytes) -> bool:
        """Put a small object under a key that is taken; return True if the store ignores the condition.

        The checksum is that of large files. Raises UnsupportedOperationError where the store refuses it, so
        that this is known before the first large file.
        """
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


def sha256_of_chunks(chunks: Iterable[bytes], progress: Progress = UNSEEN) -> tuple[str, int]:
    """Return the hex SHA-256 and the number of bytes of a stream; `progress` receives each piece's size."""
    digest, size = hashlib.sha256(), 0
    for chunk in chunks:
        progress.advance(len(chunk))
        digest.update(chunk)
        size += len(chunk)
    return digest.hexdigest(), size


def checksum_agrees(
    checksum: Mapping[str, Any], sha256: str, recorded: Mapping[str, Any] | None = None
) -> bool | None:
    """Return whether the store's `checksum` matches the object's SHA-256; None if it does not show that.

    Any checksum other than a SHA-256 of the complete object is compared with `recorded`, the checksum that
    the store returned when these bytes were sent.
    """
    if checksum.get("algorithm") == SHA256 and checksum.get("type") == FULL_OBJECT:
        return bool(checksum["value"] == base64.b64encode(bytes.fromhex(sha256)).decode())
    form = ("algorithm", "type")
    if recorded and checksum and all(checksum.get(key) == recorded.get(key) for key in form):
        return bool(checksum["value"] == recorded.get("value"))
    return None


def has_content(store: Store, found: StoredObject, sha256: str) -> bool:
    """Return whether a described object has these bytes, by the store's own SHA-256 or else by reading it."""
    if (agrees := checksum_agrees(found.checksum, sha256)) is not None:
        return agrees
    try:
        with closing(store.stream(found.key, 0, found.size, identity=found.identity)) as chunks:
            return sha256_of_chunks(chunks) == (sha256, found.size)
    except (FileNotFoundError, ObjectChangedError):
        return False
