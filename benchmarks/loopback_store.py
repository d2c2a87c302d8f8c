"""What the benchmarks of storing and restoring share: a loopback store, runs to send, the common flags.

The store is just enough of S3, in a process of its own: it reads what it is sent and throws the checkpoints'
bytes away, so that it is not what is measured.
"""

import argparse
import base64
import contextlib
import hashlib
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trainyard.run.checkpoints import MANIFEST_NAME, CheckpointManifest, describe_files, write_manifest
from trainyard.run.directory import RunDirectory
from trainyard.run.files import sha256_of_file
from trainyard.run.identity import write_identity
from trainyard.run.records import append_event

PEAK_GOAL_MIB = 300
MIB = 1 << 20
CREATED = "<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>"
WHEN = "<LastModified>2026-11-20T00:00:00.000Z</LastModified>"
MISSING = "<Error><Code>NoSuchKey</Code></Error>"
Answer = bytes | list[bytes | memoryview]


@dataclass
class Request:
    """What a client asks."""

    method: str
    key: str
    query: str
    fields: dict[str, str]
    body: bytes = b""
    """Empty where it is not kept."""

    @classmethod
    def of(cls, head: bytes) -> "Request":
        line, *rest = head.decode().split("\r\n")
        method, target, _ = line.split(" ")
        key, _, query = target.partition("?")
        fields = {name.lower(): value for name, _, value in (field.partition(": ") for field in rest)}
        return cls(method, key, query, fields)

    @property
    def size(self) -> int:
        """Bytes of the body."""
        return int(self.fields.get("content-length", "0"))

    @property
    def part(self) -> int:
        """Its number; 0 for no part."""
        found = re.search(r"partNumber=(\d+)", self.query)
        return int(found[1]) if found else 0


class Sink:
    """Just enough of S3: keeps small objects, counts and forgets the bytes of large ones."""

    DATA = ".distcp"
    """Objects of this name are counted and forgotten."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.small: dict[str, bytes] = {}
        self.headers: dict[str, str] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        """The SHA-256 of each part, where the client gave it."""

    def serve(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        print(listener.getsockname()[1], flush=True)
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        data = b""
        with connection, contextlib.suppress(ConnectionError):
            while True:
                while b"\r\n\r\n" not in data:
                    chunk = connection.recv(1 << 16)
                    if not chunk:
                        return
                    data += chunk
                head, _, body = data.partition(b"\r\n\r\n")
                data, asked = b"", Request.of(head)
                if "expect" in asked.fields:
                    connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
                asked.body = self._read(connection, body, asked)
                answer = self._answer(asked)
                for part in answer if isinstance(answer, list) else [answer]:
                    connection.sendall(part)

    def _read(self, connection: socket.socket, data: bytes, asked: Request) -> bytes:
        """The body if it is to be kept; else Linux discards it without a copy (MSG_TRUNC, see tcp(7))."""
        left, scratch = asked.size - len(data), memoryview(bytearray(min(asked.size, MIB)))
        parts, keep = [data], self.DATA not in asked.key
        how = 0 if keep or sys.platform != "linux" else socket.MSG_TRUNC
        while left > 0:
            count = connection.recv_into(scratch, min(left, MIB), how)
            left -= count
            if keep:
                parts.append(bytes(scratch[:count]))
        return b"".join(parts) if keep else b""

    def _answer(self, asked: Request) -> Answer:
        if asked.method == "PUT":
            return self._put(asked)
        if asked.method == "POST":
            self.sizes[asked.key] = self.sizes.get(asked.key, 0)
            algorithm = asked.fields.get("x-amz-checksum-algorithm", "")
            known = f"x-amz-checksum-algorithm: {algorithm}\r\n" if algorithm else ""
            if "uploads" in asked.query:
                return reply(200, CREATED, headers=known)
            return reply(200, self._complete(asked.key, asked.fields.get("x-amz-checksum-crc64nvme", "")))
        if "uploads" in asked.query:
            return reply(200, "<ListMultipartUploadsResult></ListMultipartUploadsResult>")
        if "list-type" in asked.query:
            return reply(200, self._listing(asked.key, asked.query))
        return self._read_back(asked)

    def _read_back(self, asked: Request) -> Answer:
        if asked.key not in self.sizes:
            return reply(404, MISSING if asked.method == "GET" else "")
        text = self.small.get(asked.key, b"") if asked.method == "GET" else b""
        return reply(200, text, length=self.sizes[asked.key], headers=self.headers.get(asked.key, ""))

    def _put(self, asked: Request) -> bytes:
        key, fields = asked.key, asked.fields
        if "if-none-match" in fields and key in self.sizes:
            return reply(412, "<Error><Code>PreconditionFailed</Code></Error>")
        headers = 'ETag: "x"\r\n'
        if "x-amz-checksum-sha256" in fields:
            headers += f"x-amz-checksum-sha256: {fields['x-amz-checksum-sha256']}\r\n"
        if asked.part:
            digest = base64.b64decode(fields.get("x-amz-checksum-sha256", ""))
            self.parts.setdefault(key, {})[asked.part] = digest
            self.sizes[key] = self.sizes.get(key, 0) + asked.size
        else:
            self.sizes[key], self.small[key], self.headers[key] = asked.size, asked.body, headers
        return reply(200, headers=headers)

    def _complete(self, key: str, crc: str) -> str:
        """Joins the parts: the checksum is the client's own, or the composite one that S3 answers."""
        if crc:
            checksum = f"<ChecksumCRC64NVME>{crc}</ChecksumCRC64NVME><ChecksumType>FULL_OBJECT</ChecksumType>"
            return f"<CompleteMultipartUploadResult><ETag>x</ETag>{checksum}</CompleteMultipartUploadResult>"
        digests = [digest for _, digest in sorted(self.parts.get(key, {}).items())]
        whole = base64.b64encode(hashlib.sha256(b"".join(digests)).digest()).decode()
        checksum = f"<ChecksumSHA256>{whole}-{len(digests)}</ChecksumSHA256>" if all(digests) else ""
        return f"<CompleteMultipartUploadResult><ETag>x</ETag>{checksum}</CompleteMultipartUploadResult>"

    def _listing(self, bucket: str, query: str) -> str:
        prefix = re.search(r"prefix=([^&]*)", query)
        start = f"{bucket}/{prefix[1] if prefix else ''}".replace("%2F", "/")
        keys = [key for key in self.sizes if key.startswith(start)]
        entry = "<Contents><Key>{}</Key><Size>{}</Size><ETag>x</ETag>" + WHEN + "</Contents>"
        entries = "".join(entry.format(key[len(bucket) + 1 :], self.sizes[key]) for key in keys)
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>"


def reply(status: int, body: str | bytes = b"", *, length: int | None = None, headers: str = "") -> bytes:
    content = body.encode() if isinstance(body, str) else body
    size = len(content) if length is None else length
    return f"HTTP/1.1 {status} -\r\nContent-Length: {size}\r\n{headers}\r\n".encode() + content


def credentials(url: str) -> None:
    os.environ |= {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}
    os.environ["AWS_ENDPOINT_URL"] = url


@contextlib.contextmanager
def serve(script: str) -> Iterator[str]:
    """The server of a script, in a process of its own."""
    line = [sys.executable, script, "--serve-sink"]
    server = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{server.stdout.readline().strip()}"
    finally:
        server.terminate()
        server.wait()


def write_run(path: Path, files: int, size: int, *, sparse: bool = False) -> RunDirectory:
    directory = RunDirectory(path)
    directory.create()
    write_identity(directory.run_file, "benchmark", {})
    directory.config_file.write_text("training: {}\n")
    for step in range(1, 501):
        append_event(directory.metrics_file, "metrics", step=step, loss=1 / step)
    checkpoint = directory.checkpoint(500)
    checkpoint.mkdir()
    for number in range(files):
        with (checkpoint / f"__{number}_0{Sink.DATA}").open("wb") as file:
            if sparse:
                file.truncate(size)
                continue
            for start in range(0, size, MIB):
                file.write(os.urandom(min(MIB, size - start)))
    manifest = CheckpointManifest(500, "benchmark", time.time(), describe_files(checkpoint))
    write_manifest(checkpoint, manifest)
    sha256 = sha256_of_file(checkpoint / MANIFEST_NAME)
    append_event(directory.events_file, "checkpoint_saved", step=500, manifest_sha256=sha256)
    return directory


def arguments(text: str | None) -> argparse.ArgumentParser:
    """The flags that both have; `text` is the script's own."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--files", type=int, default=1)
    parser.add_argument("--size-kib", type=int, default=1 << 20)
    parser.add_argument("--s5cmd", default=shutil.which("s5cmd"))
    parser.add_argument("--serve-sink", action="store_true", help=argparse.SUPPRESS)
    return parser
