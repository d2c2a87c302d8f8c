"""Files in parts, without a server: how they are read, sent and given up."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from trainyard.errors import ServiceError
from trainyard.gateways.s3.client import Bucket
from trainyard.gateways.s3.uploads import BODY_BYTES, PartBody, Parts, as_text, crc64nvme_of

MIB = 1 << 20


class ScriptedBucket(Bucket):
    """Accepts everything that is sent."""

    def __init__(self) -> None:
        self.prefix, self.attempts, self._encryption = "", 1, {}
        self.sent: dict[int, str] = {}
        """The checksum of each part that was sent, by its number."""
        self.asked: list[str] = []
        self.head: dict[str, Any] = {}
        self.refused: tuple[str, ...] = ()
        self.begun: dict[str, str] | None = {"UploadId": "new", "ChecksumAlgorithm": "CRC64NVME"}

    def call(self, operation: str, key: str, *, unless: tuple[str, ...] = (), **arguments: Any) -> Any:
        self.asked.append(operation)
        if operation in self.refused:
            raise ServiceError("refused")
        if operation == "upload_part":
            self.sent[arguments["PartNumber"]] = arguments["ChecksumCRC64NVME"]
            return {"ETag": "new"}
        if operation == "create_multipart_upload":
            return self.begun
        if operation == "complete_multipart_upload":
            return {"ETag": "joined", "ChecksumCRC64NVME": arguments["ChecksumCRC64NVME"]}
        return self.head


def crc_of(content: bytes) -> str:
    return as_text(crc64nvme_of(content))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "file").write_bytes(b"a" * 16 * MIB + b"b" * 16 * MIB + b"c")
    return tmp_path / "file"


def parts_of(bucket: Bucket, file: Path) -> Parts:
    return Parts(bucket, "k", file, metadata={}, pace=lambda _count: None, slots=threading.Semaphore(8))


def send(bucket: Bucket, file: Path) -> Parts:
    upload = parts_of(bucket, file)
    upload.send()
    return upload


def test_parts_go_with_their_checksums_and_the_object_with_that_of_all(file: Path) -> None:
    bucket = ScriptedBucket()
    stored = send(bucket, file).commit()
    parts = [b"a" * 16 * MIB, b"b" * 16 * MIB, b"c"]
    assert bucket.sent == {n: crc_of(part) for n, part in enumerate(parts, 1)}
    assert stored.checksum["value"] == crc_of(file.read_bytes())


def test_the_upload_of_a_file_that_could_not_be_sent_or_became_shorter_is_given_up(file: Path) -> None:
    refusing, bucket = ScriptedBucket(), ScriptedBucket()
    refusing.refused = ("upload_part",)
    with pytest.raises(ServiceError):
        send(refusing, file)
    upload = parts_of(bucket, file)
    os.truncate(file, 20 * MIB)
    with pytest.raises(ServiceError, match="shorter"):
        upload.send()
    assert refusing.asked[-1] == bucket.asked[-1] == "abort_multipart_upload"


def test_a_part_is_read_in_pieces_or_whole() -> None:
    content = bytes(range(256)) * 4096 * 2 + b"end"
    body = PartBody(content)
    pieces = list(iter(lambda: body.read(16_384), b""))
    assert [len(piece) for piece in pieces] == [BODY_BYTES] * (2 * MIB // BODY_BYTES) + [3]
    assert b"".join(pieces) == content
    body.seek(0)
    assert body.read() == content
