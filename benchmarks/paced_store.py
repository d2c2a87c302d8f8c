"""Shared by the store benchmarks: a store at the end of a paced line, and runs to send.

The store is a small program that responds like S3, from memory, and limits the bytes per second of each
connection and of all together (`-latency`, `-conn`, `-link`, `-cert`, `-key`). TRAINYARD_PACED_STORE is its
path. It prints its port.
"""

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from trainyard.run.atomic_files import sha256_of_file
from trainyard.run.checkpoint_manifest import (
    MANIFEST_NAME,
    CheckpointManifest,
    describe_files,
    write_manifest,
)
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import write_identity
from trainyard.run.records import append_event

PROGRAM = "TRAINYARD_PACED_STORE"
MIB = 1 << 20


@contextlib.contextmanager
def serving(*flags: str) -> Iterator[str]:
    """Start a new, empty store; yield its address, and set credentials that it takes."""
    program = os.environ.get(PROGRAM)
    if not program:
        raise SystemExit(f"{PROGRAM} names no program that is a paced store")
    server = subprocess.Popen([program, *flags], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = f"{'https' if '-cert' in flags else 'http'}://127.0.0.1:{server.stdout.readline().strip()}"
        os.environ |= {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}
        os.environ["AWS_ENDPOINT_URL"] = url
        yield url
    finally:
        server.kill()
        server.wait()


def write_run(path: Path, files: int, size: int) -> RunDirectory:
    """Write a run with one checkpoint of random bytes, whose digest its events record."""
    directory = RunDirectory(path)
    directory.create()
    write_identity(directory.run_file, "benchmark", {})
    directory.config_file.write_text("training: {}\n")
    for step in range(1, 501):
        append_event(directory.metrics_file, "metrics", step=step, loss=1 / step)
    checkpoint = directory.checkpoint(500)
    checkpoint.mkdir()
    for number in range(files):
        with (checkpoint / f"__{number}_0.distcp").open("wb") as file:
            for start in range(0, size, MIB):
                file.write(os.urandom(min(MIB, size - start)))
    manifest = CheckpointManifest(500, "benchmark", time.time(), describe_files(checkpoint))
    write_manifest(checkpoint, manifest)
    sha256 = sha256_of_file(checkpoint / MANIFEST_NAME)
    append_event(directory.events_file, "checkpoint_saved", step=500, manifest_sha256=sha256)
    return directory
