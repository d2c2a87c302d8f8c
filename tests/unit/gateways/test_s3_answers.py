"""The client against scripted servers: what it requests, which answers it accepts, how long it waits."""

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.listener import Listener, read_message

from trainyard.artifacts.record.run_numbers import claim_run
from trainyard.artifacts.store.store_address import open_store
from trainyard.errors import ConfigError, ObjectChangedError, ServiceError, UnsupportedOperationError
from trainyard.gateways import bounded_calls
from trainyard.gateways.s3.client import Bucket
from trainyard.gateways.s3.store import S3Store
from trainyard.gateways.s3.uploads import BODY_BYTES, PartBody

EMPTY = b'HTTP/1.1 200 OK\r\nETag: "x"\r\nContent-Length: 0\r\n\r\n'


class Server(Listener):
    """Answers each request with the next of `answers`, repeats the last one, and keeps the requests."""

    def __init__(self) -> None:
        self.answers = [EMPTY]
        self.requests: list[bytes] = []
        self.connections = 0
        super().__init__()

    def serve(self, line: socket.socket) -> None:
        self.connections += 1
        while (message := read_message(line))[0]:
            self.requests.append(b"\r\n\r\n".join(message))
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            if not answer:
                return
            line.sendall(answer)
            if b"Connection: close" in answer:
                return


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setattr(bounded_calls, "FIRST_SECONDS", 0.0)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    server = Server()
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    yield server
    server.close()


@pytest.fixture
def bucket(server: Server) -> Bucket:
    return Bucket("runs", "", encryption="AES256", call_seconds=5)


@pytest.fixture
def store(server: Server) -> S3Store:
    return S3Store("runs", "", encryption="none", call_seconds=5)


def store_that_asks(times: int, monkeypatch: pytest.MonkeyPatch) -> S3Store:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", str(times))
    return S3Store("runs", "", encryption="none", call_seconds=5)


def expects(request: bytes) -> bool:
    return b"expect: 100-continue" in request.partition(b"\r\n\r\n")[0].lower()


def test_a_small_file_goes_in_one_request_and_none_before(server: Server, bucket: Bucket) -> None:
    for _ in range(3):
        bucket.create("put_object", "k", Body=b"1234", Metadata={"a": "b"})
    assert (server.connections, len(server.requests)) == (1, 3)
    assert not any(map(expects, server.requests))
    assert server.requests[0].startswith(b"PUT /runs/k HTTP/1.1\r\n")
    assert b"user-agent: trainyard " in server.requests[0].lower()
    assert server.requests[0].endswith(b"\r\n\r\n1234")
    bucket.create("put_object", "k", Body=PartBody(bytes((1 << 20) + 1)))
    assert expects(server.requests[-1]), "a large file asks before it goes"


def test_a_part_goes_at_once_in_pieces_and_is_not_signed_twice(server: Server, bucket: Bucket) -> None:
    content = os.urandom(3 * BODY_BYTES + 3)
    body = PartBody(content)
    part: dict[str, Any] = {"UploadId": "u", "PartNumber": 1, "ChecksumCRC64NVME": "sum", "Body": body}
    bucket.call("upload_part", "k", **part)
    head, _, sent = server.requests[0].partition(b"\r\n\r\n")
    assert sent == content
    assert not expects(head)
    assert b"x-amz-content-sha256: unsigned-payload" in head.lower()
    assert b"crc32" not in head.lower()
    assert b"x-amz-checksum-crc64nvme: sum" in head.lower()


def test_settings_that_cannot_be_used_are_refused_before_anything_is_asked() -> None:
    settings = {"AWS_ENDPOINT_URL": "no url", "AWS_DEFAULT_REGION": "no region", "AWS_PROFILE": "x"}
    for name, value in settings.items():
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(name, value)
            with pytest.raises(ConfigError, match=f"The AWS settings cannot be used: .*{value}"):
                Bucket("runs", "", encryption="none", call_seconds=1)


def ranged(body: bytes, size: int) -> bytes:
    head = f"HTTP/1.1 206 OK\r\nETag: x\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


def read_range(store: S3Store, start: int, length: int) -> bytes:
    """Read a part of the object `k`."""
    return store._range("k", start, start + length, "")


def test_a_range_that_breaks_off_is_resumed_there(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_that_asks(3, monkeypatch)
    server.answers = [ranged(b"12", 5), b"", ranged(b"345", 3)]
    assert read_range(store, 10, 5) == b"12345"
    assert b"range: bytes=10-14\r\n" in server.requests[0].lower()
    assert b"bytes=12-14" in server.requests[-1]
    assert b"if-match: x\r\n" in server.requests[-1].lower()  # only if it is still the same object


def test_a_range_that_breaks_off_again_and_again_goes_on_as_long_as_it_comes(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, size = store_that_asks(2, monkeypatch), 5 << 20
    server.answers = [ranged(bytes(1 << 20), size - (number << 20)) for number in range(5)]
    assert read_range(store, 0, size) == bytes(size)
    server.answers = [ranged(bytes(1000), size)]
    with pytest.raises(ServiceError):
        read_range(store, 0, size)


@pytest.mark.parametrize("etag", ["y", '"y"'])
def test_another_object_is_noticed_where_the_store_does_not_heed_the_condition(
    server: Server, store: S3Store, etag: str
) -> None:
    server.answers = [f"HTTP/1.1 200 OK\r\nETag: {etag}\r\nContent-Length: 2\r\n\r\n12".encode()]
    assert list(store.stream("k", 0, 0, identity="y")) == [b"12"]
    assert b'if-match: "y"\r\n' in server.requests[-1].lower()
    with pytest.raises(ObjectChangedError, match="k: became another object while it was read"):
        list(store.stream("k", 0, 0, identity="x"))


def test_an_object_that_was_another_for_a_moment_is_not_taken_for_one_that_is_not_there(
    server: Server, store: S3Store
) -> None:
    refused = b"HTTP/1.1 412 -\r\nContent-Length: 0\r\n\r\n"
    there = b'HTTP/1.1 200 OK\r\nContent-Length: 0\r\nETag: "y"\r\n\r\n'
    server.answers = [refused, there]
    with pytest.raises(ObjectChangedError, match="k: was temporarily another object"):
        list(store.stream("k", 0, 0, identity="y"))


def listing(entry: str, *, more: str = "false") -> bytes:
    listed = f"<IsTruncated>{more}</IsTruncated><Contents>{entry}</Contents>"
    body = f"<ListBucketResult>{listed}</ListBucketResult>"
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


@pytest.mark.parametrize(
    "damaged",
    [
        listing("<Key>a</Key><Size>1</Size><LastModified>2026-13-20T00:00:00.000Z</LastModified>"),
        listing("<Key>a</Key><Size>l</Size>"),
        listing("<Kez>a</Kez><Size>1</Size>"),
        listing("<Key>a</Key><Size>1</Size>", more="true"),
    ],
)
def test_a_listing_that_arrives_damaged_is_asked_for_again_and_refused_in_the_end(
    server: Server, monkeypatch: pytest.MonkeyPatch, damaged: bytes
) -> None:
    store = store_that_asks(2, monkeypatch)
    server.answers = [damaged, listing("<Key>a</Key><Size>1</Size>")]
    assert [found.key for found in store.list_objects("")] == ["a"]
    server.answers = [damaged]
    with pytest.raises(ServiceError):
        list(store.list_objects(""))


def test_a_refusal_names_the_request_for_the_owner_of_the_store(server: Server, store: S3Store) -> None:
    body = b"<Error><Code>QuotaExceeded</Code></Error>"
    head = b"HTTP/1.1 400 No\r\nx-amz-request-id: 4711\r\nContent-Length: %d\r\n\r\n" % len(body)
    server.answers = [head + body]
    with pytest.raises(ServiceError, match=r"refuses PutObject: QuotaExceeded\. \(Request 4711\.\)$"):
        store.put_new("k", b"", metadata={})


def test_a_store_without_large_checksums_is_known_at_the_claim(server: Server, store: S3Store) -> None:
    """Otherwise the first file above 64 MiB would fail, hours after the start."""
    missing = b"HTTP/1.1 404 -\r\nContent-Length: 0\r\n\r\n"
    body = b"<Error><Code>InvalidArgument</Code><Message>Invalid checksum algorithm</Message></Error>"
    refused = b"HTTP/1.1 400 -\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    record = json.dumps({"run_id": "a", "key": "k", "run_number": 1}).encode()
    named = b'HTTP/1.1 200 OK\r\nETag: "y"\r\nContent-Length: %d\r\n\r\n%s' % (len(record), record)
    server.answers = [missing, missing, EMPTY, named, EMPTY, refused]
    with pytest.raises(UnsupportedOperationError, match="cannot do PutObject: InvalidArgument"):
        claim_run(store, run_id="a", key="k", wanted=1)
    assert b"x-amz-checksum-crc64nvme" in server.requests[-1].lower()


class Silent(Listener):
    """Reads one request if it `reads`, sends `said` and then nothing more, and closes no connection."""

    def __init__(self, said: bytes, *, reads: bool = True) -> None:
        self._said, self._reads, self._over = said, reads, threading.Event()
        super().__init__()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)

    def serve(self, line: socket.socket) -> None:
        if self._reads:
            line.recv(1 << 16)
        line.sendall(self._said)
        self._over.wait(120)

    def close(self) -> None:
        self._over.set()
        super().close()


HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "said", [b"", HEAD[:20], HEAD, HEAD + b"\r\n", HEAD + b"\r\n" + b"x" * 50_000], ids=len
)
def test_a_silent_server_is_not_waited_for_or_believed(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Silent(said)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    store = S3Store("runs", "", encryption="none", call_seconds=0.3)
    started = time.monotonic()
    with pytest.raises(ServiceError):
        for piece in store.stream("k", 0, 100_000):
            assert piece == b"x" * len(piece)
    with pytest.raises(ServiceError):
        store.read_object("k")
    assert time.monotonic() - started < 120
    server.close()


def test_a_server_that_takes_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = Silent(b"", reads=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", silent.url)
    bucket, content = Bucket("runs", "", encryption="none", call_seconds=0.3), bytes(50 << 20)
    started = time.monotonic()
    with pytest.raises(ServiceError):
        bucket.call("upload_part", "k", Body=PartBody(content), UploadId="u", PartNumber=1)
    assert time.monotonic() - started < 120
    silent.close()


def test_an_arn_is_refused_by_name_with_what_to_write() -> None:
    with pytest.raises(ConfigError, match=r"an ARN is not taken as a bucket.*-s3alias"):
        open_store("s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/runs")
