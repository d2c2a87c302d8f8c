"""Upload a file with a checksum and a condition: in one request, or in parts that are joined at the commit.

S3 computes the checksum again and refuses other bytes; the one in its response is compared once more. The
condition is that the name is free (`If-None-Match: *`), or has the object that may be replaced (`If-Match`).
A file that one request uploads is hashed first, and sent with its SHA-256. Of a larger one:

    for each part, in order: memory → read with its checksum and the file's SHA-256 → send, several at a time

Every part carries a CRC64NVME, and so does the file. An interrupted upload is sent again from the start of
its file. The CRC does not depend on how a file was split. It detects corruption, not tampering: the SHA-256
in the manifest does.
"""

import base64
import contextlib
import hashlib
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass, field, replace
from io import BytesIO, FileIO
from pathlib import Path
from typing import Any, ClassVar

from trainyard.errors import ServiceError, VerificationError
from trainyard.gateways import GatewayObject
from trainyard.gateways.bounded_calls import wait_before_retry
from trainyard.gateways.s3.client import Bucket

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
PARTS_AT_ONCE = 8
"""Per file, as far as the memory budget allows. One connection to S3 carries at most 90 MB/s on any line."""
# Reasons why S3 does not join the parts. After NoSuchUpload, an earlier request, whose response was lost, may
# have joined them. After a 409, S3 wants all parts once more:
# https://docs.aws.amazon.com/AmazonS3/latest/API/API_CompleteMultipartUpload.html
_NOT_JOINED = (*TAKEN, *MISSING, "NoSuchUpload", "409", "ConditionalRequestConflict", "OperationAborted")
CRC64NVME = "CRC64NVME"
# The ETag, the CRC64NVME and the size of a part that was sent.
_SentPart = tuple[str, bytes, int]
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


def checksum_arguments(algorithm: str, digest: bytes) -> dict[str, Any]:
    """Return the arguments that make S3 compute the checksum and refuse any other than `digest`."""
    return {"ChecksumAlgorithm": algorithm, f"Checksum{algorithm}": as_text(digest)}


@dataclass
class Upload:
    """A file that becomes the object `key` with `commit`."""

    algorithm: ClassVar[str] = "SHA256"
    """The checksum that is sent along."""
    bucket: Bucket
    key: str
    path: Path
    _: KW_ONLY
    metadata: Mapping[str, str]
    pace: Pace
    replaces: str = ""
    """The ETag of the object that may be replaced; if empty, the name must be free."""
    sha256: str = field(default="", init=False)

    def __post_init__(self) -> None:
        self.size = self.path.stat().st_size

    def _checksum(self) -> str:
        """Return the checksum of the bytes that were read, as S3 writes it."""
        raise NotImplementedError

    def _accept_equal(self) -> GatewayObject:
        """Return the object whose name S3 refused to give away, if it has the bytes that were to be stored.

        It has them if an earlier request, whose response was lost, stored it. If S3 has no checksum of this
        kind, it is returned without a checksum, so that the caller reads it back. Raises VerificationError
        for others.
        """
        found = describe_object(self.bucket, self.key)
        if found is None:
            raise VerificationError(f"{self.key}: was removed while it was stored. Store the run again.")
        is_known = found.checksum.get("algorithm") == self.algorithm
        if found.size != self.size or (is_known and found.checksum["value"] != self._checksum()):
            raise VerificationError(
                f"{self.key}: the store holds other bytes under this name, and they were not replaced. What "
                "is stored is never changed."
            )
        return found if is_known else replace(found, checksum={})

    def _confirm(self, answer: Mapping[str, Any]) -> GatewayObject:
        """Return the object if S3's own checksum is the expected one or missing; else VerificationError."""
        stored = object_of(self.key, self.size, answer)
        expected = _checksum_of(self.algorithm, self._checksum())
        if stored.checksum != expected:
            # It is missing, or comes from a response with truncated headers: S3 is queried again.
            stored = describe_object(self.bucket, self.key) or stored
        if stored.size != self.size or stored.checksum not in ({}, expected):
            raise VerificationError(
                f"{self.key}: S3 has {stored.size:,} bytes, {dict(stored.checksum)}; we sent {self.size:,}, "
                f"{expected}"
            )
        return stored


class SinglePart(Upload):
    """A file that one request uploads: it is hashed now and read again then, and S3 refuses other bytes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.sha256 = sha256_of(self.path, self.pace)

    def _checksum(self) -> str:
        return as_text(bytes.fromhex(self.sha256))

    def commit(self) -> GatewayObject:
        with _FileBody(self.path, self.pace) as body:
            answer = self.bucket.create(
                "put_object",
                self.key,
                unless=TAKEN + MISSING,
                Body=body.read() if self.size <= BODY_BYTES else body,
                Metadata=self.metadata,
                **condition(self.replaces),
                **checksum_arguments(self.algorithm, bytes.fromhex(self.sha256)),
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


@dataclass
class Parts(Upload):
    """A multipart upload that is not joined yet."""

    algorithm: ClassVar[str] = CRC64NVME
    slots: threading.Semaphore = field(kw_only=True)
    """Limits the parts in memory."""
    part_size: int | None = field(default=None, kw_only=True)
    """That of a check; None suits the file."""
    _sent: list[_SentPart] = field(default_factory=list, init=False)
    _upload_id: str = field(default="", init=False)

    def send(self) -> None:
        """Send all parts. When one part fails permanently, the upload is aborted."""
        wanted: dict[str, Any] = {"ChecksumAlgorithm": CRC64NVME, "ChecksumType": "FULL_OBJECT"}
        answer = self.bucket.create("create_multipart_upload", self.key, Metadata=self.metadata, **wanted)
        self._upload_id = str(answer["UploadId"])
        with contextlib.ExitStack() as undo:
            undo.callback(self.abort)
            self._send_parts()
            undo.pop_all()

    def commit(self) -> GatewayObject:
        """Join the parts. Raises VerificationError when the name has other bytes than were sent."""
        for attempt in range(1, self.bucket.attempts + 1):
            self._require_replaceable()
            answer = self._join()
            if answer is not None:
                stored, self._upload_id = self._confirm(answer), ""
                return stored
            found = describe_object(self.bucket, self.key)
            if (found.etag if found else "") != self.replaces:
                stored = self._accept_equal()
                self.abort()
                return stored
            # The name is still free, or has the object to replace: other requests were in progress.
            self.abort()
            wait_before_retry(attempt)
            before = self.sha256
            self.send()
            if self.sha256 != before:
                raise VerificationError(f"{self.key}: its file was changed while it was stored")
        raise ServiceError(
            f"{self.key}: {self.bucket.endpoint} does not join its parts: another request for this name is "
            "in progress, each time. Try again later."
        )

    def _require_replaceable(self) -> None:
        """Refuse to replace another object than the one meant: some stores ignore If-Match here."""
        found = describe_object(self.bucket, self.key) if self.replaces else None
        if found is not None and found.etag != self.replaces:
            raise VerificationError(f"{self.key}: was replaced by somebody else while it was stored")

    def _join(self) -> Any:
        more = {"ChecksumType": "FULL_OBJECT", f"Checksum{CRC64NVME}": self._checksum()}
        parts = [
            {"PartNumber": number, "ETag": etag, f"Checksum{CRC64NVME}": as_text(checksum)}
            for number, (etag, checksum, _) in enumerate(self._sent, 1)
        ]
        return self.bucket.call(
            "complete_multipart_upload",
            self.key,
            unless=_NOT_JOINED,
            UploadId=self._upload_id,
            MultipartUpload={"Parts": parts},
            **condition(self.replaces),
            **more,
        )

    def _checksum(self) -> str:
        from awscrt import checksums

        total = 0
        for _, checksum, size in self._sent:
            total = checksums.combine_crc64nvme(total, int.from_bytes(checksum), size)
        return as_text(total.to_bytes(8))

    def abort(self) -> None:
        upload_id, self._upload_id = self._upload_id, ""
        with contextlib.suppress(ServiceError, VerificationError):
            if upload_id:
                self.bucket.call(
                    "abort_multipart_upload", self.key, unless=("NoSuchUpload",), UploadId=upload_id
                )

    def _send_parts(self) -> None:
        """Read the parts in order, and send each one while the next ones are read."""
        whole, parts, size = hashlib.sha256(), list[Future[_SentPart]](), 0
        with ThreadPoolExecutor(PARTS_AT_ONCE) as pool, self.path.open("rb") as file:
            while size < self.size and not any(part.done() and part.exception() for part in parts):
                self.slots.acquire()  # the thread that sends the part releases it
                with contextlib.ExitStack() as undo:
                    undo.callback(self.slots.release)
                    length = min(self.part_size or part_bytes(self.size), self.size - size)
                    self.pace(length)
                    if len(content := file.read(length)) < length:
                        raise ServiceError(f"{self.key}: its file became shorter while it was read")
                    checksum = crc64nvme_of(content)
                    whole.update(content)
                    undo.pop_all()
                parts.append(pool.submit(self._send_part, len(parts) + 1, content, checksum))
                size += length
        self.sha256, self._sent = whole.hexdigest(), [part.result() for part in parts]

    def _send_part(self, number: int, content: bytes, checksum: bytes) -> _SentPart:
        try:
            answer = self.bucket.call(
                "upload_part",
                self.key,
                UploadId=self._upload_id,
                PartNumber=number,
                Body=PartBody(content),
                **checksum_arguments(CRC64NVME, checksum),
            )
        finally:
            self.slots.release()
        return str(answer["ETag"]), checksum, len(content)


class PartBody(BytesIO):
    """A part that is sent in pieces, because a time limit applies to each write; urllib3 asks for 16 KiB."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(max(size, BODY_BYTES) if size and size > 0 else size)


def crc64nvme_of(content: bytes) -> bytes:
    """Return the CRC64NVME of some bytes."""
    from awscrt import checksums

    checksum: int = checksums.crc64nvme(content)
    return checksum.to_bytes(8)


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
    return bool(stated["value"] == as_text(hashlib.sha256(content).digest()))


def part_bytes(size: int) -> int:
    """Return the part size for a file of `size` bytes, a whole number of MiB."""
    return max(_PART_BYTES, -(-size // _MOST_PARTS // (1 << 20)) * (1 << 20))


def as_text(digest: bytes) -> str:
    """Return a checksum as S3 writes it."""
    return base64.b64encode(digest).decode()
