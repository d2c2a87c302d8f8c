"""CRC64NVME, the checksum that S3 computes over an object that is sent in parts.

It is almost free and does not depend on how a file was split. It detects corruption, not tampering: the
SHA-256 in the manifest does, and requests over plain HTTP are signed together with their bodies.
"""

import base64
from collections.abc import Iterable
from urllib.parse import urlsplit

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Crc64Nvme:
    """A running checksum that is updated piece by piece, like those of `hashlib`."""

    def __init__(self) -> None:
        self._value = 0

    def update(self, piece: memoryview, /) -> None:
        from awscrt import checksums

        self._value = checksums.crc64nvme(piece, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(8)


def combine(parts: Iterable[tuple[bytes, int]]) -> bytes:
    """Return the checksum of the object whose parts have these checksums and sizes."""
    from awscrt import checksums

    total = 0
    for value, size in parts:
        total = checksums.combine_crc64nvme(total, int.from_bytes(value), size)
    return total.to_bytes(8)


def is_tamper_proof(endpoint: str) -> bool:
    """Return whether nobody between here and the store can change bytes together with their checksum."""
    place = urlsplit(endpoint)
    return place.scheme == "https" or place.hostname in _LOOPBACK


def as_text(value: bytes) -> str:
    """Return the checksum as S3 writes it."""
    return base64.b64encode(value).decode()
