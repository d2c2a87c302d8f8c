"""Compute the SHA-256 and the size of a file's bytes as they pass by."""

import hashlib
from pathlib import Path

_CHUNK_BYTES = 1 << 20


class FileDigests:
    """Counts and hashes the bytes of a file that arrive in order."""

    def __init__(self) -> None:
        self.size = 0
        self._sha256 = hashlib.sha256()

    def update(self, content: bytes | memoryview) -> None:
        self._sha256.update(content)
        self.size += len(content)

    @property
    def sha256(self) -> str:
        """Lower-case hex."""
        return self._sha256.hexdigest()


def digests_of_file(path: Path) -> FileDigests:
    """Return the digests of `path`, read once in constant memory."""
    digests, buffer = FileDigests(), memoryview(bytearray(_CHUNK_BYTES))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digests.update(buffer[:count])
    return digests
