"""S3: refusals, files in parts, and simultaneous requests; real servers are in tests/integration."""

import errno
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from botocore.exceptions import (
    ClientError,
    EndpointConnectionError,
    NoCredentialsError,
    ParamValidationError,
    TokenRetrievalError,
)
from tests.cases import each_case
from tests.listener import Listener, read_message

from trainyard.artifacts.record.manifest import ManifestObject
from trainyard.artifacts.restore.download import Downloader
from trainyard.artifacts.upload.upload import FILES_AT_ONCE
from trainyard.errors import ServiceError, UnsupportedOperationError
from trainyard.gateways.s3.client import Bucket, connect, is_tamper_proof
from trainyard.gateways.s3.client import _refusal as refusal_class
from trainyard.gateways.s3.refusals import UNSUPPORTED, explain_refusal
from trainyard.gateways.s3.store import PARTS_IN_MEMORY, RANGE_BYTES, RANGES_IN_MEMORY, S3Store
from trainyard.gateways.s3.uploads import (
    BODY_BYTES,
    PARTS_AT_ONCE,
    PartBody,
    Parts,
    as_text,
    crc64nvme_of,
    part_bytes,
)

MIB, GIB = 1 << 20, 1 << 30


def refusal(code: str, message: str = "", *, status: int = 403, headers: dict[str, str] | None = None) -> Any:
    answer: Any = {
        "Error": {"Code": code, "Message": message},
        "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": headers or {}},
    }
    return ClientError(answer, "PutObject")


def said(error: Exception, operation: str = "put_object") -> str:
    return explain_refusal(error, bucket="ml-runs", operation=operation, endpoint="https://s3.amazonaws.com")


def test_denied_access_names_who_and_the_permission() -> None:
    who = "arn:aws:sts::123456789012:assumed-role/trainyard-ci/session"
    text = said(refusal("AccessDenied", f"User: {who} is not authorized to perform: s3:PutObject"))
    assert text == (
        f"The bucket ml-runs answers, but refuses PutObject for {who} (AccessDenied). "
        "The missing permission is s3:PutObject on arn:aws:s3:::ml-runs/*. "
        "The complete policy is in docs/runbooks/permissions.md#artifacts."
    )


def test_the_permission_is_that_of_the_operation() -> None:
    for operation, permission in {
        "head_object": "s3:GetObject on arn:aws:s3:::ml-runs/*. Without s3:ListBucket",
        "list_objects_v2": "s3:ListBucket on arn:aws:s3:::ml-runs.",
        "upload_part": "s3:PutObject on",
        "abort_multipart_upload": "s3:AbortMultipartUpload on",
    }.items():
        assert permission in said(refusal("403", "Forbidden"), operation)


@each_case(
    ("error", "text"),
    [
        (refusal("NoSuchBucket", status=404), "The bucket ml-runs does not exist"),
        (refusal("RequestTimeTooSkewed"), "This machine's clock differs too much"),
        (refusal("ExpiredToken"), "the session has expired; sign in or assume the role again"),
        (refusal("InvalidAccessKeyId"), "the access key does not exist there"),
        (refusal("SignatureDoesNotMatch"), "the secret key does not belong"),
        (refusal("PermanentRedirect", "use eu-west-1", status=301), "another region"),
        (refusal("BadDigest", status=400), "received other bytes than were sent"),
        (refusal("SlowDown", "Reduce your rate.", status=503), "cannot serve PutObject now: SlowDown Reduce"),
        (refusal("", status=500), "cannot serve PutObject now: 500. Try again later."),
        (
            refusal("QuotaExceeded", "Full", status=400),
            "The bucket ml-runs refuses PutObject: QuotaExceeded Full.",
        ),
        (EndpointConnectionError(endpoint_url="https://x"), "No usable answer from https://s3.amazonaws.com"),
        (NoCredentialsError(), "There are no AWS credentials for s3://ml-runs. Set AWS_ACCESS_KEY_ID"),
        (
            TokenRetrievalError(provider="sso", error_msg="gone"),
            "credentials for s3://ml-runs could not be obtained",
        ),
        (ParamValidationError(report="non ascii"), "The request to S3 is not valid"),
    ],
)
def test_each_cause_is_told(error: Exception, text: str) -> None:
    assert text in said(error)


def test_the_variable_of_the_advice_changes_the_region(monkeypatch: pytest.MonkeyPatch) -> None:
    """AWS_REGION would not change it: AWS_DEFAULT_REGION and the profile's region come first."""
    assert "Set AWS_DEFAULT_REGION to it" in said(refusal("PermanentRedirect", status=301))
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert connect(attempts=1, call_seconds=1.0).meta.region_name == "eu-west-1"


def test_what_a_store_cannot_do_is_never_put_off() -> None:
    for code in UNSUPPORTED:
        text = said(refusal(code, "No.", status=400), "create_multipart_upload")
        assert f"cannot do CreateMultipartUpload: {code} No. Trying again does not help" in text
        assert "later" not in text


def test_a_head_request_that_says_only_400_may_mean_an_expired_session() -> None:
    """The answer to a HEAD request has no body, so S3 cannot name the cause: another store would not help."""
    text = said(refusal("400", "Bad Request", status=400), "head_object")
    assert "Perhaps the session has expired; sign in or assume the role again" in text
    assert "another store" not in text
    assert issubclass(refusal_class("400", 400), ServiceError)
    assert not issubclass(refusal_class("400", 400), UnsupportedOperationError)


def test_a_status_without_a_code_decides_whether_to_try_later() -> None:
    for status in (405, 411, 501):
        assert f"cannot do UploadPart: {status}. Trying again" in said(
            refusal("", status=status), "upload_part"
        )
    for status in (500, 502, 503, 504):
        text = said(refusal("", status=status), "complete_multipart_upload")
        assert f"cannot serve CompleteMultipartUpload now: {status}. Try again later." in text


def test_parts_grow_so_that_there_are_never_more_than_s3_takes() -> None:
    assert [part_bytes(size) // MIB for size in (33 * MIB, 100 * GIB, 5 * 1024 * GIB)] == [16, 16, 525]
    for size in (5 * 1024 * GIB, *range(150 * GIB, 170 * GIB, 97 * MIB + 1)):
        assert -(-size // part_bytes(size)) <= 10_000


def test_an_unkeyed_checksum_goes_only_where_nobody_can_change_bytes() -> None:
    for endpoint in (
        "https://s3.amazonaws.com",
        "http://127.0.0.1:9000",
        "http://[::1]:9000",
        "http://localhost",
    ):
        assert is_tamper_proof(endpoint), endpoint
    for endpoint in ("http://minio:9000", "http://127.0.0.1.example.com"):
        assert not is_tamper_proof(endpoint), endpoint


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


BEGUN = b"<R><UploadId>u</UploadId></R>"


class SlowServer(Listener):
    """Just enough of S3. It answers no part, range or object until `wanted` of them were in flight."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.in_flight = self.most = self.asked = 0
        self.wanted = 8
        self.content = b""
        super().__init__()

    def serve(self, line: socket.socket) -> None:
        while head := read_message(line)[0]:
            line.sendall(self._answer(head))

    def _answer(self, head: bytes) -> bytes:
        if head.startswith(b"POST") and b"?uploads" in head:
            return reply(BEGUN, b"x-amz-checksum-algorithm: CRC64NVME\r\n")
        if head.startswith(b"GET") and b"?uploads" in head:
            return reply(b"<R></R>")
        if head.startswith(b"POST"):
            value = re.search(rb"checksum-crc64nvme: (\S+)", head, re.IGNORECASE)
            assert value is not None
            kind = b"<ChecksumType>FULL_OBJECT</ChecksumType>"
            return reply(
                b'<R><ETag>"x"</ETag><ChecksumCRC64NVME>%s</ChecksumCRC64NVME>%s</R>' % (value[1], kind)
            )
        with self._changed:
            self.asked += 1
            self.in_flight += 1
            self.most = max(self.most, self.in_flight)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.most >= self.wanted, timeout=20)
        time.sleep(0.05)  # time for more requests than expected
        with self._changed:
            self.in_flight -= 1
        if wanted := re.search(rb"bytes=(\d+)-(\d+)", head):
            return reply(self.content[int(wanted[1]) : int(wanted[2]) + 1])
        sha256 = re.search(rb"\r\n(x-amz-checksum-sha256: \S+\r\n)", head, re.IGNORECASE)
        return reply(b"", sha256[1] if sha256 else b"")


def reply(body: bytes, headers: bytes = b"") -> bytes:
    return b'HTTP/1.1 200 OK\r\nETag: "x"\r\n%sContent-Length: %d\r\n\r\n%s' % (headers, len(body), body)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowServer]:
    server = SlowServer()
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    yield server
    server.close()


@pytest.fixture
def store(server: SlowServer) -> S3Store:
    return S3Store("runs", "", encryption="none", call_seconds=20)


def sparse(path: Path, size: int) -> Path:
    with path.open("wb") as file:
        file.truncate(size)
    return path


def test_the_parts_of_one_file_go_eight_at_a_time(store: S3Store, server: SlowServer, tmp_path: Path) -> None:
    store.stage(sparse(tmp_path / "file", 10 * 16 * MIB), "k", metadata={}).commit()
    assert server.asked == 10
    assert server.most == PARTS_AT_ONCE == 8


def test_all_files_together_have_no_more_parts_in_flight_than_the_memory_holds(
    store: S3Store, server: SlowServer, tmp_path: Path
) -> None:
    files = [sparse(tmp_path / name, 5 * 16 * MIB) for name in "ab"]
    with ThreadPoolExecutor(len(files)) as pool:
        uploads = list(pool.map(lambda path: store.stage(path, path.name, metadata={}), files))
    assert server.asked == 10
    assert server.most == PARTS_IN_MEMORY == 8
    for upload in uploads:
        upload.abort()


def test_an_object_in_order_comes_in_eight_ranges_at_a_time(store: S3Store, server: SlowServer) -> None:
    server.content = os.urandom(RANGE_BYTES * 2) * 8 + b"end"
    found = b"".join(bytes(piece) for piece in store.stream("k", 0, len(server.content)))
    assert found == server.content
    assert server.most == 8


def test_a_reading_that_is_given_up_gives_its_memory_back(store: S3Store, server: SlowServer) -> None:
    server.content = bytes(RANGE_BYTES * 10)
    reading = store.stream("k", 0, len(server.content))
    next(reading)
    reading.close()
    assert store._ranges._value == RANGES_IN_MEMORY


def test_small_files_use_a_connection_per_thread(store: S3Store, server: SlowServer, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1234")
    server.wanted = FILES_AT_ONCE
    uploads = [store.stage(tmp_path / "file", f"k{number}", metadata={}) for number in range(100)]
    with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
        list(pool.map(lambda upload: upload.commit(), uploads))
    assert server.most == FILES_AT_ONCE == 32


def test_failed_readings_leave_memory_to_others(store: S3Store, server: SlowServer, tmp_path: Path) -> None:
    """A caller that keeps the exception keeps its traceback, and with it the values in use there."""
    server.content, server.wanted = bytes(RANGE_BYTES * 10), 1
    entries = {PurePosixPath(name): ManifestObject(name, RANGE_BYTES * 10, "0" * 64) for name in "abc"}
    with Downloader(store, tmp_path) as downloader, pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainyard.artifacts.restore.download._write", full)
        with pytest.raises(OSError, match="full"):
            downloader.download(entries)
    assert store._ranges._value == RANGES_IN_MEMORY


def full(_file: object, _chunk: object) -> None:
    raise OSError(errno.ENOSPC, "full")
