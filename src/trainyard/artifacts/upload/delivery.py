"""Take files that were copied from elsewhere into a store, one by one, each verified by the store itself."""

from pathlib import Path

from trainyard.artifacts.store.hashing import checksum_agrees, sha256_of_chunks
from trainyard.artifacts.store.object_store import Store
from trainyard.errors import VerificationError


class StoreDelivery:
    """Objects below one prefix of a store."""

    def __init__(self, store: Store, prefix: str) -> None:
        """`prefix` ends with a slash, or is empty."""
        self._store, self._prefix = store, prefix

    def has(self, name: str, *, size: int, sha256: str) -> bool:
        """Whether the object is there with these bytes; it is read where its checksum cannot tell."""
        there = self._store.describe(self._prefix + name)
        if there is None or there.size != size:
            return False
        agrees = checksum_agrees(there.checksum, sha256)
        if agrees is not None:
            return agrees
        return sha256_of_chunks(self._store.read_chunks(self._prefix + name)) == (sha256, size)

    def deliver(self, path: Path, name: str, *, sha256: str) -> None:
        """Store the file. Raises VerificationError where its bytes are not those of the digest."""
        upload = self._store.stage(path, self._prefix + name, metadata={})
        if upload.sha256 != sha256:
            upload.abort()
            raise VerificationError(
                f"{path}: SHA-256 {upload.sha256[:12]}… was read, {sha256[:12]}… was copied"
            )
        upload.commit()

    def write(self, name: str, text: str) -> None:
        """Store a small object; one that is there with another content is replaced."""
        key, content = self._prefix + name, text.encode()
        while not self._store.put_new(key, content, metadata={}):
            old = self._store.read_object(key)
            if old == content or (old is not None and self._store.swap(key, old, content, metadata={})):
                return
