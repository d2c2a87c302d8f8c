"""Compute the SHA-256 of files and objects, and check bytes against a checksum that a store computed.

The module knows the formats of stores' checksums, but not the stores.
"""

import base64
import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trainyard.artifacts.store.object_store import FULL_OBJECT, SHA256
from trainyard.run.atomic_files import sha256_of_file


def calculate_file_hash(file_path: str) -> str:
    """Return the hex SHA-256 of a file, read once in constant memory (source document 004)."""
    return sha256_of_file(Path(file_path))


def sha256_of_chunks(chunks: Iterable[bytes | memoryview]) -> tuple[str, int]:
    """Return the hex SHA-256 and the number of bytes of a stream."""
    digest, size = hashlib.sha256(), 0
    for chunk in chunks:
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
        return bool(checksum["value"] == _base64(bytes.fromhex(sha256)))
    form = ("algorithm", "type")
    if recorded and checksum and all(checksum.get(key) == recorded.get(key) for key in form):
        return bool(checksum["value"] == recorded.get("value"))
    return None


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()
