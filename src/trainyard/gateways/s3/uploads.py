"""Upload a file with a checksum and a condition: in one request here, larger ones in `parts`.

S3 computes the checksum again and refuses other bytes; the one in its response is compared once more. The
condition is that the name is free (`If-None-Match: *`), or has the object that may be replaced (`If-Match`).
A file that one request uploads is hashed first, and sent with its SHA-256.
"""

import base64
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import Any

from trainyard.errors import VerificationError
from trainyard.gateways import GatewayObject
from trainyard.gateways.s3.bucket_requests import Bucket

_PART_BYTES = 16 << 20
_BLOCK_BYTES = 1 << 20
BODY_BYTES = 128 << 10
"""Size of one write. Python's time limit applies to each, and many connections may share a slow line."""
_MOST_PARTS = 10_000
"""S3's own limit."""
MISSING = ("404", "NoSuchKey", "NotFound")
TAKEN = ("412", "PreconditionFailed")
_ARCHIVES = ("GLACIER", "DEEP_ARCHIVE")
"""Storage classes whose objects must be restored before they can be read."""
Pace = Callable[[int], None]
"""Called with the number of bytes to be read next; may wait."""


def describe_object(bucket: Bucket, key: str) -> GatewayObject | None:
    """Return the object with the checksum that S3 computed; None if it does not exist."""
    answer = bucket.call("head_object", key, unless=MISSING, ChecksumMode="ENABLED")
    if answer is None:
        return None
    return replace(object_of(key, int(answer["ContentLength"]), answer), archived=archive_of(answer))


def archive_of(answer: Mapping[str, Any]) -> str:
    """Return the archive from which an object cannot be read now; empty if it can be read.

    A listing does not say whether an archived object was restored meanwhile; its description does.
    """
    archive = answer.get("ArchiveStatus") or answer.get("StorageClass")
    is_restored = 'ongoing-request="false"' in str(answer.get("Restore", ""))
    is_archive = archive in _ARCHIVES or str(archive).endswith("ARCHIVE_ACCESS")
    return str(archive) if is_archive and not is_restored else ""


def condition(replaces: str) -> dict[str, str]:
    """Return the condition of an upload: the name has the ETag `replaces` or, if that is empty, is free."""
    return {"IfMatch": f'"{replaces}"'} if replaces else {"IfNoneMatch": "*"}


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


class Upload:
    """A file that becomes the object `key` with `commit`."""

    algorithm = "SHA256"
    """The checksum that is sent along."""

    def __init__(
        self,
        bucket: Bucket,
        key: str,
        path: Path,
        *,
        metadata: Mapping[str, str],
        pace: Pace,
        replaces: str = "",
    ) -> None:
        """`replaces` is the ETag of the object that may be replaced; if empty, the name must be free."""
        self._bucket, self._key, self._path = bucket, key, path
        self._metadata, self._pace, self._replaces = dict(metadata), pace, replaces
        self.size, self.sha256 = path.stat().st_size, ""

    def _checksum(self) -> str:
        """Return the checksum of the bytes that were read, as S3 writes it."""
        raise NotImplementedError

    def _accept_equal(self) -> GatewayObject:
        """Return the object whose name S3 refused to give away, if it has the bytes that were to be stored.

        It has them if an earlier request, whose response was lost, stored it. If S3 has no checksum of this
        kind, it is returned without a checksum, so that the caller reads it back. Raises VerificationError
        for others.
        """
        found = describe_object(self._bucket, self._key)
        if found is None:
            raise VerificationError(f"{self._key}: was removed while it was stored. Store the run again.")
        is_known = found.checksum.get("algorithm") == self.algorithm
        if found.size != self.size or (is_known and found.checksum["value"] != self._checksum()):
            raise VerificationError(
                f"{self._key}: the store holds other bytes under this name, and they were not replaced. What "
                "is stored is never changed."
            )
        return found if is_known else replace(found, checksum={})

    def _confirm(self, answer: Mapping[str, Any]) -> GatewayObject:
        """Return the object if S3's own checksum is the expected one or missing; else VerificationError."""
        stored = object_of(self._key, self.size, answer)
        expected = _checksum_of(self.algorithm, self._checksum())
        if stored.checksum != expected:
            # It is missing, or comes from a response with truncated headers: S3 is queried again.
            stored = describe_object(self._bucket, self._key) or stored
        if stored.size != self.size or stored.checksum not in ({}, expected):
            raise VerificationError(
                f"{self._key}: S3 has {stored.size:,} bytes, {dict(stored.checksum)}; we sent {self.size:,}, "
                f"{expected}"
            )
        return stored


class SinglePart(Upload):
    """A file that one request uploads: it is hashed now and read again then, and S3 refuses other bytes."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.sha256 = sha256_of(self._path, self._pace)

    def _checksum(self) -> str:
        return _base64(bytes.fromhex(self.sha256))

    def commit(self) -> GatewayObject:
        with _FileBody(self._path, self._pace) as body:
            answer = self._bucket.create(
                "put_object",
                self._key,
                unless=TAKEN + MISSING,
                Body=body.read() if self.size <= BODY_BYTES else body,
                Metadata=self._metadata,
                **condition(self._replaces),
                **sha256_arguments(bytes.fromhex(self.sha256)),
            )
        return self._accept_equal() if answer is None else self._confirm(answer)

    def abort(self) -> None:
        """Do nothing, because nothing was sent."""


class _FileBody(FileIO):
    """A file that is sent in larger pieces than urllib3 asks for; `pace` may wait after each."""

    def __init__(self, path: Path, pace: Pace) -> None:
        super().__init__(path)
        self._pace = pace

    def read(self, size: int | None = -1, /) -> bytes:
        content = super().read(BODY_BYTES if size and size > 0 else size) or b""
        self._pace(len(content))
        return content


def object_of(key: str, size: int, answer: Mapping[str, Any]) -> GatewayObject:
    """Return the object that S3's response describes, with a checksum of all of its bytes if there is one."""
    etag = str(answer.get("ETag", "")).strip('"')
    for algorithm in ("SHA256", "CRC64NVME"):
        value = answer.get(f"Checksum{algorithm}")
        # A SHA-256 of an object in parts is one of their digests. Some stores omit "-12" and the type.
        is_composite = answer.get("ChecksumType") == "COMPOSITE" or "-" in (value or "")
        if value is None or is_composite or (algorithm == "SHA256" and "-" in etag):
            continue
        return GatewayObject(key, size, etag, _checksum_of(algorithm, value), identity=etag)
    return GatewayObject(key, size, etag, identity=etag)


def _checksum_of(algorithm: str, value: str) -> dict[str, str]:
    return {"algorithm": algorithm, "type": "FULL_OBJECT", "value": value}


def matches_checksum(content: bytes, answer: Mapping[str, Any]) -> bool:
    """Return whether the bytes of a response match the SHA-256 in it, if it has one."""
    stated = object_of("", len(content), answer).checksum
    if stated.get("algorithm") != "SHA256":
        return True
    return bool(stated["value"] == _base64(hashlib.sha256(content).digest()))


def part_bytes(size: int) -> int:
    """Return the part size for a file of `size` bytes, a whole number of MiB."""
    return max(_PART_BYTES, -(-size // _MOST_PARTS // (1 << 20)) * (1 << 20))


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()
