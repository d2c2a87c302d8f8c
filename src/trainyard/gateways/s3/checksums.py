"""The checksums that S3 computes over what it receives in parts: which there are, of a part and of the whole.

CRC64NVME costs next to nothing and is the same however a file was cut. It tells damage, not malice: it goes
where the way to the store cannot be tampered with, and the SHA-256 of the manifest is beside it. A composite
SHA-256 goes where asked for, over plain HTTP, and where a store knows no CRC64NVME.
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
    """A checksum that is told the bytes piece by piece, as those of `hashlib` are."""

    def update(self, piece: memoryview, /) -> None: ...

    def digest(self) -> bytes: ...


class Algorithm(StrEnum):
    """A checksum over parts, by S3's name."""

    CRC64NVME = "CRC64NVME"
    SHA256 = "SHA256"

    def created(self) -> dict[str, str]:
        """What an upload is begun with."""
        full = {"ChecksumType": "FULL_OBJECT"} if self is Algorithm.CRC64NVME else {}
        return {"ChecksumAlgorithm": str(self), **full}

    def start(self) -> Running:
        """Of one part, before its first byte."""
        return hashlib.sha256() if self is Algorithm.SHA256 else _Crc64Nvme()

    def sent(self, value: bytes) -> dict[str, str]:
        """Makes S3 compute the checksum of the part it receives, and refuse anything else than `value`."""
        return {"ChecksumAlgorithm": str(self), f"Checksum{self}": as_text(value)}

    def whole(self, parts: Sequence[tuple[bytes, int]]) -> bytes:
        """Of the object whose parts have these checksums and sizes."""
        if self is Algorithm.SHA256:
            return hashlib.sha256(b"".join(value for value, _ in parts)).digest()
        from awscrt import checksums

        total = 0
        for value, size in parts:
            total = checksums.combine_crc64nvme(total, int.from_bytes(value), size)
        return _as_bytes(total)

    def completed(self, whole: bytes) -> dict[str, str]:
        """Makes S3 refuse to join parts to anything else than what has this checksum."""
        if self is Algorithm.SHA256:
            return {}  # S3 takes no composite one, and compares those of the parts
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
    """Of a file, in base64."""
    checksum, buffer = Algorithm.CRC64NVME.start(), memoryview(bytearray(_BLOCK_BYTES))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            checksum.update(buffer[:count])
    return as_text(checksum.digest())


def is_safe_way(endpoint: str) -> bool:
    """Whether nobody between us and the store can change bytes and their unkeyed checksum alike."""
    place = urlsplit(endpoint)
    return place.scheme == "https" or place.hostname in _LOOPBACK


def as_text(value: bytes) -> str:
    """As S3 writes it."""
    return base64.b64encode(value).decode()


def _as_bytes(crc: int) -> bytes:
    return crc.to_bytes(8)
