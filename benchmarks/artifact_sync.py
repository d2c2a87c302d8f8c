#!/usr/bin/env python3
"""Syncing a checkpoint against `s5cmd cp`, `aws s3 cp` and boto3's upload_file of the same files.

All send to a loopback server in a process of its own that reads and throws away the checkpoint's bytes.
Ours is the whole of `sync_run`: the number is claimed, every byte is hashed and compared with the manifest of
the checkpoint, each object carries its SHA-256, metrics and records go too, the run's manifest last; and once
more, with nothing changed. The others are as they come, aws and s5cmd in a process of their own, and left out
where they are not found. All take turns; each sends to a new place.

Reads:   --rounds, --files, --size-kib (of each file), --sparse, --s5cmd and --aws (else those in PATH)
Writes:  a temporary checkpoint; a table, or JSON, on stdout
Exit codes: 0 the goals are met, 1 one is not
Example: benchmarks/artifact_sync.py --rounds 5 --files 8 --size-kib 524288 --s5cmd ~/.venv/bin/s5cmd
"""

import argparse
import base64
import contextlib
import hashlib
import json
import os
import re
import resource
import shutil
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

GOALS = {"s5cmd": 1.1, "aws": 2.5, "upload_file": 2.0}
"""How many times as fast as each."""
SMALL_GOALS = {"s5cmd": 1.0}
"""For files of less than a MiB."""
PEAK_GOAL_MIB = 300
AGAIN_GOAL_SECONDS = 1.0
"""For each 1,000 objects of an unchanged second sync."""
STEADY = 1.2
"""Medians further than this from the bests were disturbed by other work on the machine: measure again."""
MIB = 1 << 20
CREATED = "<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>"
WHEN = "<LastModified>2026-11-20T00:00:00.000Z</LastModified>"
MISSING = "<Error><Code>NoSuchKey</Code></Error>"
Fields = dict[str, str]


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
                head, _, data = data.partition(b"\r\n\r\n")
                line, *rest = head.decode().split("\r\n")
                fields = {name.lower(): value for name, _, value in (field.partition(": ") for field in rest)}
                if "expect" in fields:
                    connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
                size = int(fields.get("content-length", "0"))
                body = self._read(connection, data, size, self.DATA not in line)
                data = b""
                answer = self._answer(line, fields, size, body)
                for part in answer if isinstance(answer, list) else [answer]:
                    connection.sendall(part)

    def _read(self, connection: socket.socket, data: bytes, size: int, keep: bool) -> bytes:
        """The body if it is to be kept, else nothing."""
        left, scratch = size - len(data), memoryview(bytearray(min(size, MIB)))
        parts = [data]
        while left > 0:
            count = connection.recv_into(scratch[: min(left, MIB)])
            left -= count
            if keep:
                parts.append(bytes(scratch[:count]))
        return b"".join(parts) if keep else b""

    def _answer(self, line: str, fields: Fields, size: int, body: bytes) -> bytes | list[bytes | memoryview]:
        method, target, _ = line.split(" ")
        key, _, query = target.partition("?")
        if method == "PUT":
            return self._put(key, query, fields, size, body)
        if method == "POST":
            self.sizes[key] = self.sizes.get(key, 0)
            algorithm = fields.get("x-amz-checksum-algorithm", "")
            known = f"x-amz-checksum-algorithm: {algorithm}\r\n" if algorithm else ""
            if "uploads" in query:
                return reply(200, CREATED, headers=known)
            return reply(200, self._complete(key, fields.get("x-amz-checksum-crc64nvme", "")))
        if "uploads" in query:
            return reply(200, "<ListMultipartUploadsResult></ListMultipartUploadsResult>")
        if "list-type" in query:
            return reply(200, self._listing(key, query))
        return self._read_back(key, fields, method)

    def _read_back(self, key: str, fields: Fields, method: str) -> bytes | list[bytes | memoryview]:  # noqa: ARG002
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
    return directory


def measure(args: argparse.Namespace) -> dict[str, Any]:
    size = args.size_kib << 10
    with tempfile.TemporaryDirectory() as folder, serve(__file__) as url:
        credentials(url)
        run = write_run(Path(folder) / "run", args.files, size, sparse=args.sparse)

        def ours(place: str) -> None:
            report = sync_run(open_store(f"s3://bench/{place}"), run, 1)
            assert report.problems == () and report.skipped == 0, report

        contenders = {"sync": ours, **peers(args, run.checkpoint(500), url)}
        times: dict[str, list[float]] = {name: [] for name in contenders}
        for number in range(args.rounds + 1):  # the first one warms up
            for name, send in contenders.items():
                taken = seconds(send, f"{name}-{number}")
                times[name] += [taken] if number else []
        again = seconds(lambda place: repeat(place, run), f"sync-{args.rounds}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return summary(times, args.files * size, again, args.files) | {"peak_memory_mib": round(peak)}


def repeat(place: str, run: RunDirectory) -> None:
    assert sync_run(open_store(f"s3://bench/{place}"), run, 1).sent == 0


def peers(args: argparse.Namespace, checkpoint: Path, url: str) -> dict[str, Callable[[str], None]]:
    """What else is here to send a directory with, by name."""
    found: dict[str, Callable[[str], None]] = {}
    if s5cmd := args.s5cmd or shutil.which("s5cmd"):
        found["s5cmd"] = program(s5cmd, "--endpoint-url", url, "cp", f"{checkpoint}/", "s3://bench/{}/")
    if aws := args.aws or shutil.which("aws"):
        copy = ("s3", "cp", "--recursive", "--only-show-errors", str(checkpoint), "s3://bench/{}/")
        found["aws"] = program(aws, "--endpoint-url", url, *copy)
    if args.files <= 100:
        found["upload_file"] = lambda place: upload_files(checkpoint, place)
    return found


def program(*line: str) -> Callable[[str], None]:
    def send(place: str) -> None:
        subprocess.run([word.replace("{}", place) for word in line], check=True, stdout=subprocess.DEVNULL)

    return send


def upload_files(checkpoint: Path, place: str) -> None:
    import boto3

    client = boto3.client("s3")
    for path in checkpoint.iterdir():
        client.upload_file(str(path), "bench", f"{place}/{path.name}")


def seconds(function: Callable[[str], None], place: str) -> float:
    started = time.perf_counter()
    function(place)
    return time.perf_counter() - started


def summary(times: dict[str, list[float]], size: int, again: float, files: int) -> dict[str, Any]:
    medians = {name: statistics.median(values) for name, values in times.items()}
    bests = {name: min(values) for name, values in times.items()}
    goals = SMALL_GOALS if size // files < MIB else GOALS
    others = [name for name in times if name != "sync"]
    return {
        "files": files,
        "size_mib": size // MIB,
        "mib_per_second": {name: round(size / MIB / median) for name, median in medians.items()},
        "spread": {name: [round(min(v), 2), round(max(v), 2)] for name, v in times.items()},
        "ratio": {name: round(medians[name] / medians["sync"], 2) for name in others},
        "ratio_of_bests": {name: round(bests[name] / bests["sync"], 2) for name in others},
        "goals": {name: goals[name] for name in others if name in goals},
        "again_seconds": round(again, 2),
        "again_seconds_per_1000": round(again * 1000 / max(1000, files), 2),
        "steady": all(medians[name] <= STEADY * bests[name] for name in times),
    }


def is_met(result: dict[str, Any]) -> bool:
    fast = all(result["ratio"][name] >= goal for name, goal in result["goals"].items())
    small = result["size_mib"] > 1000 or result["again_seconds_per_1000"] < AGAIN_GOAL_SECONDS
    return fast and small and result["peak_memory_mib"] < PEAK_GOAL_MIB


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--files", type=int, default=1)
    parser.add_argument("--size-kib", type=int, default=1 << 20)
    parser.add_argument("--sparse", action="store_true", help="files of nothing, which take no room here")
    parser.add_argument("--s5cmd")
    parser.add_argument("--aws")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve-sink", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve_sink:
        Sink().serve()
    result = measure(args)
    if args.json:
        print(json.dumps(result, indent=2))
    else:
        tell(result)
    return 0 if is_met(result) else 1


def tell(result: dict[str, Any]) -> None:
    for name, speed in result["mib_per_second"].items():
        low, high = result["spread"][name]
        ratio = f"ratio {result['ratio'][name]}" if name in result["ratio"] else ""
        goal = f"goal {result['goals'][name]}" if name in result["goals"] else ""
        print(f"{name:<12} {speed:>6} MiB/s   {low:.2f} to {high:.2f} s   {ratio} {goal}".rstrip())
    print(f"nothing changed: {result['again_seconds']} s; peak memory {result['peak_memory_mib']} MiB")
    if not result["steady"]:
        print("The machine was busy with other work: medians are far from bests, measure again.")


if __name__ == "__main__":
    sys.exit(main())
