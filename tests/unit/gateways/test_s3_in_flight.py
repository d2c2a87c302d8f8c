"""The number of simultaneous requests, counted by a real server that answers slowly."""

import errno
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

import pytest
from tests.listener import Listener, read_message

from trainyard.artifacts.record.manifest import ManifestObject
from trainyard.artifacts.restore.download import Downloader
from trainyard.artifacts.upload.upload import FILES_AT_ONCE
from trainyard.gateways.s3.store import PARTS_IN_MEMORY, RANGE_BYTES, RANGES_IN_MEMORY, S3Store
from trainyard.gateways.s3.uploads import PARTS_AT_ONCE

MIB = 1 << 20
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


def test_an_object_that_is_read_in_order_comes_in_eight_ranges_at_a_time(
    store: S3Store, server: SlowServer
) -> None:
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


def test_small_files_go_by_as_many_connections_as_there_are_threads(
    store: S3Store, server: SlowServer, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"1234")
    server.wanted = FILES_AT_ONCE
    uploads = [store.stage(tmp_path / "file", f"k{number}", metadata={}) for number in range(100)]
    with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
        list(pool.map(lambda upload: upload.commit(), uploads))
    assert server.most == FILES_AT_ONCE == 32


def test_readings_that_fail_leave_their_memory_to_those_that_wait(
    store: S3Store, server: SlowServer, tmp_path: Path
) -> None:
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
