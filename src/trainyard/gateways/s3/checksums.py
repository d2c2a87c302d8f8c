"""The checksums that S3 computes over a multipart upload: the algorithms, for a part and for the object.

CRC64NVME is almost free and does not depend on how a file was split. It detects corruption, not tampering, so
it is used when the connection cannot be tampered with, beside the SHA-256 in the manifest. A composite
SHA-256 is used on request, over plain HTTP, and for stores without CRC64NVME.
"""

import base64
import hashlib
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

_BLOCK_BYTES = 1 << 20
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Running(Protocol):
    """A running checksum that is updated piece by piece, like those of `hashlib`."""

    def update(self, piece: memoryview, /) -> None: ...

    def digest(self) -> bytes: ...


class Algorithm(StrEnum):
    """A multipart checksum, by S3's name."""

    CRC64NVME = "CRC64NVME"
    SHA256 = "SHA256"

    def created(self) -> dict[str, str]:
        """Return the arguments that start an upload."""
        full = {"ChecksumType": "FULL_OBJECT"} if self is Algorithm.CRC64NVME else {}
        return {"ChecksumAlgorithm": str(self), **full}

    def start(self) -> Running:
        """Return the checksum of one part before its first byte."""
        return hashlib.sha256() if self is Algorithm.SHA256 else _Crc64Nvme()

    def sent(self, value: bytes) -> dict[str, str]:
        """Return the arguments that make S3 compute the part's checksum and refuse any other than `value`."""
        return {"ChecksumAlgorithm": str(self), f"Checksum{self}": as_text(value)}

    def whole(self, parts: Sequence[tuple[bytes, int]]) -> bytes:
        """Return the checksum of the object whose parts have these checksums and sizes."""
        if self is Algorithm.SHA256:
            return hashlib.sha256(b"".join(value for value, _ in parts)).digest()
        from awscrt import checksums

        total = 0
        for value, size in parts:
            total = checksums.combine_crc64nvme(total, int.from_bytes(value), size)
        return _as_bytes(total)

    def completed(self, whole: bytes) -> dict[str, str]:
        """Return the arguments that make S3 refuse to join the parts if the object has another checksum."""
        if self is Algorithm.SHA256:
            return {}  # S3 accepts no composite checksum here, but compares those of the parts
        return {"ChecksumType": "FULL_OBJECT", f"Checksum{self}": as_text(whole)}


class _Crc64Nvme:
    def __init__(self) -> None:
        self._value = 0

    def update(self, piece: memoryview, /) -> None:
        from awscrt import checksums

        self._value = checksums.crc64nvme(piece, self._value)

    def digest(self) -> bytes:
        return _as_bytes(self._value)


def crc64nvme_of(path: Path) -> str:
    """Return the CRC64NVME of a file in base64."""
    checksum, buffer = Algorithm.CRC64NVME.start(), memoryview(bytearray(_BLOCK_BYTES))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            checksum.update(buffer[:count])
    return as_text(checksum.digest())


def is_tamper_proof(endpoint: str) -> bool:
    """Return whether nobody between here and the store can change bytes together with their checksum."""
    place = urlsplit(endpoint)
    return place.scheme == "https" or place.hostname in _LOOPBACK


def as_text(value: bytes) -> str:
    """Return the checksum as S3 writes it."""
    return base64.b64encode(value).decode()


def _as_bytes(crc: int) -> bytes:
    return crc.to_bytes(8)
