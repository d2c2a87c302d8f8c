"""Store files that were copied from elsewhere, one by one; the store itself verifies each."""

from pathlib import Path

from trainyard.artifacts.store.hashing import checksum_agrees, sha256_of_chunks
from trainyard.artifacts.store.object_store import Store
from trainyard.errors import VerificationError


class StoreDelivery:
    """Objects of one store, by their keys."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def size_of(self, name: str) -> int | None:
        """The size of the object; None if it does not exist."""
        there = self._store.describe(name)
        return None if there is None else there.size

    def has(self, name: str, *, size: int, sha256: str) -> bool:
        """Return whether the object is there with these bytes; it is read if its checksum is not enough."""
        there = self._store.describe(name)
        if there is None or there.size != size:
            return False
        agrees = checksum_agrees(there.checksum, sha256)
        if agrees is not None:
            return agrees
        return sha256_of_chunks(self._store.read_chunks(name)) == (sha256, size)

    def deliver(self, path: Path, name: str, *, sha256: str) -> None:
        """Store the file. Raises VerificationError if its bytes do not match the digest."""
        upload = self._store.stage(path, name, metadata={})
        if upload.sha256 != sha256:
            upload.abort()
            raise VerificationError(
                f"{path}: SHA-256 {upload.sha256[:12]}… was read, {sha256[:12]}… was copied"
            )
        upload.commit()

    def write(self, name: str, text: str) -> None:
        """Store a small object; replace one with other content."""
        content = text.encode()
        while not self._store.put_new(name, content, metadata={}):
            old = self._store.read_object(name)
            if old == content or (old is not None and self._store.swap(name, old, content, metadata={})):
                return
