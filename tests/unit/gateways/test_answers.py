"""Answers of a store: what is understood, to the byte, and that anything else is refused."""

import contextlib
import http.client
import io
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.gateways.s3.answers import Answer

Line = socket.socket
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n12345"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n0\r\n\r\n"


@pytest.fixture
def lines() -> Iterator[tuple[Line, Line]]:
    """The server's end and ours, with a time limit."""
    far, near = socket.socketpair()
    near.settimeout(0.3)
    with far, near:
        yield far, near


def answer(lines: tuple[Line, Line], said: bytes, *, method: str = "GET", ends: bool = True) -> Answer:
    far, near = lines
    threading.Thread(target=say, args=(far, said, ends), daemon=True).start()
    return Answer(near, method=method, seconds=0.3)


def say(far: Line, said: bytes, ends: bool) -> None:
    with contextlib.suppress(OSError):  # we may hang up before
        far.sendall(said)
        if ends:
            far.shutdown(socket.SHUT_WR)


def test_status_and_headers(lines: tuple[Line, Line]) -> None:
    said = b'HTTP/1.1 206 Partial Content\r\nETag: "a b"\r\nX-Empty:\r\nContent-Length:  3 \r\n\r\nabc'
    found = answer(lines, said)
    assert (found.status, found.length, found.is_last) == (206, 3, False)
    assert found.headers == {"etag": '"a b"', "x-empty": "", "content-length": "3"}
    assert found.rest(3) == b"abc"
    assert found.is_clean


@pytest.mark.parametrize(
    "head",
    [b"HTTP/1.0 200 OK", b"HTTP/1.1 200", b"HTTP/1.1 200 OK\r\nConnection: Close"],
)
def test_the_end_of_a_connection_is_known(lines: tuple[Line, Line], head: bytes) -> None:
    found = answer(lines, head + b"\r\nContent-Length: 0\r\n\r\n")
    assert found.is_last == (b"1.0" in head or b"Close" in head)


def test_chunks_become_one(lines: tuple[Line, Line]) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    found = answer(
        lines, head + b"3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\nHTTP", ends=False
    )
    assert found.rest(13) == b"abc0123456789"
    assert not found.is_clean


def test_what_is_said_ahead_of_the_answer_is_passed_over(lines: tuple[Line, Line]) -> None:
    said = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: x\r\n\r\n" + WHOLE
    assert answer(lines, said).rest(5) == b"12345"


@pytest.mark.parametrize("header", [b"Content-Length: 5", b"Transfer-Encoding: chunked"])
def test_nothing_is_waited_for_behind_the_headers_of_a_head(lines: tuple[Line, Line], header: bytes) -> None:
    found = answer(lines, b"HTTP/1.1 200 OK\r\n" + header + b"\r\n\r\n", method="HEAD", ends=False)
    assert (found.rest(0), found.is_clean) == (b"", True)


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (b"nonsense\r\n\r\n", "no status"),
        (b"HTTP/2 200 OK\r\nContent-Length: 0\r\n\r\n", "no status"),
        (b"HTTP/1.1 200 OK\nContent-Length: 0\n\n", "does not end as it should"),
        (b"HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n", "no status"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "two lengths"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nETag\r\n\r\n", "no header"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n folded: x\r\n\r\n", "no header"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nETag: a\0b\r\n\r\n", "no header"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\nETag: a\r\n\r\n", "does not end as it should"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000, "at most"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 30_000, "at most"),
    ],
)
def test_what_no_store_answers_is_refused(lines: tuple[Line, Line], head: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        answer(lines, head)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    "length", [b"", b"Content-Length: -1\r\n", b"Content-Length: 1_0\r\n", b"Content-Length: +1\r\n"]
)
def test_a_length_that_is_none_is_refused(lines: tuple[Line, Line], length: bytes, method: str) -> None:
    found = answer(lines, b"HTTP/1.1 200 OK\r\n" + length + b"\r\n", method=method)
    with pytest.raises(ValueError, match="is no length"):
        _ = found.length


def test_a_transfer_encoding_that_is_not_known_is_refused(lines: tuple[Line, Line]) -> None:
    found = answer(lines, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n")
    with pytest.raises(ValueError, match="not known here"):
        found.rest(10)
    with pytest.raises(ValueError, match="no length"):
        found.body(whole=lambda _: None)


@pytest.mark.parametrize("said", [b"x", b"HTTP/1.1 200 OK\r\n", CHUNKED[:60]])
def test_a_server_that_says_a_little_at_a_time_is_not_waited_for(
    lines: tuple[Line, Line], said: bytes
) -> None:
    far, near = lines
    gone = threading.Event()

    def trickle() -> None:
        with contextlib.suppress(OSError):
            far.sendall(said)
            while not gone.wait(0.05):
                far.sendall(b"1")

    threading.Thread(target=trickle, daemon=True).start()
    started = time.monotonic()
    with pytest.raises((TimeoutError, ValueError)):
        Answer(near, method="GET", seconds=0.5).rest(100)
    assert time.monotonic() - started < 5
    gone.set()


def test_a_chunk_that_is_longer_than_it_says_is_refused(lines: tuple[Line, Line]) -> None:
    found = answer(lines, CHUNKED.replace(b"12345", b"1234567"))
    with pytest.raises(ValueError, match="does not end where it should"):
        found.rest(100)


@pytest.mark.parametrize("size", [b"", b"-1", b"0x3", b"123456789", b"g"])
def test_a_chunk_without_a_size_is_refused(lines: tuple[Line, Line], size: bytes) -> None:
    found = answer(lines, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + size + b"\r\nabc\r\n")
    with pytest.raises(ValueError, match="no size of a chunk"):
        found.rest(100)


@pytest.mark.parametrize(
    "said",
    [b"Content-Length: 5\r\n\r\n12345", b"Transfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n0\r\n\r\n"],
)
def test_more_than_is_expected_is_not_read(lines: tuple[Line, Line], said: bytes) -> None:
    found = answer(lines, b"HTTP/1.1 200 OK\r\n" + said)
    with pytest.raises(ValueError, match="bytes"):
        found.rest(4)


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("said", [WHOLE, CHUNKED])
def test_an_answer_that_breaks_off_anywhere_is_no_answer(said: bytes, ends: bool) -> None:
    for length in range(0, len(said), 7):
        far, near = socket.socketpair()
        near.settimeout(0.05)
        with far, near, pytest.raises(OSError, match=r"broke off|timed out"):
            answer((far, near), said[:length], ends=ends).rest(100)


def body(lines: tuple[Line, Line], said: bytes, *, ends: bool = True) -> tuple[Any, list[Line]]:
    kept = list[Line]()
    return answer(lines, said, ends=ends).body(whole=kept.append), kept


@pytest.mark.parametrize("size", [1, 100, 8192, 50_000, 70_000])
def test_a_body_fills_the_room_and_its_connection_is_given_back(lines: tuple[Line, Line], size: int) -> None:
    content = bytes(range(256)) * 200
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(content)
    found, kept = body(lines, head + content + b"more", ends=False)
    room, read = memoryview(bytearray(size)), bytearray()
    while count := found.readinto(room):
        assert count == min(size, len(content) - len(read))
        read += room[:count]
    assert read == content
    for _ in range(2):  # two who got the same connection would read each other's answers
        found.close()
        assert kept == [lines[1]]
    assert lines[1].gettimeout() == 0.3


def test_a_body_that_is_not_read_to_its_end_closes_the_connection(lines: tuple[Line, Line]) -> None:
    found, kept = body(lines, WHOLE)
    assert found.readinto(memoryview(bytearray(4))) == 4
    found.close()
    assert kept == []
    assert lines[1].fileno() == -1


@pytest.mark.parametrize("ends", [True, False])
def test_a_body_that_breaks_off_gives_what_came(lines: tuple[Line, Line], ends: bool) -> None:
    found, kept = body(lines, WHOLE[:-2], ends=ends)
    room = memoryview(bytearray(5))
    if ends:
        assert found.readinto(room) == 3
        assert found.readinto(room) == 0
    else:
        with pytest.raises(TimeoutError):
            while found.readinto(room):
                pass
    found.close()
    assert kept == []


NAMES = st.sampled_from(["ETag", "x-amz-checksum-sha256", "Server", "X-Y"])
VALUES = st.from_regex(r"([!-~]([ -~]{0,20}[!-~])?)?", fullmatch=True)


@settings(deadline=None, max_examples=60)
@given(st.dictionaries(NAMES, VALUES), st.binary(max_size=300), st.integers(200, 599))
def test_what_is_understood_is_what_the_standard_library_understands(
    headers: dict[str, str], content: bytes, status: int
) -> None:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    said = f"HTTP/1.1 {status} Word\r\n{lines}Content-Length: {len(content)}\r\n\r\n".encode() + content

    class Fake:
        def makefile(self, mode: str) -> io.BytesIO:
            return io.BytesIO(said)

    theirs = http.client.HTTPResponse(Fake(), method="PUT")  # type: ignore[arg-type]
    theirs.begin()
    far, near = socket.socketpair()
    with far, near:
        far.sendall(said)
        ours = Answer(near, method="PUT", seconds=5)
        assert ours.status == theirs.status
        assert ours.headers == {name.lower(): value for name, value in theirs.getheaders()}
        if status not in (204, 304):
            assert ours.rest(300) == theirs.read() == content
