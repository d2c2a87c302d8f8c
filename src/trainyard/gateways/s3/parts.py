"""Multipart upload of a large file; the parts are joined when the caller commits.

    for each part, several at a time: memory → read with its checksum → SHA-256 of the file, in order → send

Every part carries a checksum, which S3 computes again and refuses if it differs, and so does the file. The
SHA-256 of the file is not computed if the digests of the parts imply it. An interrupted upload of the same
file is resumed (`unfinished`): parts that S3 has are not sent again.
"""

import contextlib
import fcntl
import hashlib
import mmap
import os
import threading
from collections.abc import Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, Protocol

from trainyard.errors import ServiceError, VerificationError
from trainyard.gateways.s3.bucket import Bucket
from trainyard.gateways.s3.checksums import Algorithm, as_text
from trainyard.gateways.s3.transfer_memory import TransferMemory
from trainyard.gateways.s3.unfinished import StoredPart, newest_unfinished, stored_parts
from trainyard.gateways.s3.uploads import BODY_BYTES, Pace, S3Object, confirm_checksum, object_of, part_bytes

PARTS_AT_ONCE = 8
"""Per file, as far as the memory budget allows. One connection to S3 carries at most 90 MB/s on any line."""
_READS_AT_ONCE = max(2, os.cpu_count() or 1)
"""If more parts were read at once than there are processors, the first would be sent later."""
_PIECE_BYTES = 1 << 18
"""Size of one read, checksummed while in the processor's cache: from memory it costs twice as much."""
_REFUSED = ("400", "InvalidRequest", "InvalidArgument", "NotImplemented", "501")
"""Responses of stores that do not support the checksum."""


class _UnknownChecksumError(Exception):
    """The store does not support the checksum."""


@dataclass(frozen=True)
class _SentPart:
    etag: str
    checksum: bytes
    size: int


class _OrderedHash:
    """Computes the SHA-256 of the file from parts in several threads, in the order of the parts."""

    def __init__(self) -> None:
        self._whole, self._next = hashlib.sha256(), 1
        self._turn, self.is_over = threading.Condition(), False

    def update(self, number: int, content: memoryview) -> None:
        """Add the part after the earlier ones. Raises CancelledError when an earlier part failed."""
        with self._turn:
            self._turn.wait_for(lambda: self._next == number or self.is_over)
            if self.is_over:
                raise CancelledError
            self._whole.update(content)
            self._next += 1
            self._turn.notify_all()

    def end(self) -> None:
        """Stop all threads that wait."""
        with self._turn:
            self.is_over = True
            self._turn.notify_all()

    def hexdigest(self) -> str:
        return self._whole.hexdigest()


@dataclass(frozen=True)
class _Part:
    """A part to send, and its resources."""

    number: int
    """Counted from 1."""
    buffer: mmap.mmap
    memory: TransferMemory
    """The pool to which the buffer is returned."""
    whole: _OrderedHash


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
        """`part_size` other than None is that of a check, which aborts no upload of another check."""
        self.size, self._pace = size, pace
        self.sha256 = ""
        self._bucket, self._key = bucket, key
        self._part_bytes, self._resumes = part_size or part_bytes(size), part_size is None
        fits = claim is not None and (claim.size, claim.part_bytes) == (size, self._part_bytes)
        self._claim = claim if fits else None
        self._hashes = self._claim is None or not self._claim.is_vouched_for
        self._count = -(-size // self._part_bytes)
        self._algorithm = Algorithm.SHA256
        self._sent: list[_SentPart] = []
        self._there: Mapping[int, StoredPart] = {}
        self._upload_id, self._is_given_up = "", False
        self._reading = threading.Semaphore(_READS_AT_ONCE)
        self._held = contextlib.ExitStack()
        """The open file and its lock, held until the upload ends."""

    @property
    def is_compared(self) -> bool:
        return self._claim is not None

    def send(
        self, path: Path, metadata: Mapping[str, str], algorithm: Algorithm, *, memory: TransferMemory
    ) -> bool:
        """Send all parts that S3 does not have; return False, with nothing started, for an unknown checksum.

        When one part fails permanently, the upload is aborted.
        """
        self._algorithm = algorithm
        with contextlib.ExitStack() as undo:
            file = undo.enter_context(path.open("rb", buffering=0))
            undo.callback(self.abort)
            try:
                self._sent = self._send_parts(file, metadata, memory)
            except _UnknownChecksumError:
                return False
            undo.pop_all()
            self._held.callback(file.close)
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
        self._bucket.require_encrypted(self._key, answer or {})
        stored = object_of(self._key, self.size, answer or {}, part_size=self._part_bytes)
        stored = confirm_checksum(self._bucket, stored, algorithm=self._algorithm, expected=as_text(checksum))
        self._held.close()
        self._upload_id = ""
        return stored

    def give_up(self) -> None:
        """Abort the upload from another thread than the one that sends it."""
        self._is_given_up = True
        self.abort()

    def abort(self) -> None:
        upload_id, self._upload_id = self._upload_id, ""
        with self._held, contextlib.suppress(ServiceError, VerificationError):
            if upload_id:
                self._bucket.call(
                    "abort_multipart_upload", self._key, unless=("NoSuchUpload",), UploadId=upload_id
                )

    def _begin(self, file: FileIO, metadata: Mapping[str, str]) -> None:
        """Start or resume the upload; raises _UnknownChecksumError."""
        if self._resumes and _is_ours_alone(file) and self._bucket.resumes_uploads:
            self._resume_upload()
        if self._upload_id:
            return
        fast = self._algorithm is Algorithm.CRC64NVME
        answer = self._bucket.create(
            "create_multipart_upload",
            self._key,
            unless=_REFUSED if fast else (),
            Metadata=dict(metadata),
            **self._algorithm.created(),
        )
        if answer is None:
            raise _UnknownChecksumError
        self._upload_id = str(answer["UploadId"])
        if self._is_given_up:
            raise ServiceError(f"{self._key}: its upload was given up")
        if fast and answer.get("ChecksumAlgorithm") != self._algorithm:
            raise _UnknownChecksumError

    def _resume_upload(self) -> None:
        """Resume an interrupted upload of this file if its parts have the same length as ours."""
        algorithm = self._algorithm
        upload_id = newest_unfinished(self._bucket, self._key, algorithm)
        there = stored_parts(self._bucket, self._key, upload_id, algorithm=algorithm) if upload_id else {}
        if there and all(self._length(number) == part.size for number, part in there.items()):
            self._upload_id, self._there = upload_id, there

    def _length(self, number: int) -> int:
        return max(0, min(self._part_bytes, self.size - (number - 1) * self._part_bytes))

    def _send_parts(
        self, file: FileIO, metadata: Mapping[str, str], memory: TransferMemory
    ) -> list[_SentPart]:
        """Send each part in order; the first ones are read while the upload is being started."""
        ordered, parts = _OrderedHash(), list[Future[_SentPart]]()
        with ThreadPoolExecutor(PARTS_AT_ONCE + 1) as pool:
            started = pool.submit(self._begin, file, metadata)
            try:
                for number in range(1, self._count + 1):
                    buffer = memory.take(self._part_bytes)
                    assert buffer is not None
                    part = _Part(number, buffer, memory, ordered)
                    parts.append(pool.submit(self._transfer_part, file.fileno(), part, started))
                    if ordered.is_over:
                        break
                sent = [part.result() for part in parts if _is_no_consequence(part)]
            finally:
                ordered.end()
        self.sha256 = self._claim.sha256 if self._claim and not self._hashes else ordered.hexdigest()
        return sent

    def _transfer_part(self, descriptor: int, part: _Part, started: Future[None]) -> _SentPart:
        """Read a part, hash it after the earlier ones, and send it."""
        sent = None
        try:
            if part.whole.is_over:
                raise CancelledError
            content = memoryview(part.buffer)[: self._length(part.number)]
            with self._reading:
                checksum = self._read(descriptor, part.number, content)
            if self._hashes:
                part.whole.update(part.number, content)
            started.result()  # raises if the upload could not be started
            sent = self._send_part(part.number, content, checksum)
            return sent
        finally:
            if sent is None:
                part.whole.end()
            part.memory.give(part.buffer)

    def _read(self, descriptor: int, number: int, content: memoryview) -> bytes:
        """Fill `content` with the part; return its checksum."""
        self._pace(len(content))
        left, offset, checksum = content, (number - 1) * self._part_bytes, self._algorithm.start()
        check = self._claim.part(number - 1) if self._claim else None
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

    def _send_part(self, number: int, content: memoryview, checksum: bytes) -> _SentPart:
        there = self._there.get(number)
        if there is not None and there.holds(content, checksum, self._algorithm):
            return _SentPart(there.etag, checksum, len(content))
        arguments: dict[str, Any] = self._algorithm.sent(checksum)
        answer = self._bucket.call(
            "upload_part",
            self._key,
            UploadId=self._upload_id,
            PartNumber=number,
            Body=_Whole(content),
            **arguments,
        )
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


def _is_no_consequence(part: Future[_SentPart]) -> bool:
    """Wait for the part; return whether it was sent or failed by itself, not because another part failed."""
    return not isinstance(part.exception(), CancelledError)


def _is_ours_alone(file: FileIO) -> bool:
    """Return whether no other process sends this file; the lock is held until the file is closed.

    Two processes must not share one upload.
    """
    with contextlib.suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False
