"""Multipart upload of a large file; the parts are joined when the caller commits.

    for each part, in order: memory → read with its checksum and the file's SHA-256 → send, several at a time

Every part carries a CRC64NVME, which S3 computes again and refuses if it differs, and so does the file. To a
store without CRC64NVME the parts are sent without a checksum, and the caller reads the object back. An
interrupted upload is sent again from the start of its file.
"""

import contextlib
import hashlib
import mmap
import os
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

from trainyard.errors import ServiceError, VerificationError
from trainyard.gateways.s3.bucket import Bucket, wait_before_retry
from trainyard.gateways.s3.checksums import Crc64Nvme, as_text, combine
from trainyard.gateways.s3.transfer_memory import TransferMemory
from trainyard.gateways.s3.uploads import (
    BODY_BYTES,
    MISSING,
    TAKEN,
    Pace,
    S3Object,
    accept_equal,
    condition,
    confirm_checksum,
    describe_object,
    object_of,
    part_bytes,
)

PARTS_AT_ONCE = 8
"""Per file, as far as the memory budget allows. One connection to S3 carries at most 90 MB/s on any line."""
_PIECE_BYTES = 1 << 18
"""Size of one read, checksummed while in the processor's cache: from memory it costs twice as much."""
_REFUSED = ("400", "InvalidRequest", "InvalidArgument", "NotImplemented", "501")
"""Responses of stores that do not support the checksum."""
# Reasons why S3 does not join the parts. After NoSuchUpload, an earlier request, whose response was lost, may
# have joined them. After a 409, S3 wants all parts once more:
# https://docs.aws.amazon.com/AmazonS3/latest/API/API_CompleteMultipartUpload.html
_NOT_JOINED = (*TAKEN, *MISSING, "NoSuchUpload", "409", "ConditionalRequestConflict", "OperationAborted")
_ALGORITHM = "CRC64NVME"


@dataclass(frozen=True)
class _SentPart:
    etag: str
    checksum: bytes
    size: int


class Parts:
    """A multipart upload that is not joined yet."""

    def __init__(
        self,
        bucket: Bucket,
        key: str,
        path: Path,
        *,
        metadata: Mapping[str, str],
        pace: Pace,
        memory: TransferMemory,
        part_size: int | None = None,
        replaces: str = "",
    ) -> None:
        """`part_size` is that of a check; None is the size that suits the file.

        `replaces` is the ETag of the object that may be replaced; if it is empty, the name must be free.
        """
        self.size, self._pace = path.stat().st_size, pace
        self.sha256 = ""
        self._bucket, self._key, self._path = bucket, key, path
        self._metadata, self._memory, self._replaces = dict(metadata), memory, replaces
        self._part_bytes = part_size or part_bytes(self.size)
        self._has_checksum = True
        self._sent: list[_SentPart] = []
        self._upload_id, self._is_given_up = "", False

    def send(self, *, has_checksum: bool) -> bool:
        """Send all parts; return False, with nothing started, if S3 does not know the checksum.

        When one part fails permanently, the upload is aborted.
        """
        self._has_checksum = has_checksum
        with contextlib.ExitStack() as undo:
            undo.callback(self.abort)
            if not self._start():
                return False
            with self._path.open("rb", buffering=0) as file:
                self._sent = self._send_parts(file)
            undo.pop_all()
        return True

    def commit(self) -> S3Object:
        """Join the parts. Raises VerificationError when the name has other bytes than were sent."""
        for attempt in range(1, self._bucket.attempts + 1):
            self._require_replaceable()
            answer = self._join()
            if answer is not None:
                return self._confirm(answer)
            found = describe_object(self._bucket, self._key)
            if (found.etag if found else "") != self._replaces:
                algorithm, expected = (_ALGORITHM, self._checksum_text()) if self._has_checksum else ("", "")
                stored = accept_equal(
                    self._bucket, self._key, self.size, algorithm=algorithm, expected=expected
                )
                self.abort()
                return stored
            # The name is still free, or has the object to replace: other requests were in progress.
            self.abort()
            wait_before_retry(attempt)
            before = self.sha256
            self.send(has_checksum=self._has_checksum)
            if self.sha256 != before:
                raise VerificationError(f"{self._key}: its file was changed while it was stored")
        raise ServiceError(
            f"{self._key}: {self._bucket.endpoint} does not join its parts: another request for this name is "
            "in progress, each time. Try again later."
        )

    def _require_replaceable(self) -> None:
        """Refuse to replace another object than the one meant: some stores ignore If-Match here."""
        found = describe_object(self._bucket, self._key) if self._replaces else None
        if found is not None and found.etag != self._replaces:
            raise VerificationError(f"{self._key}: was replaced by somebody else while it was stored")

    def _join(self) -> Any:
        more: dict[str, Any] = {}
        if self._has_checksum:
            more = {"ChecksumType": "FULL_OBJECT", f"Checksum{_ALGORITHM}": self._checksum_text()}
        parts = [
            {"PartNumber": number, "ETag": part.etag}
            | ({f"Checksum{_ALGORITHM}": as_text(part.checksum)} if self._has_checksum else {})
            for number, part in enumerate(self._sent, 1)
        ]
        return self._bucket.call(
            "complete_multipart_upload",
            self._key,
            unless=_NOT_JOINED,
            UploadId=self._upload_id,
            MultipartUpload={"Parts": parts},
            **condition(self._replaces),
            **more,
        )

    def _confirm(self, answer: Mapping[str, Any]) -> S3Object:
        stored = object_of(self._key, self.size, answer)
        if self._has_checksum:
            expected = self._checksum_text()
            stored = confirm_checksum(self._bucket, stored, algorithm=_ALGORITHM, expected=expected)
        self._upload_id = ""
        return stored

    def _checksum_text(self) -> str:
        return as_text(combine((part.checksum, part.size) for part in self._sent))

    def give_up(self) -> None:
        """Abort the upload from another thread than the one that sends it."""
        self._is_given_up = True
        self.abort()

    def abort(self) -> None:
        upload_id, self._upload_id = self._upload_id, ""
        with contextlib.suppress(ServiceError, VerificationError):
            if upload_id:
                self._bucket.call(
                    "abort_multipart_upload", self._key, unless=("NoSuchUpload",), UploadId=upload_id
                )

    def _start(self) -> bool:
        """Start the upload; return whether the store supports the checksum."""
        wanted = {"ChecksumAlgorithm": _ALGORITHM, "ChecksumType": "FULL_OBJECT"}
        answer = self._bucket.create(
            "create_multipart_upload",
            self._key,
            unless=_REFUSED if self._has_checksum else (),
            Metadata=self._metadata,
            **(wanted if self._has_checksum else {}),
        )
        if answer is None:
            return False
        self._upload_id = str(answer["UploadId"])
        if self._is_given_up:
            raise ServiceError(f"{self._key}: its upload was given up")
        return not self._has_checksum or answer.get("ChecksumAlgorithm") == _ALGORITHM

    def _send_parts(self, file: FileIO) -> list[_SentPart]:
        """Read the parts in order, and send each one while the next ones are read."""
        whole, parts = hashlib.sha256(), list[Future[_SentPart]]()
        with ThreadPoolExecutor(PARTS_AT_ONCE) as pool:
            for start in range(0, self.size, self._part_bytes):
                buffer = self._memory.take(self._part_bytes)
                assert buffer is not None
                content = memoryview(buffer)[: min(self._part_bytes, self.size - start)]
                with contextlib.ExitStack() as undo:
                    undo.callback(self._memory.give, buffer)
                    checksum = self._read(file.fileno(), start, content)
                    whole.update(content)
                    undo.pop_all()  # the thread that sends the part returns it
                parts.append(pool.submit(self._send_part, len(parts) + 1, content, checksum, buffer=buffer))
                if any(part.done() and part.exception() for part in parts):
                    break
        self.sha256 = whole.hexdigest()
        return [part.result() for part in parts]

    def _read(self, descriptor: int, offset: int, content: memoryview) -> bytes:
        """Fill `content` with the part; return its checksum."""
        self._pace(len(content))
        left, checksum = content, Crc64Nvme()
        while left:
            count = os.preadv(descriptor, [left[:_PIECE_BYTES]], offset)
            if not count:
                raise ServiceError(f"{self._key}: its file became shorter while it was read")
            checksum.update(left[:count])
            left, offset = left[count:], offset + count
        return checksum.digest()

    def _send_part(
        self, number: int, content: memoryview, checksum: bytes, *, buffer: mmap.mmap
    ) -> _SentPart:
        """Send a part, and return its buffer."""
        stated: dict[str, Any] = {"ChecksumAlgorithm": _ALGORITHM, f"Checksum{_ALGORITHM}": as_text(checksum)}
        try:
            answer = self._bucket.call(
                "upload_part",
                self._key,
                UploadId=self._upload_id,
                PartNumber=number,
                Body=_Whole(content),
                **(stated if self._has_checksum else {}),
            )
        finally:
            self._memory.give(buffer)
        return _SentPart(str(answer["ETag"]), checksum, len(content))


class _Whole:
    """A buffer as a file; every read returns one piece, or all of the rest if no size is given.

    If it were bytes, the signer would copy it; a plain file would be sent in pieces of 16 KiB. It is sent in
    pieces because the time limit applies to each piece.
    """

    def __init__(self, content: memoryview) -> None:
        self._content, self._at = content, 0

    def __len__(self) -> int:
        return len(self._content)

    def read(self, size: int = -1) -> memoryview:
        start, left = self._at, len(self._content) - self._at
        self._at += min(left, BODY_BYTES) if size > 0 else left
        return self._content[start : self._at]

    def readinto(self, target: memoryview) -> int:
        """Fill `target`: botocore's signer in awscrt reads so, and takes no more than it has room for."""
        count = min(len(target), len(self._content) - self._at)
        target[:count] = self._content[self._at : self._at + count]
        self._at += count
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: len(self._content)}[whence]
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        return self._at
