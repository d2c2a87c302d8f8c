"""Claim run numbers from many processes at once, and list a store with many runs.

    16 processes × claim of `auto`  ──> 16 numbers, each with its own run   (on a folder and on an S3 server)
    a store with N runs             ──> processor time of `store ls` and of the claim of `auto`, and, on the
                                        S3 server, their requests

The S3 server is SeaweedFS, which the development environment has. Prints one JSON object and ends with 1 if
two processes have the same number, or a number belongs to another run than to the one that claimed it.

Example: .venv/bin/python benchmarks/store_runs.py --runs 2000 --rounds 5
"""

import argparse
import json
import multiprocessing
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from trainyard.artifacts.inventory import MOST_JUDGED, list_runs
from trainyard.artifacts.record.run_numbers import claim_run, stored_claim_of_number, used_numbers
from trainyard.artifacts.store.store_address import open_store
from trainyard.artifacts.upload.sync import sync_run
from trainyard.gateways.s3.client import Bucket
from trainyard.proof.stored_runs import failing_parts
from trainyard.run.checkpoint_manifest import CheckpointManifest, describe_files, write_manifest
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import write_identity, write_outcome
from trainyard.run.records import append_event

_START_SECONDS = 60


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=int, default=16, help="claims at once (default: 16)")
    parser.add_argument("--rounds", type=int, default=3, help="times that they claim (default: 3)")
    parser.add_argument(
        "--runs", type=int, default=2000, help="runs of the store that is listed (default: 2000)"
    )
    return parser.parse_args()


def main() -> int:
    args, result, wrong = parse_args(), dict[str, object](), list[str]()
    with tempfile.TemporaryDirectory() as text, s3_server(Path(text)) as bucket:
        folder = Path(text)
        for url in ((folder / "claims").as_uri(), f"{bucket}/claims"):
            taken, seconds = claim_at_once(url, args.processes, args.rounds)
            kind = url.partition(":")[0]
            wrong += [f"{kind}: {problem}" for problem in problems_of(url, dict(taken))]
            numbers = len({number for number, _ in taken})
            wrong += [f"{kind}: a number was given twice"] if numbers < len(taken) else []
            result[f"claims_{kind}"] = {"claims": len(taken), "numbers": numbers, "seconds": seconds}
        fill(folder / "store", folder / "run", args.runs)
        copy_store(folder / "store", f"{bucket}/listed")
        for url in ((folder / "store").as_uri(), f"{bucket}/listed"):
            result[f"listing_{url.partition(':')[0]}"] = measure_listing(url, args.runs)
    print(json.dumps(result | {"wrong": wrong}, indent=2))
    return 1 if wrong else 0


def claim_at_once(url: str, processes: int, rounds: int) -> tuple[list[tuple[int, str]], float]:
    """Return each number that was claimed and the run id, and the seconds that all claims took."""
    started = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        pairs = [pair for _ in range(rounds) for pair in pool.map(partial(claim, url), range(processes), 1)]
    return pairs, round(time.monotonic() - started, 1)


def claim(url: str, index: int) -> tuple[int, str]:
    """Claim the next free number for a new run."""
    run_id = f"run-{index}-{os.getpid()}-{secrets.token_hex(4)}"
    return claim_run(open_store(url), run_id=run_id, key=secrets.token_hex(16), wanted=None).number, run_id


def problems_of(url: str, taken: dict[int, str]) -> Iterator[str]:
    """Yield how the numbers in the store differ from those that the processes were given."""
    store = open_store(url)
    if sorted(taken) != sorted(used_numbers(store)):
        yield f"claimed {sorted(taken)}, in the store {sorted(used_numbers(store))}"
    for number, run_id in taken.items():
        owner = stored_claim_of_number(store, number)
        if owner is None or owner.run_id != run_id:
            yield f"number {number} was given to {run_id} and belongs to {owner}"


def fill(store: Path, run_dir: Path, runs: int) -> None:
    """Store small runs: the newest ones, which are judged, by a sync, the others as copies of the first."""
    store_run(store, run_dir, 1)
    for number in range(2, runs - MOST_JUDGED + 1):
        shutil.copytree(store / "run-1", store / f"run-{number}")
        shutil.copy(store / "metrics/metrics-1.json", store / f"metrics/metrics-{number}.json")
        text = (store / "manifests/run-1-manifest.json").read_text().replace("run-1/", f"run-{number}/")
        text = text.replace("metrics-1.json", f"metrics-{number}.json")
        text = text.replace('"run_number": 1', f'"run_number": {number}')
        (store / f"manifests/run-{number}-manifest.json").write_text(text)
    for number in range(runs - MOST_JUDGED + 1, runs + 1):
        store_run(store, run_dir.with_name(f"run-{number}"), number)


def store_run(store: Path, run_dir: Path, number: int) -> None:
    """Store a small run that succeeded."""
    run = RunDirectory(run_dir)
    run.create()
    run.config_file.write_text("artifacts:\n  store: null\n")
    write_identity(run.run_file, run_dir.name, {"key": secrets.token_hex(16)})
    append_event(run.events_file, "started")
    append_event(run.metrics_file, "metrics", step=100, loss=1.0)
    checkpoint = run.checkpoint(100)
    checkpoint.mkdir()
    (checkpoint / "model.bin").write_bytes(b"x" * 100)
    write_manifest(checkpoint, CheckpointManifest(100, run_dir.name, 0.0, describe_files(checkpoint)))
    write_outcome(run.run_file, {"status": "succeeded", "steps": 100, "exit_code": 0})
    report = sync_run(open_store(store.as_uri()), run, number)
    assert not report.problems, report.problems


def copy_store(folder: Path, url: str) -> None:
    """Put every file of a folder store into the S3 server."""
    store = open_store(url)

    def put(path: Path) -> None:
        assert store.put_new(path.relative_to(folder).as_posix(), path.read_bytes(), metadata={})

    with ThreadPoolExecutor(16) as pool:
        deque(pool.map(put, (path for path in folder.rglob("*") if path.is_file())), maxlen=0)


def measure_listing(url: str, runs: int) -> dict[str, Any]:
    """Return the processor seconds of `store ls` and of one claim of `auto`, and their requests to S3."""
    result: dict[str, Any] = {"runs": runs}
    with counted_requests() as requests:
        before = time.process_time()
        store = open_store(url)
        listed = list_runs(store, used_numbers(store), judge=failing_parts)
        result |= {"ls_cpu_seconds": round(time.process_time() - before, 2), "ls_requests": dict(requests)}
    with counted_requests() as requests:
        before = time.process_time()
        number, _ = claim(url, 0)
        result |= {"auto_cpu_seconds": round(time.process_time() - before, 3)}
        result |= {"auto_requests": dict(requests)}
    assert (len(listed), number) == (runs, runs + 1)
    assert not [problem for run in listed for problem in run.problems]
    return result


@contextmanager
def counted_requests() -> Iterator[Counter[str]]:
    """Yield the number of requests to S3 by operation, of this process while the block runs."""
    found, answer = Counter[str](), Bucket._answer

    def counted(self: Bucket, client: object, operation: str, arguments: dict[str, Any]) -> Any:
        found[operation] += 1
        return answer(self, client, operation, arguments)

    with patch.object(Bucket, "_answer", counted):
        yield found


@contextmanager
def s3_server(folder: Path) -> Iterator[str]:
    """Run SeaweedFS on loopback; yield the address of an empty bucket."""
    weed, names = Path(sys.executable).with_name("weed"), ("master", "volume", "filer", "s3")
    free = iter(free_ports(2 * len(names) + 2))
    ports = {name: next(free) for name in names}
    line = [str(weed), f"-logdir={folder}", "mini", f"-dir={folder}", "-volume.max=1000"]
    line += [
        flag for name in names for flag in (f"-{name}.port={ports[name]}", f"-{name}.port.grpc={next(free)}")
    ]
    line += [
        f"-admin.port={next(free)}",
        f"-admin.port.grpc={next(free)}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
    ]
    line += ["-webdav=false", "-admin.ui=false", "-master.telemetry=false", "-s3.autoCreateBucket=false"]
    line += ["-s3.port.iceberg=0", "-s3.port.lance=0"]
    url = f"http://127.0.0.1:{ports['s3']}"
    os.environ |= {"AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "secret"}
    with (folder / "weed.log").open("wb") as log, subprocess.Popen(line, stdout=log, stderr=log) as server:
        try:
            yield f"s3://{create_bucket(url)}"
        finally:
            server.kill()


def create_bucket(url: str) -> str:
    """Create a bucket as soon as the server is ready, and return its name."""
    from botocore.session import get_session

    client = get_session().create_client("s3", region_name="us-east-1", endpoint_url=url)
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        with suppress(Exception):
            client.create_bucket(Bucket="claims")
            client.put_object(Bucket="claims", Key="ready", Body=b"")
            return "claims"
        time.sleep(0.5)
    raise SystemExit(f"{url}: SeaweedFS is not ready after {_START_SECONDS} s")


def free_ports(count: int) -> list[int]:
    """Return ports of loopback that nothing uses now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


if __name__ == "__main__":
    sys.exit(main())
