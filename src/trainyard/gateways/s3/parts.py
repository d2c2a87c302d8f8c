"""Multipart upload of a large file; the parts are joined when the caller commits.

    for each part, in order: memory → read with its checksum and the file's SHA-256 → send, several at a time

Every part carries a CRC64NVME, which S3 computes again and refuses if it differs, and so does the file. An
interrupted upload is sent again from the start of its file. The CRC does not depend on how a file was split.
It detects corruption, not tampering: the SHA-256 in the manifest does.
"""

import base64
import contextlib
import hashlib
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

from trainyard.errors import ServiceError, VerificationError
from trainyard.gateways import GatewayObject
from trainyard.gateways.retries import wait_before_retry
from trainyard.gateways.s3.bucket_requests import Bucket
from trainyard.gateways.s3.uploads import (
    BODY_BYTES,
    MISSING,
    TAKEN,
    Pace,
    Upload,
    condition,
    describe_object,
    part_bytes,
)

PARTS_AT_ONCE = 8
"""Per file, as far as the memory budget allows. One connection to S3 carries at most 90 MB/s on any line."""
# Reasons why S3 does not join the parts. After NoSuchUpload, an earlier request, whose response was lost, may
# have joined them. After a 409, S3 wants all parts once more:
# https://docs.aws.amazon.com/AmazonS3/latest/API/API_CompleteMultipartUpload.html
_NOT_JOINED = (*TAKEN, *MISSING, "NoSuchUpload", "409", "ConditionalRequestConflict", "OperationAborted")
_ALGORITHM = "CRC64NVME"


# The ETag, the CRC64NVME and the size of a part that was sent.
_SentPart = tuple[str, int, int]


class Parts(Upload):
    """A multipart upload that is not joined yet."""

    algorithm = _ALGORITHM

    def __init__(
        self,
        bucket: Bucket,
        key: str,
        path: Path,
        *,
        metadata: Mapping[str, str],
        pace: Pace,
        slots: threading.Semaphore,
        part_size: int | None = None,
        replaces: str = "",
    ) -> None:
        """`slots` limits the parts in memory; `part_size` is that of a check, None suits the file."""
        super().__init__(bucket, key, path, metadata=metadata, pace=pace, replaces=replaces)
        self._slots, self._part_bytes = slots, part_size or part_bytes(self.size)
        self._sent: list[_SentPart] = []
        self._upload_id = ""

    def send(self) -> None:
        """Send all parts. When one part fails permanently, the upload is aborted."""
        wanted: dict[str, Any] = {"ChecksumAlgorithm": _ALGORITHM, "ChecksumType": "FULL_OBJECT"}
        answer = self._bucket.create("create_multipart_upload", self._key, Metadata=self._metadata, **wanted)
        self._upload_id = str(answer["UploadId"])
        with contextlib.ExitStack() as undo:
            undo.callback(self.abort)
            self._send_parts()
            undo.pop_all()

    def commit(self) -> GatewayObject:
        """Join the parts. Raises VerificationError when the name has other bytes than were sent."""
        for attempt in range(1, self._bucket.attempts + 1):
            self._require_replaceable()
            answer = self._join()
            if answer is not None:
                stored, self._upload_id = self._confirm(answer), ""
                return stored
            found = describe_object(self._bucket, self._key)
            if (found.etag if found else "") != self._replaces:
                stored = self._accept_equal()
                self.abort()
                return stored
            # The name is still free, or has the object to replace: other requests were in progress.
            self.abort()
            wait_before_retry(attempt)
            before = self.sha256
            self.send()
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
        more = {"ChecksumType": "FULL_OBJECT", f"Checksum{_ALGORITHM}": self._checksum()}
        parts = [
            {"PartNumber": number, "ETag": etag, f"Checksum{_ALGORITHM}": as_text(checksum)}
            for number, (etag, checksum, _) in enumerate(self._sent, 1)
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

    def _checksum(self) -> str:
        from awscrt import checksums

        total = 0
        for _, checksum, size in self._sent:
            total = checksums.combine_crc64nvme(total, checksum, size)
        return as_text(total)

    def abort(self) -> None:
        upload_id, self._upload_id = self._upload_id, ""
        with contextlib.suppress(ServiceError, VerificationError):
            if upload_id:
                self._bucket.call(
                    "abort_multipart_upload", self._key, unless=("NoSuchUpload",), UploadId=upload_id
                )

    def _send_parts(self) -> None:
        """Read the parts in order, and send each one while the next ones are read."""
        from awscrt import checksums

        whole, parts, size = hashlib.sha256(), list[Future[_SentPart]](), 0
        with ThreadPoolExecutor(PARTS_AT_ONCE) as pool, self._path.open("rb") as file:
            while size < self.size and not any(part.done() and part.exception() for part in parts):
                self._slots.acquire()  # the thread that sends the part releases it
                with contextlib.ExitStack() as undo:
                    undo.callback(self._slots.release)
                    length = min(self._part_bytes, self.size - size)
                    self._pace(length)
                    if len(content := file.read(length)) < length:
                        raise ServiceError(f"{self._key}: its file became shorter while it was read")
                    checksum = checksums.crc64nvme(content)
                    whole.update(content)
                    undo.pop_all()
                parts.append(pool.submit(self._send_part, len(parts) + 1, content, checksum))
                size += length
        self.sha256, self._sent = whole.hexdigest(), [part.result() for part in parts]

    def _send_part(self, number: int, content: bytes, checksum: int) -> _SentPart:
        try:
            answer = self._bucket.call(
                "upload_part",
                self._key,
                UploadId=self._upload_id,
                PartNumber=number,
                Body=PartBody(content),
                **crc64nvme_arguments(checksum),
            )
        finally:
            self._slots.release()
        return str(answer["ETag"]), checksum, len(content)


class PartBody(BytesIO):
    """A part that is sent in pieces, because a time limit applies to each write; urllib3 asks for 16 KiB."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(max(size, BODY_BYTES) if size and size > 0 else size)


def crc64nvme_arguments(checksum: int) -> dict[str, Any]:
    """Return the arguments that make S3 compute the CRC64NVME and refuse any other than this one."""
    return {"ChecksumAlgorithm": _ALGORITHM, f"Checksum{_ALGORITHM}": as_text(checksum)}


def as_text(checksum: int) -> str:
    """Return a CRC64NVME as S3 writes it."""
    return base64.b64encode(checksum.to_bytes(8)).decode()
