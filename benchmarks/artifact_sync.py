#!/usr/bin/env python3
"""Syncing a checkpoint against `s5cmd cp`, `aws s3 cp` and boto3's upload_file of the same files.

All send to a loopback server in a process of its own that reads and throws away the checkpoint's bytes.
Ours is the whole of `sync_run`: the number is claimed, every byte is read and compared with what the manifest
of the checkpoint says (the BLAKE3 of its part), each object goes with a checksum that the store confirms,
metrics and records go too, the run's manifest last; and once more, with nothing changed. The others are as
they come, aws and s5cmd in a process of their own, and left out where they are not found. All take turns;
each sends to a new place.

Reads:   --rounds, --files, --size-kib (of each file), --sparse, --s5cmd and --aws (else those in PATH)
Writes:  a temporary checkpoint; a table, or JSON, on stdout
Exit codes: 0 the goals are met, 1 one is not
Example: benchmarks/artifact_sync.py --rounds 5 --files 8 --size-kib 524288 --s5cmd ~/.venv/bin/s5cmd
"""

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loopback_store import MIB, PEAK_GOAL_MIB, Sink, arguments, credentials, serve, write_run
from trainyard.artifacts.sync import sync_run
from trainyard.gateways import open_store
from trainyard.run.directory import RunDirectory

GOALS = {"s5cmd": 1.1, "aws": 2.5, "upload_file": 2.0}
"""How many times as fast as each."""
SMALL_GOALS = {"s5cmd": 1.0}
"""For files of less than a MiB."""
AGAIN_GOAL_SECONDS = 1.0
"""For each 1,000 objects of an unchanged second sync."""
STEADY = 1.2
"""Medians further than this from the bests were disturbed by other work on the machine: measure again."""


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
    if s5cmd := args.s5cmd:
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
    parser = arguments(__doc__)
    parser.add_argument("--sparse", action="store_true", help="files of nothing, which take no room here")
    parser.add_argument("--aws")
    parser.add_argument("--json", action="store_true")
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
