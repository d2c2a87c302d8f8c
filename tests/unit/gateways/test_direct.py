"""Small requests without botocore: what is answered, what is left to it; the signature is botocore's."""

import contextlib
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.errors import ConfigError, ObjectChangedError, ServiceError
from trainyard.gateways.s3.access import Access, _settings
from trainyard.gateways.s3.bucket import Bucket
from trainyard.gateways.s3.clock import Clock
from trainyard.gateways.s3.direct import _HOPELESS, _base_url
from trainyard.gateways.s3.signatures import Signer
from trainyard.gateways.s3.store import S3Store


class Server:
    """Answers each request with the next of `answers`, the last one for ever; keeps what it was sent."""

    def __init__(
        self,
        read_message: Callable[[socket.socket], tuple[bytes, bytes]],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._read_message, self._tls = read_message, tls
        self.answers = [b"HTTP/1.1 200 OK\r\nETag: x\r\nContent-Length: 0\r\n\r\n"]
        self.requests: list[bytes] = []
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        scheme = "https" if self._tls else "http"
        self.url = f"{scheme}://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        if self._tls:
            line = self._tls.wrap_socket(line, server_side=True)
        with line, contextlib.suppress(ConnectionError):
            while (message := self._read_message(line))[0]:
                self.requests.append(b"\r\n\r\n".join(message))
                answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                if not answer:
                    return
                line.sendall(answer)
                if b"Connection: close" in answer:
                    return


@pytest.fixture
def server(
    read_message: Callable[[socket.socket], tuple[bytes, bytes]], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Server]:
    server = Server(read_message)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    yield server
    server.close()


@pytest.fixture
def bucket(server: Server) -> Bucket:
    return Bucket("runs", "", encryption="AES256", call_seconds=5)


def put(bucket: Bucket, **more: Any) -> Any:
    arguments: dict[str, Any] = {"Body": bytearray(b"1234"), "ChecksumSHA256": "sum", "Metadata": {"a": "b"}}
    return bucket.create("put_object", "ä b/+c", **(arguments | more))


class Growing:
    """A body of several reads."""

    def __len__(self) -> int:
        return 5

    def read(self) -> bytes:
        return b"123"


def is_ours(request: bytes) -> bool:
    return b"Boto3" not in request


def test_many_small_objects_go_over_one_connection_without_botocore(server: Server, bucket: Bucket) -> None:
    for _ in range(3):
        assert put(bucket)["ETag"] == "x"
    assert server.connections == 1
    assert len(server.requests) == 3
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    assert is_ours(head)
    assert head.startswith(b"PUT /runs/%C3%A4%20b/%2Bc HTTP/1.1\r\n")
    assert body == b"1234"
    for line in (b"x-amz-meta-a: b", b"x-amz-checksum-sha256: sum", b"x-amz-server-side-encryption: AES256"):
        assert line in head.splitlines()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",  # broke off before the ETag
        b"nonsense\r\n\r\n",
        b"",
    ],
)
def test_what_fails_is_asked_again_by_botocore(answer: bytes, server: Server, bucket: Bucket) -> None:
    server.answers.insert(0, answer)
    assert put(bucket)["ETag"] == "x"
    assert [is_ours(request) for request in server.requests] == [True, False]
    assert server.requests[1].endswith(b"1234")


@pytest.mark.parametrize(
    "more",
    [
        {"IfNoneMatch": "*"},
        {"Body": Growing()},
        {"Metadata": {"a": "b\r\nx-evil: 1"}},
    ],
)
def test_what_is_not_known_here_is_left_to_botocore(
    more: dict[str, Any], server: Server, bucket: Bucket
) -> None:
    assert bucket._access.direct.ask("put_object", {"Key": "k", "Body": b"1234", **more}) is None
    assert server.requests == []


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 403 No\r\nContent-Length: 34\r\n\r\n<Code>SignatureDoesNotMatch</Code>\n",
    ],
)
def test_nothing_is_sent_twice_where_it_never_works(answer: bytes, server: Server, bucket: Bucket) -> None:
    good = server.answers[0]
    for _ in range(_HOPELESS):
        server.answers = [answer, good]
        put(bucket)
    server.requests.clear()
    put(bucket)
    assert [is_ours(request) for request in server.requests] == [False]


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.0 503 No\r\nConnection: close\r\n\r\n<html>busy</html>",
        b"HTTP/1.1 503 No\r\nContent-Length: 9999\r\n\r\n" + b"x" * 9999,
        b"HTTP/1.1 404 No\r\nContent-Length: 9999\r\n\r\n" + b"x" * 9999,
    ],
    ids=lambda answer: answer[9:40],
)
def test_what_says_nothing_of_the_short_way_does_not_end_it(
    answer: bytes, server: Server, bucket: Bucket
) -> None:
    good = server.answers[0]
    for _ in range(_HOPELESS + 1):
        server.answers = [answer, good]
        put(bucket)
    server.requests.clear()
    put(bucket)
    assert [is_ours(request) for request in server.requests] == [True]


@pytest.mark.parametrize("operation", ["head_object", "get_object", "put_object"])
def test_a_connection_on_which_more_was_said_is_not_used_again(
    operation: str, server: Server, bucket: Bucket
) -> None:
    server.answers[0] += b"HTTP/1.1 200 OK\r\nETag: forged\r\nContent-Length: 0\r\n\r\n"
    for _ in range(2):
        answer = bucket._access.direct.ask(operation, {"Key": "k"})
        assert isinstance(answer, dict)
        assert answer["ETag"] == "x"
        if "Body" in answer:
            answer["Body"].close()
        threading.Event().wait(0.05)  # the rest arrives
    assert server.connections == 2


@pytest.mark.parametrize("operation", ["put_object", "list_objects_v2"])
def test_an_answer_that_says_nothing_leaves_no_connection_open(
    operation: str, server: Server, bucket: Bucket
) -> None:
    body = b"<ListBucketResult/>"
    server.answers = [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n13\r\n%s\r\n0\r\n\r\n" % body]
    for _ in range(2):
        arguments = {"Key": "k"} if operation == "put_object" else {"Prefix": "k"}
        assert bucket._access.direct.ask(operation, arguments) == {}
    assert server.connections == 1


def test_an_argument_of_a_listing_that_is_not_known_is_left_to_botocore(
    server: Server, bucket: Bucket
) -> None:
    assert bucket._access.direct.ask("list_objects_v2", {"Prefix": "a", "MaxKeys": 1}) is None
    assert server.requests == []


def test_a_kept_connection_that_breaks_does_not_speak_against_the_short_way(
    server: Server, bucket: Bucket
) -> None:
    good = server.answers[0]
    put(bucket)
    bucket._access.direct._failures = _HOPELESS - 1
    server.answers = [b"", good]  # hangs up when it is asked again
    put(bucket)
    assert bucket._access.direct._failures == _HOPELESS - 1
    put(bucket)
    assert is_ours(server.requests[-1])


def test_a_connection_that_ended_while_it_was_idle_is_not_used(server: Server, bucket: Bucket) -> None:
    near, far = socket.socketpair()
    far.close()
    bucket._access.direct._idle.append(near)
    assert put(bucket)["ETag"] == "x"
    assert near.fileno() == -1
    assert all(is_ours(request) for request in server.requests)


class Counting:
    """A connection that keeps the sizes of what is sent."""

    def __init__(self, line: socket.socket) -> None:
        self._line, self.sizes = line, list[int]()

    def sendall(self, data: bytes | memoryview) -> None:
        self.sizes.append(len(data))
        self._line.sendall(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._line, name)


def test_a_large_body_goes_in_pieces_each_with_the_whole_time_limit(
    server: Server, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    body, direct = bytes(range(256)) * 4096 * 2 + b"end", bucket._access.direct
    line = Counting(direct._connected())
    monkeypatch.setattr(direct, "_kept", lambda: line)
    assert put(bucket, Body=body)["ETag"] == "x"
    assert line.sizes[1:] == [1 << 20, 1 << 20, 3]
    assert server.requests[0].endswith(b"\r\n\r\n" + body)


def test_objects_that_are_not_there_do_not_speak_against_the_short_way(
    server: Server, bucket: Bucket
) -> None:
    good, missing = server.answers[0], b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n"
    server.answers = [missing]
    for _ in range(_HOPELESS + 1):
        assert bucket.call("head_object", "k", unless=("404",)) is None
    server.answers = [good]
    server.requests.clear()
    put(bucket)
    assert [is_ours(request) for request in server.requests] == [True]


def test_an_object_comes_in_chunks_and_the_connection_is_used_again(server: Server, bucket: Bucket) -> None:
    server.answers = [b"HTTP/1.1 206 OK\r\nETag: x\r\nContent-Length: 5\r\n\r\n12345"]
    for _ in range(2):
        answer = bucket.call("get_object", "k", Range="bytes=0-4")
        assert answer["ContentLength"] == 5
        assert list(answer["Body"].iter_chunks(2)) == [b"12", b"34", b"5"]
        answer["Body"].close()
    assert server.connections == 1
    assert all(is_ours(request) for request in server.requests)


@pytest.fixture
def store(server: Server) -> S3Store:
    return S3Store("runs", "", encryption="none", call_seconds=5)


def ranged(body: bytes, size: int) -> bytes:
    return (
        f"HTTP/1.1 206 OK\r\nETag: x\r\nContent-Length: {size}\r\n".encode()
        + b"Connection: close\r\n\r\n"
        + body
    )


def test_a_range_lands_in_the_memory_that_is_for_it(server: Server, store: S3Store) -> None:
    server.answers, room = [ranged(b"12345", 5)], bytearray(7)
    assert [bytes(piece) for piece in store.read_pieces("k", 10, 5, memoryview(room)[:5])] == [b"12345"]
    assert bytes(room) == b"12345\0\0"
    assert b"range: bytes=10-14\r\n" in server.requests[0]


def test_a_range_goes_through_memory_that_is_smaller(server: Server, store: S3Store) -> None:
    server.answers, room = [ranged(b"1234567", 7)], bytearray(3)
    pieces = [bytes(piece) for piece in store.read_pieces("k", 10, 7, memoryview(room))]
    assert (pieces, len(server.requests)) == ([b"123", b"456", b"7"], 1)


def test_a_range_that_breaks_off_goes_on_where_it_broke(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "3")
    monkeypatch.setattr("trainyard.gateways.s3.store.pause", lambda _attempt: None)
    store = S3Store("runs", "", encryption="none", call_seconds=5)
    server.answers, room = [ranged(b"12", 5), b"", ranged(b"345", 3)], bytearray(5)
    assert sum(len(piece) for piece in store.read_pieces("k", 0, 5, memoryview(room))) == 5
    assert bytes(room) == b"12345"
    assert b"bytes=2-4" in server.requests[-1]
    assert b"if-match: x\r\n" in server.requests[-1].lower()  # only as long as it is the same object


def test_a_range_that_breaks_off_again_and_again_goes_on_as_long_as_it_comes(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    monkeypatch.setattr("trainyard.gateways.s3.store.pause", lambda _attempt: None)
    store, size = S3Store("runs", "", encryption="none", call_seconds=5), 5 << 20
    server.answers = [ranged(bytes(1 << 20), size - (number << 20)) for number in range(5)]
    room = memoryview(bytearray(1 << 20))
    assert sum(len(piece) for piece in store.read_pieces("k", 0, size, room)) == size
    server.answers = [ranged(bytes(1000), size)]
    with pytest.raises(ServiceError):
        list(store.read_pieces("k", 0, size, room))


@pytest.mark.parametrize("etag", ["y", '"y"'])
def test_another_object_is_noticed_where_the_store_does_not_heed_the_condition(
    server: Server, store: S3Store, etag: str
) -> None:
    server.answers = [f"HTTP/1.1 200 OK\r\nETag: {etag}\r\nContent-Length: 2\r\n\r\n12".encode()]
    assert list(store.read_chunks("k", identity="y")) == [b"12"]
    assert b'if-match: "y"\r\n' in server.requests[-1]
    with pytest.raises(ObjectChangedError, match="k: became another object while it was read"):
        list(store.read_chunks("k", identity="x"))


def test_an_object_that_was_another_for_a_moment_is_not_taken_for_one_that_is_not_there(
    server: Server, store: S3Store
) -> None:
    refused = b"HTTP/1.1 412 -\r\nContent-Length: 0\r\n\r\n"
    there = b'HTTP/1.1 200 OK\r\nContent-Length: 0\r\nETag: "y"\r\n\r\n'
    server.answers = [refused, refused, there]
    with pytest.raises(ObjectChangedError, match="k: was another object for a moment"):
        list(store.read_chunks("k", identity="y"))


def test_an_etag_that_breaks_off_is_asked_for_again(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    monkeypatch.setattr("trainyard.gateways.s3.bucket.pause", lambda _attempt: None)
    store = S3Store("runs", "", encryption="none", call_seconds=5)
    broken, whole = (
        f"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nETag: {etag}\r\n\r\n".encode() for etag in ('"ab', '"abc"')
    )
    server.answers = [broken, broken, whole]
    found = store.describe("k")
    assert found is not None
    assert found.etag == "abc"


def listing(entry: str, *, more: str = "false") -> bytes:
    body = (
        f"<ListBucketResult><IsTruncated>{more}</IsTruncated><Contents>{entry}</Contents></ListBucketResult>"
    )
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
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    monkeypatch.setattr("trainyard.gateways.s3.bucket.pause", lambda _attempt: None)
    store = S3Store("runs", "", encryption="none", call_seconds=5)
    server.answers = [damaged, listing("<Key>a</Key><Size>1</Size>")]
    assert [found.key for found in store.list_objects("")] == ["a"]
    server.answers = [damaged]
    with pytest.raises(ServiceError):
        list(store.list_objects(""))


def no_client(_access: Access) -> None:
    raise AssertionError("botocore's client was made")


def error(status: int, code: str, *, chunked: bool = False) -> bytes:
    body = f"<Error><Code>{code}</Code></Error>".encode()
    if chunked:
        head = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    else:
        head = b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    return b"HTTP/1.1 %d No\r\n%s" % (status, head)


@pytest.mark.parametrize("chunked", [False, True])
def test_what_is_not_there_needs_no_client_and_keeps_the_connection(
    server: Server, store: S3Store, monkeypatch: pytest.MonkeyPatch, chunked: bool
) -> None:
    monkeypatch.setattr(Access, "client", property(no_client))
    server.answers = [error(404, "NoSuchKey", chunked=chunked)]
    assert store.read_object("a") is None
    assert store.read_object("b") is None
    assert (server.connections, len(server.requests)) == (1, 2)


@pytest.mark.parametrize("code", ["NoSuchBucket", ""])
def test_a_refusal_that_nobody_asked_for_is_worded_by_botocore(
    server: Server, store: S3Store, code: str
) -> None:
    server.answers = [error(404, code)]
    with pytest.raises(ServiceError):
        store.read_object("a")
    assert [is_ours(request) for request in server.requests] == [True, False]


@pytest.mark.parametrize("chunked", [False, True])
def test_a_listing_needs_no_client(
    server: Server, store: S3Store, monkeypatch: pytest.MonkeyPatch, chunked: bool
) -> None:
    monkeypatch.setattr(Access, "client", property(no_client))
    more = listing("<Key>a</Key><Size>1</Size>", more="true").replace(
        b"<Contents>", b"<NextContinuationToken>to+ken</NextContinuationToken><Contents>"
    )
    pages = [more, listing("<Key>b</Key><Size>2</Size>")]
    server.answers = []
    for page in pages:
        body = page.partition(b"\r\n\r\n")[2]
        size = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        plain = b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        server.answers.append(b"HTTP/1.1 200 OK\r\n" + (size if chunked else plain))
    assert [(found.key, found.size) for found in store.list_objects("x/")] == [("a", 1), ("b", 2)]
    first, second = server.requests
    assert first.startswith(b"GET /runs?encoding-type=url&list-type=2&prefix=x%2F HTTP/1.1\r\n")
    assert second.startswith(b"GET /runs?continuation-token=to%2Bken&encoding-type=url&list-type=2")
    assert server.connections == 1


@pytest.mark.parametrize(("region", "at_once"), [("eu-west-1", False), ("fips-us-east-1", True)])
def test_the_client_is_made_when_it_is_needed_and_only_once(
    server: Server, monkeypatch: pytest.MonkeyPatch, region: str, at_once: bool
) -> None:
    made = list[float]()

    def noted(attempts: int, call_seconds: float) -> Any:
        made.append(call_seconds)
        return _settings(attempts, call_seconds)

    monkeypatch.setattr("trainyard.gateways.s3.access._settings", noted)
    monkeypatch.setenv("AWS_DEFAULT_REGION", region)
    bucket = Bucket("runs", "", encryption="AES256", call_seconds=5)
    put(bucket)
    assert len(made) == at_once
    put(bucket, IfNoneMatch="*")
    put(bucket, IfNoneMatch="*")
    assert made == [5]
    assert bucket._access.client.meta.endpoint_url == bucket.endpoint == server.url


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    ("name", "value"),
    [("AWS_ENDPOINT_URL", "no url"), ("AWS_DEFAULT_REGION", "no region"), ("AWS_PROFILE", "x")],
)
def test_settings_that_cannot_be_used_are_refused_before_anything_is_asked(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=f"The AWS settings cannot be used: .*{value}"):
        Bucket("runs", "", encryption="none", call_seconds=1)


def test_a_connection_that_the_server_ends_is_not_used_again(server: Server, bucket: Bucket) -> None:
    server.answers = [b"HTTP/1.1 200 OK\r\nETag: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"]
    put(bucket)
    put(bucket)
    assert server.connections == 2
    assert all(is_ours(request) for request in server.requests)


def test_a_proxy_is_left_to_botocore(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    bucket = Bucket("runs", "", encryption="none", call_seconds=5)
    assert bucket._access.direct.ask("put_object", {"Key": "k", "Body": b""}) is None
    assert server.requests == []


def test_https_is_spoken_with_certificates_checked(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url.replace("http:", "https:"))
    direct = Bucket("runs", "", encryption="none", call_seconds=0.1)._access.direct
    assert direct._tls is not None
    assert direct._tls.check_hostname
    assert direct.ask("put_object", {"Key": "k", "Body": b""}) is None


def self_signed(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "store of the tests")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    pkcs8 = serialization.PrivateFormat.PKCS8
    (folder / "certificate.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, pkcs8, plain))
    return folder / "certificate.pem", folder / "key.pem"


@pytest.fixture
def tls_server(
    read_message: Callable[[socket.socket], tuple[bytes, bytes]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    server: Server,
) -> Iterator[Server]:
    certificate, key = self_signed(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    found = Server(read_message, tls)
    monkeypatch.setenv("AWS_ENDPOINT_URL", found.url)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))
    yield found
    found.close()


@pytest.mark.parametrize("room", [1000, 1 << 16, 1 << 20])
def test_over_https_bytes_arrive_as_they_are_and_the_connection_is_used_again(
    tls_server: Server, room: int
) -> None:
    store, content = S3Store("runs", "", encryption="none", call_seconds=5), os.urandom(3_000_001)
    head = b"HTTP/1.1 206 OK\r\nETag: x\r\nContent-Length: %d\r\n\r\n" % len(content)
    tls_server.answers = [head + content]
    for _ in range(2):
        pieces = store.read_pieces("k", 0, len(content), memoryview(bytearray(room)))
        assert b"".join(bytes(piece) for piece in pieces) == content
    tls_server.answers = [listing("<Key>a</Key><Size>1</Size>")]
    assert [found.key for found in store.list_objects("")] == ["a"]
    tls_server.answers = [error(404, "NoSuchKey", chunked=True)]
    assert store.read_object("k") is None
    assert (tls_server.connections, len(tls_server.requests)) == (1, 4)
    assert all(is_ours(request) for request in tls_server.requests)


def test_over_https_an_answer_that_breaks_off_is_gone_on_with(
    tls_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "3")
    monkeypatch.setattr("trainyard.gateways.s3.store.pause", lambda _attempt: None)
    store, content = S3Store("runs", "", encryption="none", call_seconds=5), os.urandom(100_000)
    tls_server.answers = [ranged(content[:70_000], 100_000), ranged(content[70_000:], 30_000)]
    pieces = store.read_pieces("k", 0, 100_000, memoryview(bytearray(1 << 16)))
    assert b"".join(bytes(piece) for piece in pieces) == content
    assert b"bytes=70000-99999" in tls_server.requests[-1]


def test_over_https_more_than_was_asked_for_ends_the_connection(tls_server: Server) -> None:
    """It may lie in what the TLS layer has read already, where nobody who waits for the socket sees it."""
    bucket = Bucket("runs", "", encryption="none", call_seconds=5)
    tls_server.answers = [b"HTTP/1.1 200 OK\r\nETag: x\r\nContent-Length: 7\r\n\r\nHTTP/1."]
    for _ in range(2):
        assert bucket._access.direct.ask("head_object", {"Key": "k"}) is not None
    assert tls_server.connections == 2


def test_certificates_that_cannot_be_read_are_botocores_to_tell(
    monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url.replace("http:", "https:"))
    monkeypatch.setenv("AWS_CA_BUNDLE", "/nowhere.pem")
    direct = Bucket("runs", "", encryption="none", call_seconds=1)._access.direct
    assert direct.ask("put_object", {"Key": "k", "Body": b""}) is None


@pytest.mark.parametrize(
    ("endpoint", "bucket", "url"),
    [
        ("https://s3.eu-west-1.amazonaws.com", "runs", "https://runs.s3.eu-west-1.amazonaws.com"),
        ("http://minio:9000/", "runs", "http://minio:9000/runs"),
        ("https://s3.amazonaws.com", "runs.with.dots", ""),
        ("https://s3.amazonaws.com", "runs--x-s3", ""),
        ("https://s3.amazonaws.com", "arn:aws:s3:eu-west-1:1:accesspoint/a", ""),
    ],
)
def test_where_a_bucket_is(endpoint: str, bucket: str, url: str) -> None:
    assert _base_url(endpoint, bucket) == url


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    ("endpoint", "path"),
    [("https://s3.eu-west-1.amazonaws.com", "/?"), ("http://minio.example:9000/s3", "/s3/runs?")],
)
def test_where_a_listing_is_asked_for(endpoint: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    direct = Bucket("runs", "", encryption="none", call_seconds=1)._access.direct
    asked = direct._path("list_objects_v2", {"Prefix": "a"})
    assert asked == f"{path}encoding-type=url&list-type=2&prefix=a"


CONFIG = """[profile trainyard]
services = stores
[services stores]
s3 =
  endpoint_url = https://in-the-profile.example
"""


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    ("variables", "url"),
    [
        ({"AWS_ENDPOINT_URL": "http://minio.example:9000/s3"}, "http://minio.example:9000/s3/runs/key"),
        ({"AWS_ENDPOINT_URL_S3": "https://one.example"}, "https://one.example/runs/key"),
        ({"AWS_ENDPOINT_URL": ""}, "https://in-the-profile.example/runs/key"),
        ({"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"}, "https://runs.s3.amazonaws.com/key"),
    ],
)
def test_botocore_and_the_short_way_ask_in_the_same_place(
    variables: dict[str, str], url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config").write_text(CONFIG)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "trainyard")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    bucket = Bucket("runs", "", encryption="none", call_seconds=1)
    signed = bucket._access.client.generate_presigned_url(
        "get_object", Params={"Bucket": "runs", "Key": "key"}
    )
    assert signed.partition("?")[0] == url
    assert f"{bucket._access.direct._place.geturl()}/key" == url


class Silent:
    """Takes what it is sent if it `reads`, says `said`, then nothing more, and hangs up on nobody."""

    def __init__(self, said: bytes, *, reads: bool = True) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._said, self._reads, self._lines = said, reads, list[socket.socket]()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                line, _ = self._listener.accept()
                self._lines.append(line)
                if self._reads:
                    line.recv(1 << 16)
                line.sendall(self._said)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for line in (self._listener, *self._lines):
            line.close()


HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n"


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("room", [100, 1 << 15])
@pytest.mark.parametrize(
    "said", [b"", HEAD[:20], HEAD, HEAD + b"\r\n", HEAD + b"\r\n" + b"x" * 50_000], ids=len
)
def test_a_server_that_falls_silent_is_not_waited_for_and_not_believed(
    said: bytes, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Silent(said)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    store = S3Store("runs", "", encryption="none", call_seconds=0.3)
    started = time.monotonic()
    with pytest.raises(ServiceError):
        for piece in store.read_pieces("k", 0, 100_000, memoryview(bytearray(room))):
            assert bytes(piece) == b"x" * len(piece)
    with pytest.raises(ServiceError):
        store.read_object("k")
    assert time.monotonic() - started < 10
    server.close()


def test_a_server_that_takes_nothing_is_not_waited_for(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = Silent(b"", reads=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", silent.url)
    direct = Bucket("runs", "", encryption="none", call_seconds=0.3)._access.direct
    started = time.monotonic()
    assert direct.ask("put_object", {"Key": "k", "Body": bytes(50 << 20)}) is None
    assert time.monotonic() - started < 10
    silent.close()


NAMES = st.from_regex(r"x-amz-meta-[a-z0-9-]{1,12}", fullmatch=True)
VALUES = st.from_regex(r"[!-~]([ -~]{0,20}[!-~])?", fullmatch=True)


@settings(deadline=None, max_examples=50)
@given(
    st.dictionaries(NAMES, VALUES),
    st.from_regex(
        r"[a-zA-Z0-9/_.~-]{1,30}(\?partNumber=[0-9]+&uploadId=[a-z0-9]+"
        r"|\?continuation-token=[a-z0-9%2B%3D]+&encoding-type=url&list-type=2&prefix=(%20|%2F|[a-z])*)?",
        fullmatch=True,
    ),
    st.booleans(),
)
def test_the_signature_is_that_of_botocore(headers: dict[str, str], key: str, token: bool) -> None:
    headers = {name: " ".join(value.split()) for name, value in headers.items()}
    credentials = Credentials("key", "secret", "token" if token else None)
    ours = Signer(credentials, "eu-west-1", "runs.example:9000", clock=Clock()).signed(
        "PUT", f"/b/{key}", headers
    )
    request = AWSRequest("PUT", f"http://runs.example:9000/b/{key}", headers=headers)
    request.context["client_config"] = Config(s3={"payload_signing_enabled": False})
    request.context["timestamp"] = request.headers["X-Amz-Date"] = ours["x-amz-date"]
    signer = S3SigV4Auth(credentials, "s3", "eu-west-1")
    signer._modify_request_before_signing(request)
    text = signer.string_to_sign(request, signer.canonical_request(request))
    assert ours["authorization"].endswith(f"Signature={signer.signature(text, request)}")
