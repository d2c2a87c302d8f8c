"""Compute the SHA-256 of files and objects, and check bytes against a checksum that a store computed.

The module knows the formats of stores' checksums, but not the stores.
"""

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from trainyard.artifacts.store.object_store import COMPOSITE, FULL_OBJECT, SHA256
from trainyard.run.atomic_files import sha256_of_file


def calculate_file_hash(file_path: str) -> str:
    """Return the hex SHA-256 of a file, read once in constant memory (source document 004)."""
    return sha256_of_file(Path(file_path))


def sha256_of_chunks(chunks: Iterable[bytes]) -> tuple[str, int]:
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
    form = ("algorithm", "type", "part_size")
    if recorded and checksum and all(checksum.get(key) == recorded.get(key) for key in form):
        return bool(checksum["value"] == recorded.get("value"))
    return None


def file_agrees(checksum: Mapping[str, Any], path: Path, sha256: str) -> bool | None:
    """Return whether the store's `checksum` matches the file of this SHA-256; None if unknown."""
    is_composite = checksum.get("algorithm") == SHA256 and checksum.get("type") == COMPOSITE
    if is_composite and (part_size := checksum.get("part_size")):
        # Some stores omit the number of parts ("-12").
        return bool(checksum["value"].partition("-")[0] == composite_sha256(path, int(part_size)))
    return checksum_agrees(checksum, sha256)


def composite_sha256(path: Path, part_size: int) -> str:
    """Return base64 of the SHA-256 over the part digests, as S3 defines it for multipart uploads."""
    complete = hashlib.sha256()
    for digest in _part_digests(path, part_size):
        complete.update(digest)
    return _base64(complete.digest())


def _part_digests(path: Path, part_size: int) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        left = path.stat().st_size
        while left > 0:
            digest, wanted = hashlib.sha256(), min(part_size, left)
            left -= wanted
            while wanted > 0 and (chunk := file.read(min(1 << 20, wanted))):
                digest.update(chunk)
                wanted -= len(chunk)
            yield digest.digest()


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()
