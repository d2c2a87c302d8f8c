#!/usr/bin/env python3
"""Syncing a 1 GiB checkpoint against boto3's upload_file of the same file. Goal: at least twice as fast.

Both send to a loopback server in a process of its own that reads and throws away what is larger than a small
object. Ours is the whole of `sync_run`: the number is claimed, every byte is hashed and compared with the
checkpoint's manifest, each object carries its SHA-256, metrics and records go too, the run's manifest last.
The peer is `boto3.client("s3").upload_file(...)` as it comes. The two take turns; each sends to a new place.

Reads:   --rounds, --size-mib
Writes:  a temporary checkpoint; a table, or JSON, on stdout
Exit codes: 0 the goal is met, 1 it is not
Example: benchmarks/artifact_sync.py --rounds 5
"""

import argparse
import base64
import contextlib
import hashlib
import json
import os
import re
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from trainyard.artifacts.sync import sync_run
from trainyard.gateways import open_store
from trainyard.run.checkpoints import CheckpointManifest, describe_files, write_manifest
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import write_identity
from trainyard.run.records import append_event

RATIO_GOAL = 2.0
STEADY = 1.2
"""Medians further than this from the bests were disturbed by other work on the machine: measure again."""
MIB = 1 << 20
DATA = "__0_0.distcp"
CREATED = "<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>"
MISSING = "<Error><Code>NoSuchKey</Code></Error>"
Fields = dict[str, str]


class Sink:
    """Just enough of S3: keeps small objects, counts and forgets the bytes of large ones."""

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
        scratch = memoryview(bytearray(MIB))
        data = b""
        with connection, contextlib.suppress(ConnectionError):
            while True:
                while b"\r\n\r\n" not in data:
                    chunk = connection.recv(1 << 16)
                    if not chunk:
                        return
                    data += chunk
                head, _, data = data.partition(b"\r\n\r\n")
                line, *rest = head.decode().split("\r\n")
                fields = {name.lower(): value for name, _, value in (field.partition(": ") for field in rest)}
                if "expect" in fields:
                    connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
                size = int(fields.get("content-length", "0"))
                body = self._read(connection, data, size, scratch)
                data = b""
                connection.sendall(self._answer(line, fields, size, body))

    def _read(self, connection: socket.socket, data: bytes, size: int, scratch: memoryview) -> bytes:
        """The body if it is small, else nothing."""
        left = size - len(data)
        if size <= MIB:
            while left > 0:
                data += connection.recv(left)
                left = size - len(data)
            return data
        while left > 0:
            left -= connection.recv_into(scratch[: min(left, MIB)])
        return b""

    def _answer(self, line: str, fields: Fields, size: int, body: bytes) -> bytes:
        method, target, _ = line.split(" ")
        key, _, query = target.partition("?")
        if method == "PUT":
            return self._put(key, query, fields, size, body)
        if method == "POST":
            self.sizes[key] = self.sizes.get(key, 0)
            return reply(200, CREATED if "uploads" in query else self._complete(key))
        if "list-type" in query:
            return reply(200, self._listing(key, query))
        if key not in self.sizes:
            return reply(404, MISSING if method == "GET" else "")
        text = self.small.get(key, b"") if method == "GET" else b""
        return reply(200, text, length=self.sizes[key], headers=self.headers.get(key, ""))

    def _put(self, key: str, query: str, fields: Fields, size: int, body: bytes) -> bytes:
        if "if-none-match" in fields and key in self.sizes:
            return reply(412, "<Error><Code>PreconditionFailed</Code></Error>")
        headers = 'ETag: "x"\r\n'
        if "x-amz-checksum-sha256" in fields:
            headers += f"x-amz-checksum-sha256: {fields['x-amz-checksum-sha256']}\r\n"
        if number := re.search(r"partNumber=(\d+)", query):
            digest = base64.b64decode(fields.get("x-amz-checksum-sha256", ""))
            self.parts.setdefault(key, {})[int(number[1])] = digest
            self.sizes[key] = self.sizes.get(key, 0) + size
        else:
            self.sizes[key], self.small[key], self.headers[key] = size, body, headers
        return reply(200, headers=headers)

    def _complete(self, key: str) -> str:
        """Joins the parts: the composite checksum is the one S3 answers."""
        digests = [digest for _, digest in sorted(self.parts.get(key, {}).items())]
        whole = base64.b64encode(hashlib.sha256(b"".join(digests)).digest()).decode()
        checksum = f"<ChecksumSHA256>{whole}-{len(digests)}</ChecksumSHA256>" if all(digests) else ""
        return f"<CompleteMultipartUploadResult><ETag>x</ETag>{checksum}</CompleteMultipartUploadResult>"

    def _listing(self, bucket: str, query: str) -> str:
        prefix = re.search(r"prefix=([^&]*)", query)
        start = f"{bucket}/{prefix[1] if prefix else ''}".replace("%2F", "/")
        keys = [key for key in self.sizes if key.startswith(start)]
        entries = "".join(
            f"<Contents><Key>{k[len(bucket) + 1 :]}</Key><Size>{self.sizes[k]}</Size></Contents>"
            for k in keys
        )
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>"


def reply(status: int, body: str | bytes = b"", *, length: int | None = None, headers: str = "") -> bytes:
    content = body.encode() if isinstance(body, str) else body
    size = len(content) if length is None else length
    return f"HTTP/1.1 {status} -\r\nContent-Length: {size}\r\n{headers}\r\n".encode() + content


@contextlib.contextmanager
def sink() -> Iterator[str]:
    line = [sys.executable, __file__, "--serve-sink"]
    server = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{server.stdout.readline().strip()}"
    finally:
        server.terminate()
        server.wait()


def write_run(path: Path, size: int) -> RunDirectory:
    directory = RunDirectory(path)
    directory.create()
    write_identity(directory.run_file, "benchmark", {})
    directory.config_file.write_text("training: {}\n")
    for step in range(1, 501):
        append_event(directory.metrics_file, "metrics", step=step, loss=1 / step)
    checkpoint = directory.checkpoint(500)
    checkpoint.mkdir()
    with (checkpoint / DATA).open("wb") as file:
        for _ in range(size // MIB):
            file.write(os.urandom(MIB))
    manifest = CheckpointManifest(500, "benchmark", time.time(), describe_files(checkpoint))
    write_manifest(checkpoint, manifest)
    return directory


def measure(rounds: int, size: int) -> dict[str, Any]:
    import boto3

    os.environ |= {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}
    with tempfile.TemporaryDirectory() as folder, sink() as url:
        os.environ["AWS_ENDPOINT_URL"] = url
        run = write_run(Path(folder) / "run", size)
        file = str(run.checkpoint(500) / DATA)

        def ours(place: str) -> None:
            report = sync_run(open_store(f"s3://bench/{place}"), run, 1)
            assert report.problems == () and report.skipped == 0, report

        def peer(place: str) -> None:
            boto3.client("s3").upload_file(file, "bench", f"{place}/{DATA}")

        ours("warm-up"), peer("warm-up")
        times: dict[str, list[float]] = {"sync": [], "upload_file": []}
        for number in range(rounds):
            times["sync"].append(seconds(ours, f"sync-{number}"))
            times["upload_file"].append(seconds(peer, f"peer-{number}"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return summary(times, size) | {"peak_memory_mib": round(peak)}


def seconds(function: Callable[[str], None], place: str) -> float:
    started = time.perf_counter()
    function(place)
    return time.perf_counter() - started


def summary(times: dict[str, list[float]], size: int) -> dict[str, Any]:
    medians = {name: statistics.median(values) for name, values in times.items()}
    bests = {name: min(values) for name, values in times.items()}
    return {
        "size_mib": size // MIB,
        "mib_per_second": {name: round(size / MIB / median) for name, median in medians.items()},
        "spread": {name: [round(min(v), 2), round(max(v), 2)] for name, v in times.items()},
        "ratio": round(medians["upload_file"] / medians["sync"], 2),
        "ratio_of_bests": round(bests["upload_file"] / bests["sync"], 2),
        "steady": all(medians[name] <= STEADY * bests[name] for name in times),
        "goal": RATIO_GOAL,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size-mib", type=int, default=1024)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve-sink", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve_sink:
        Sink().serve()
    result = measure(args.rounds, args.size_mib * MIB)
    if args.json:
        print(json.dumps(result, indent=2))
    else:
        for name, speed in result["mib_per_second"].items():
            low, high = result["spread"][name]
            print(f"{name:<12} {speed:>6} MiB/s   {low:.2f} to {high:.2f} s")
        bests = f"of the bests {result['ratio_of_bests']}, goal {RATIO_GOAL}"
        print(f"ratio        {result['ratio']:>6}         {bests}")
        if not result["steady"]:
            print("The machine was busy with other work: medians are far from bests, measure again.")
    return 0 if result["ratio"] >= RATIO_GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
