"""What a store of objects must be able to do. Gateways satisfy it; nothing here knows S3 or a file system.

Keys are relative to the store's prefix and use forward slashes. Every method raises ServiceError when the
store cannot be reached or refuses, after the retries that could have healed it.
"""

from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from trainyard.artifacts.claims import Claim

SHA256 = "SHA256"
FULL_OBJECT = "FULL_OBJECT"
"""The checksum is of the object's bytes."""
COMPOSITE = "COMPOSITE"
"""The checksum is of the digests of the object's parts, each `part_size` bytes long but the last."""


class StoredObject(Protocol):
    """What the store itself says of an object."""

    @property
    def key(self) -> str: ...

    @property
    def size(self) -> int:
        """Bytes."""
        ...

    @property
    def etag(self) -> str:
        """Changes when the bytes do; empty where the store has none."""
        ...

    @property
    def identity(self) -> str:
        """Tells it from every other object that had or gets the key, for reading it; empty if not known."""
        ...

    @property
    def checksum(self) -> Mapping[str, Any]:
        """`algorithm`, `type`, `value` (base64, as the store returned it) and, for parts, `part_size`.

        Computed by the store from the bytes it holds; empty in listings and where the store computes none.
        """
        ...

    @property
    def modified(self) -> float:
        """When the store last received it, in Unix seconds by the store's clock; 0 where it does not say."""
        ...

    @property
    def encrypted_as_asked(self) -> bool:
        """False where `describe` is told of another encryption than new objects are given."""
        ...


class Upload(Protocol):
    """A file that was read, and is not visible in the store until `commit`."""

    @property
    def size(self) -> int: ...

    @property
    def sha256(self) -> str:
        """Lower-case hex, of the bytes that were read for sending; as claimed where that was vouched for."""
        ...

    @property
    def is_compared(self) -> bool:
        """Whether each part of these bytes was compared with a claim."""
        ...

    def commit(self) -> StoredObject:
        """Make the object visible. Raises VerificationError when the store computed another checksum."""
        ...

    def abort(self) -> None:
        """Leave nothing behind; never raises."""
        ...


class Store(Protocol):
    """A place for objects: `s3://bucket/prefix` or `file:///folder`."""

    @property
    def url(self) -> str: ...

    @property
    def prefix(self) -> str:
        """What stands before every key in the bucket: empty, or ending with a slash."""
        ...

    def folders(self) -> Iterator[str]:
        """The first parts of all keys that have more than one."""
        ...

    def list_objects(self, prefix: str) -> Iterator[StoredObject]:
        """Every object whose key starts with `prefix`, without checksums."""
        ...

    def describe(self, key: str) -> StoredObject | None:
        """One object with the store's own checksum; None if there is none."""
        ...

    def read_chunks(
        self, key: str, *, start: int = 0, length: int | None = None, identity: str = ""
    ) -> Iterator[bytes]:
        """The object's bytes from `start` on, at most `length`, read from the store; none beyond its end.

        Raises FileNotFoundError when there is no such object, ObjectChangedError when it is not the one of
        `identity`, or becomes another while it is read.
        """
        ...

    def read_object(self, key: str) -> bytes | None:
        """All of a small object, None if there is none.

        Others rest on it: where the store sends its own checksum along, the bytes are compared with it.
        """
        ...

    def read_pieces(self, key: str, start: int, length: int, room: memoryview) -> Iterator[memoryview]:
        """The object's bytes as `read_chunks` gives them, in memory of the caller's own.

        `room` is filled from its beginning to its end, again and again; a piece is what came at once, and
        good until its place is filled again.
        """
        ...

    def stream(
        self, key: str, start: int, size: int, *, identity: str = ""
    ) -> Generator[bytes | memoryview, None, None]:
        """The bytes from `start` on of an object that should have `size`, fetched as fast as the store can.

        They may be more or fewer where it has another size. A piece is good until the next one is asked for.
        Who stops before the end closes it: it holds memory that others wait for.
        """
        ...

    def put_new(self, key: str, content: bytes, *, metadata: Mapping[str, str]) -> bool:
        """Store a small object unless the key is taken, decided by the store; False if it is taken."""
        ...

    def swap(self, key: str, old: bytes, new: bytes, *, metadata: Mapping[str, str]) -> bool:
        """Replace a small object if it still is `old`, decided by the store; False if it is not."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object; one that is not there is no error."""
        ...

    def stage(
        self, path: Path, key: str, *, metadata: Mapping[str, str], claim: Claim | None = None
    ) -> Upload:
        """Read the file once, in constant memory, and prepare it to become the object `key`.

        With a `claim` a store that sends it in such parts compares each, and has the SHA-256 of the whole
        from there if that is vouched for. Raises CheckpointError when a part is another.
        """
        ...

    def is_checksum_of(self, path: Path, checksum: Mapping[str, Any]) -> bool:
        """Whether a checksum of a kind that only this store knows is that of the file.

        It tells damage, and may be one that can be forged.
        """
        ...

    def sweep(self, older_than_seconds: float) -> int:
        """Give up uploads of runs that were begun so long ago and never completed; how many. Never raises."""
        ...
