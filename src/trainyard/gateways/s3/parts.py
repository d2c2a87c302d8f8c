"""Multipart upload of a large file; the parts are joined when the caller commits.

    for each part, in order: memory → read with its checksum and the file's SHA-256 → send, several at a time

Every part carries a checksum, which S3 computes again and refuses if it differs, and so does the file. The
SHA-256 of the file is not computed if the digests of the parts imply it. An interrupted upload is sent again
from the start of its file.
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
from typing import Any, Protocol

from trainyard.errors import ServiceError, VerificationError
from trainyard.gateways.s3.bucket import Bucket
from trainyard.gateways.s3.checksums import Algorithm, as_text
from trainyard.gateways.s3.transfer_memory import TransferMemory
from trainyard.gateways.s3.uploads import BODY_BYTES, Pace, S3Object, confirm_checksum, object_of, part_bytes

PARTS_AT_ONCE = 8
"""Per file, as far as the memory budget allows. One connection to S3 carries at most 90 MB/s on any line."""
_PIECE_BYTES = 1 << 18
"""Size of one read, checksummed while in the processor's cache: from memory it costs twice as much."""
_REFUSED = ("400", "InvalidRequest", "InvalidArgument", "NotImplemented", "501")
"""Responses of stores that do not support the checksum."""


@dataclass(frozen=True)
class _SentPart:
    etag: str
    checksum: bytes
    size: int


class DeclaredPart(Protocol):
    """Compares a part with its expected digest."""

    def update(self, piece: memoryview, /) -> None: ...

    def require(self) -> None:
        """Raise CheckpointError when the part differs."""


class DeclaredFile(Protocol):
    """The digests of a file that are known before it is sent: one per part, and the SHA-256 of the file."""

    @property
    def size(self) -> int: ...

    @property
    def sha256(self) -> str: ...

    @property
    def part_bytes(self) -> int: ...

    @property
    def is_vouched_for(self) -> bool:
        """Return whether the SHA-256 need not be computed if the parts match."""
        ...

    def part(self, number: int) -> DeclaredPart:
        """Return the check of part `number`, counted from 0."""
        ...


class Parts:
    """A multipart upload that is not joined yet."""

    def __init__(
        self,
        bucket: Bucket,
        key: str,
        size: int,
        *,
        pace: Pace,
        claim: DeclaredFile | None = None,
        part_size: int | None = None,
    ) -> None:
        """`part_size` is that of a check; None is the size that suits the file."""
        self.size, self._pace = size, pace
        self.sha256 = ""
        self._bucket, self._key = bucket, key
        self._part_bytes = part_size or part_bytes(size)
        fits = claim is not None and (claim.size, claim.part_bytes) == (size, self._part_bytes)
        self._claim = claim if fits else None
        self._hashes = self._claim is None or not self._claim.is_vouched_for
        self._algorithm = Algorithm.SHA256
        self._sent: list[_SentPart] = []
        self._upload_id, self._is_given_up = "", False

    @property
    def is_compared(self) -> bool:
        return self._claim is not None

    def send(
        self, path: Path, metadata: Mapping[str, str], algorithm: Algorithm, *, memory: TransferMemory
    ) -> bool:
        """Send all parts; return False, with nothing started, for an unknown checksum.

        When one part fails permanently, the upload is aborted.
        """
        self._algorithm = algorithm
        with contextlib.ExitStack() as undo:
            undo.callback(self.abort)
            if not self._start(metadata):
                return False
            with path.open("rb", buffering=0) as file:
                self._sent = self._send_parts(file, memory)
            undo.pop_all()
        return True

    def commit(self) -> S3Object:
        checksum = self._algorithm.whole([(part.checksum, part.size) for part in self._sent])
        parts = [
            {"PartNumber": number, "ETag": part.etag, f"Checksum{self._algorithm}": as_text(part.checksum)}
            for number, part in enumerate(self._sent, 1)
        ]
        # On a retry, NoSuchUpload means that the first request, whose response was lost, did join the parts.
        answer = self._bucket.call(
            "complete_multipart_upload",
            self._key,
            unless=("NoSuchUpload",),
            UploadId=self._upload_id,
            MultipartUpload={"Parts": parts},
            **self._algorithm.completed(checksum),
        )
        stored = object_of(self._key, self.size, answer or {}, part_size=self._part_bytes)
        stored = confirm_checksum(self._bucket, stored, algorithm=self._algorithm, expected=as_text(checksum))
        self._upload_id = ""
        return stored

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

    def _start(self, metadata: Mapping[str, str]) -> bool:
        """Start the upload; return whether the store supports the checksum."""
        fast = self._algorithm is Algorithm.CRC64NVME
        answer = self._bucket.create(
            "create_multipart_upload",
            self._key,
            unless=_REFUSED if fast else (),
            Metadata=dict(metadata),
            **self._algorithm.created(),
        )
        if answer is None:
            return False
        self._upload_id = str(answer["UploadId"])
        if self._is_given_up:
            raise ServiceError(f"{self._key}: its upload was given up")
        return not fast or answer.get("ChecksumAlgorithm") == self._algorithm

    def _send_parts(self, file: FileIO, memory: TransferMemory) -> list[_SentPart]:
        """Read the parts in order, and send each one while the next ones are read."""
        whole, parts = hashlib.sha256(), list[Future[_SentPart]]()
        with ThreadPoolExecutor(PARTS_AT_ONCE) as pool:
            for start in range(0, self.size, self._part_bytes):
                buffer = memory.take(self._part_bytes)
                assert buffer is not None
                content = memoryview(buffer)[: min(self._part_bytes, self.size - start)]
                with contextlib.ExitStack() as undo:
                    undo.callback(memory.give, buffer)
                    checksum = self._read(file.fileno(), start, content)
                    if self._hashes:
                        whole.update(content)
                    undo.pop_all()  # the thread that sends the part returns it
                number = len(parts) + 1
                parts.append(
                    pool.submit(self._send_part, number, content, checksum, buffer=buffer, memory=memory)
                )
                if any(part.done() and part.exception() for part in parts):
                    break
        self.sha256 = self._claim.sha256 if self._claim and not self._hashes else whole.hexdigest()
        return [part.result() for part in parts]

    def _read(self, descriptor: int, offset: int, content: memoryview) -> bytes:
        """Fill `content` with the part; return its checksum."""
        self._pace(len(content))
        left, checksum = content, self._algorithm.start()
        check = self._claim.part(offset // self._part_bytes) if self._claim else None
        while left:
            count = os.preadv(descriptor, [left[:_PIECE_BYTES]], offset)
            if not count:
                raise ServiceError(f"{self._key}: its file became shorter while it was read")
            checksum.update(left[:count])
            if check:
                check.update(left[:count])
            left, offset = left[count:], offset + count
        if check:
            check.require()
        return checksum.digest()

    def _send_part(
        self, number: int, content: memoryview, checksum: bytes, *, buffer: mmap.mmap, memory: TransferMemory
    ) -> _SentPart:
        """Send a part, and return its buffer."""
        arguments: dict[str, Any] = self._algorithm.sent(checksum)
        try:
            answer = self._bucket.call(
                "upload_part",
                self._key,
                UploadId=self._upload_id,
                PartNumber=number,
                Body=_Whole(content),
                **arguments,
            )
        finally:
            memory.give(buffer)
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

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: len(self._content)}[whence]
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        return self._at
