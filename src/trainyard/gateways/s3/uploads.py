"""A file on its way into a bucket: in one request, or in parts that are joined when the caller commits.

Every request carries the SHA-256 of its bytes, which S3 computes again and refuses if it differs; S3's answer
for the whole object is compared once more. A file of one part is hashed, then sent; of a larger one the whole
is hashed while the parts are, each by the thread that sends it.
"""

import base64
import contextlib
import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any

from trainyard.errors import ServiceError, VerificationError
from trainyard.gateways.s3.bucket import Bucket

SINGLE_PART_BYTES = 1 << 30
"""Up to here a file goes in one request, and S3's checksum is that of the file; above, that of its parts.

Parts cost a second SHA-256 over every byte and prove less directly; one request is one connection, which S3
limits to 5 Gb/s, and goes again from the start when it fails.
"""
_PART_BYTES = 16 << 20
_BLOCK_BYTES = 1 << 20
_MOST_PARTS = 10_000
"""S3's own limit."""
MISSING = ("404", "NoSuchKey", "NotFound")
Pace = Callable[[int], None]
"""Called with the number of bytes that are to be read next; may wait."""
_Sent = tuple[str, bytes]
"""A part's ETag and its SHA-256."""


@dataclass(frozen=True)
class S3Object:
    """An object as S3 describes it."""

    key: str
    size: int
    etag: str = ""
    checksum: Mapping[str, Any] = field(default_factory=dict)
    modified: float = field(default=0.0, compare=False)


def describe(bucket: Bucket, key: str) -> S3Object | None:
    """The object with the checksum that S3 computed, None if there is no such object."""
    answer = bucket.call("head_object", key, unless=MISSING, ChecksumMode="ENABLED")
    return None if answer is None else _object(key, int(answer["ContentLength"]), answer)


def sha256_of(path: Path, pace: Pace) -> str:
    """The hex SHA-256 of a file."""
    digest, buffer = hashlib.sha256(), bytearray(_BLOCK_BYTES)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            pace(count)
            digest.update(view[:count])
    return digest.hexdigest()


def sha256_arguments(digest: bytes) -> dict[str, Any]:
    """Makes S3 compute the SHA-256 of what it receives, and refuse anything else than `digest`."""
    return {"ChecksumAlgorithm": "SHA256", "ChecksumSHA256": _base64(digest)}


@dataclass(frozen=True)
class SinglePart:
    """A file that becomes an object in one request; it is read again then, and S3 refuses other bytes."""

    bucket: Bucket
    key: str
    path: Path
    metadata: Mapping[str, str]
    size: int
    sha256: str
    pace: Pace

    def commit(self) -> S3Object:
        digest = bytes.fromhex(self.sha256)
        with self.path.open("rb", buffering=0) as file:
            answer = self.bucket.create(
                "put_object",
                self.key,
                Body=_Blocks(file, self.size, self.pace),
                Metadata=dict(self.metadata),
                **sha256_arguments(digest),
            )
        return _confirmed(self.bucket, _object(self.key, self.size, answer), _base64(digest))

    def abort(self) -> None:
        """Nothing was sent."""


class Parts:
    """A large file whose parts S3 has, and which is no object yet."""

    def __init__(self, bucket: Bucket, key: str, size: int, pace: Pace) -> None:
        self.size, self._pace = size, pace
        self.sha256 = ""
        self._bucket, self._key = bucket, key
        self._part_bytes = part_bytes(size)
        self._count = -(-size // self._part_bytes)
        self._sent: list[_Sent] = []
        self._upload_id = ""

    def send(self, path: Path, metadata: Mapping[str, str]) -> None:
        """Send all parts; what was sent is given up when one fails for good."""
        created = self._bucket.create(
            "create_multipart_upload", self._key, Metadata=dict(metadata), ChecksumAlgorithm="SHA256"
        )
        self._upload_id = str(created["UploadId"])
        with contextlib.ExitStack() as undo:
            undo.callback(self.abort)
            self._sent = list(self._send_parts(path))
            undo.pop_all()

    def commit(self) -> S3Object:
        digests = b"".join(digest for _, digest in self._sent)
        parts = [
            {"PartNumber": number, "ETag": etag, "ChecksumSHA256": _base64(digest)}
            for number, (etag, digest) in enumerate(self._sent, 1)
        ]
        # NoSuchUpload is how a retry hears that the first request, whose answer was lost, did join the parts.
        answer = self._bucket.call(
            "complete_multipart_upload",
            self._key,
            unless=("NoSuchUpload",),
            UploadId=self._upload_id,
            MultipartUpload={"Parts": parts},
        )
        stored = _object(self._key, self.size, answer or {}, multipart=True)
        return _confirmed(self._bucket, stored, _base64(hashlib.sha256(digests).digest()))

    def abort(self) -> None:
        with contextlib.suppress(ServiceError, VerificationError):
            self._bucket.call(
                "abort_multipart_upload", self._key, unless=("NoSuchUpload",), UploadId=self._upload_id
            )

    def _send_parts(self, path: Path) -> Iterator[_Sent]:
        workers = min(_part_workers(), self._count)
        spare = [bytearray(self._part_bytes) for _ in range(workers + 1)]
        under_way: deque[tuple[Future[_Sent], bytearray]] = deque()
        whole, left = hashlib.sha256(), self.size
        with path.open("rb", buffering=0) as file, ThreadPoolExecutor(workers) as pool:
            for number in range(1, self._count + 1):
                if not spare:
                    future, buffer = under_way.popleft()
                    yield future.result()
                    spare.append(buffer)
                buffer = spare.pop()
                del buffer[left:]
                self._pace(len(buffer))
                _fill(buffer, file)
                whole.update(buffer)
                left -= len(buffer)
                under_way.append((pool.submit(self._send_part, number, buffer), buffer))
            for future, _ in under_way:
                yield future.result()
        self.sha256 = whole.hexdigest()

    def _send_part(self, number: int, content: bytearray) -> _Sent:
        digest = hashlib.sha256(content).digest()
        answer = self._bucket.call(
            "upload_part",
            self._key,
            UploadId=self._upload_id,
            PartNumber=number,
            Body=_Whole(content),
            **sha256_arguments(digest),
        )
        return str(answer["ETag"]), digest


class _Blocks:
    """A file that is read in blocks of a useful size, whatever is asked for (urllib3 asks for 16 KiB)."""

    def __init__(self, file: FileIO, size: int, pace: Pace) -> None:
        self._file, self._size, self._pace = file, size, pace

    def __len__(self) -> int:
        return self._size

    def read(self, _size: int = -1) -> bytes:
        self._pace(min(_BLOCK_BYTES, self._size))
        return self._file.read(_BLOCK_BYTES)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()


class _Whole:
    """A buffer as a file whose every read gives all that is left.

    Handed over as bytes, the signer copies it; handed over as a plain file, it is sent in pieces of 16 KiB.
    """

    def __init__(self, content: bytearray) -> None:
        self._content, self._at = memoryview(content), 0

    def __len__(self) -> int:
        return len(self._content)

    def read(self, _size: int = -1) -> memoryview:
        rest, self._at = self._content[self._at :], len(self._content)
        return rest

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: len(self._content)}[whence]
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        return self._at


def part_bytes(size: int) -> int:
    """How long the parts of a file of `size` bytes are, a whole number of MiB."""
    return max(_PART_BYTES, -(-size // _MOST_PARTS // (1 << 20)) * (1 << 20))


def _part_workers() -> int:
    return min(8, max(4, os.cpu_count() or 1))


def _fill(buffer: bytearray, file: FileIO) -> None:
    view = memoryview(buffer)
    while view:
        count = file.readinto(view)
        if not count:
            raise ServiceError(f"{file.name}: became shorter while it was read")
        view = view[count:]


def _confirmed(bucket: Bucket, stored: S3Object, expected: str) -> S3Object:
    """The object, once S3's own checksum is the expected one; unchanged where S3 computes none."""
    for _ in range(1 + bucket.attempts):
        # Some stores leave out the number of parts that stands after a composite checksum ("-12").
        if str(stored.checksum.get("value", "")).partition("-")[0] == expected:
            return stored
        # None, or one from an answer that broke off in its headers: what counts is what S3 says when asked.
        described = describe(bucket, stored.key)
        if described is None or described.size != stored.size:
            continue
        if not described.checksum:
            return described
        stored = described
    raise VerificationError(
        f"{stored.key}: S3 has {dict(stored.checksum) or 'nothing'}, we sent SHA-256 {expected}"
    )


def _object(key: str, size: int, answer: Mapping[str, Any], *, multipart: bool = False) -> S3Object:
    etag = str(answer.get("ETag", "")).strip('"')
    value = answer.get("ChecksumSHA256")
    if value is None:
        return S3Object(key, size, etag)
    composite = multipart or answer.get("ChecksumType") == "COMPOSITE" or "-" in value or "-" in etag
    kind = {"type": "COMPOSITE", "part_size": part_bytes(size)} if composite else {"type": "FULL_OBJECT"}
    return S3Object(key, size, etag, {"algorithm": "SHA256", **kind, "value": value})


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()
