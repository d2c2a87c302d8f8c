"""Compute the SHA-256 and the size of bytes as they pass by."""

import hashlib


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
