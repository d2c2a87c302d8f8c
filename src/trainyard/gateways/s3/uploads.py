"""Upload a file in one request; `parts` uploads larger ones.

The file is hashed, then sent with its SHA-256, which S3 computes again and refuses if it differs. The
checksum in S3's response is compared once more.
"""

import base64
import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from io import FileIO
from pathlib import Path
from typing import Any

from trainyard.errors import VerificationError
from trainyard.gateways.s3.bucket import Bucket

_PART_BYTES = 16 << 20
_BLOCK_BYTES = 1 << 20
BODY_BYTES = 128 << 10
"""Size of one write. Python's time limit applies to each, and many connections may share a slow line."""
_MOST_PARTS = 10_000
"""S3's own limit."""
MISSING = ("404", "NoSuchKey", "NotFound")
Pace = Callable[[int], None]
"""Called with the number of bytes to be read next; may wait."""


@dataclass(frozen=True)
class S3Object:
    """An object as S3 describes it."""

    key: str
    size: int
    etag: str = ""
    checksum: Mapping[str, Any] = field(default_factory=dict)
    modified: float = field(default=0.0, compare=False)
    has_requested_encryption: bool = field(default=True, compare=False)

    @property
    def identity(self) -> str:
        return self.etag


def describe_object(bucket: Bucket, key: str) -> S3Object | None:
    """Return the object with the checksum that S3 computed; None if it does not exist."""
    answer = bucket.call("head_object", key, unless=MISSING, ChecksumMode="ENABLED")
    if answer is None:
        return None
    found = object_of(key, int(answer["ContentLength"]), answer)
    return replace(found, has_requested_encryption=bucket.has_requested_encryption(answer))


def sha256_of(path: Path, pace: Pace) -> str:
    """Return the hex SHA-256 of a file."""
    digest, buffer = hashlib.sha256(), bytearray(min(_BLOCK_BYTES, path.stat().st_size + 1))
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            pace(count)
            digest.update(view[:count])
    return digest.hexdigest()


def sha256_arguments(digest: bytes) -> dict[str, Any]:
    """Return the arguments that make S3 compute the SHA-256 and refuse any other than `digest`."""
    return {"ChecksumAlgorithm": "SHA256", "ChecksumSHA256": _base64(digest)}


@dataclass(frozen=True)
class SinglePart:
    """A file that one request uploads; it is read again then, and S3 refuses other bytes."""

    bucket: Bucket
    key: str
    path: Path
    metadata: Mapping[str, str]
    size: int
    sha256: str
    pace: Pace
    is_compared: bool = False

    def commit(self) -> S3Object:
        digest = bytes.fromhex(self.sha256)
        with self.path.open("rb", buffering=0) as file:
            body = _Blocks(file, self.size, self.pace)
            answer = self.bucket.create(
                "put_object",
                self.key,
                Body=body.read() if self.size <= BODY_BYTES else body,
                Metadata=dict(self.metadata),
                **sha256_arguments(digest),
            )
        stored = object_of(self.key, self.size, answer)
        return confirm_checksum(self.bucket, stored, algorithm="SHA256", expected=_base64(digest))

    def abort(self) -> None:
        """Do nothing, because nothing was sent."""


class _Blocks:
    """A file that is read in large blocks, whatever size is requested (urllib3 requests 16 KiB)."""

    def __init__(self, file: FileIO, size: int, pace: Pace) -> None:
        self._file, self._size, self._pace = file, size, pace

    def __len__(self) -> int:
        return self._size

    def read(self, _size: int = -1) -> bytes:
        self._pace(min(BODY_BYTES, self._size))
        return self._file.read(BODY_BYTES)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()


def confirm_checksum(bucket: Bucket, stored: S3Object, *, algorithm: str, expected: str) -> S3Object:
    """Return the object if S3's own checksum is the expected one or missing; else raise VerificationError."""
    for _ in range(1 + bucket.attempts):
        # Some stores omit the number of parts after a composite checksum ("-12").
        value = str(stored.checksum.get("value", "")).partition("-")[0]
        if (stored.checksum.get("algorithm"), value) == (algorithm, expected):
            return stored
        # The checksum is missing, or comes from a response with truncated headers, so S3 is queried again.
        described = describe_object(bucket, stored.key)
        if described is None or described.size != stored.size:
            continue
        if not described.checksum:
            return described
        stored = described
    raise VerificationError(
        f"{stored.key}: S3 has {dict(stored.checksum) or 'nothing'}, we sent {algorithm} {expected}"
    )


def object_of(key: str, size: int, answer: Mapping[str, Any], *, part_size: int = 0) -> S3Object:
    """Return the object that S3's response describes; `part_size` is the one used for sending, if known."""
    etag = str(answer.get("ETag", "")).strip('"')
    for algorithm in ("SHA256", "CRC64NVME"):
        value = answer.get(f"Checksum{algorithm}")
        if value is None:
            continue
        several = algorithm == "SHA256" and (part_size or "-" in value or "-" in etag)
        if answer.get("ChecksumType") == "COMPOSITE" or several:
            kind = {"type": "COMPOSITE", "part_size": part_size or part_bytes(size)}
        else:
            kind = {"type": "FULL_OBJECT"}
        return S3Object(key, size, etag, {"algorithm": algorithm, **kind, "value": value})
    return S3Object(key, size, etag)


def matches_checksum(content: bytes, answer: Mapping[str, Any]) -> bool:
    """Return whether the bytes of a response match the SHA-256 in it, if it has one."""
    stated = object_of("", len(content), answer).checksum
    if stated.get("algorithm") != "SHA256" or stated["type"] != "FULL_OBJECT":
        return True
    return bool(stated["value"] == _base64(hashlib.sha256(content).digest()))


def part_bytes(size: int) -> int:
    """Return the part size for a file of `size` bytes, a whole number of MiB."""
    return max(_PART_BYTES, -(-size // _MOST_PARTS // (1 << 20)) * (1 << 20))


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()
