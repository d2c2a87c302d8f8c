#!/usr/bin/env python3
"""Restoring a checkpoint against `s5cmd cp` of the same objects.

Both read from a loopback server in a process of its own that keeps the objects in memory. Ours is all of
`restore`: the manifest is read and judged, each part hashed as it lands, compared and synced to the disk, the
directory renamed at the end. s5cmd lists and copies, and compares nothing. Both take turns, each into a new
directory, on a file system in memory where there is one: a disk would be all that is measured.

Reads:   --rounds, --files, --size-kib (of each file), --s5cmd (a program; else that in PATH), --folder
Writes:  temporary directories; a table on stdout
Exit codes: 0 the goals are met, 1 one is not
Example: benchmarks/artifact_restore.py --rounds 5 --files 8 --size-kib 524288 --s5cmd ~/.venv/bin/s5cmd
"""

import argparse
import re
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

from loopback_store import (
    PEAK_GOAL_MIB,
    Answer,
    Request,
    Sink,
    arguments,
    credentials,
    reply,
    serve,
    write_run,
)
from trainyard.artifacts.restore import restore
from trainyard.artifacts.selection import Selection
from trainyard.artifacts.sync import sync_run
from trainyard.gateways import open_store

GOAL = 1.0


class Keeper(Sink):
    """Keeps all that it is sent, and gives back whole objects and ranges of them."""

    DATA = "nothing of this name"

    def __init__(self) -> None:
        super().__init__()
        self.bodies: dict[str, dict[int, bytes]] = {}

    def _put(self, asked: Request) -> bytes:
        if asked.part:
            self.bodies.setdefault(asked.key, {})[asked.part] = asked.body
        return super()._put(asked)

    def _complete(self, key: str, crc: str) -> str:
        self.small[key] = b"".join(body for _, body in sorted(self.bodies.pop(key).items()))
        self.headers[key] = 'ETag: "x"\r\n'
        return super()._complete(key, crc)

    def _read_back(self, asked: Request) -> Answer:
        if asked.key not in self.small or asked.method != "GET":
            return super()._read_back(asked)
        body, headers, status = memoryview(self.small[asked.key]), self.headers[asked.key], 200
        if wanted := re.fullmatch(r"bytes=(\d+)-(\d*)", asked.fields.get("range", "")):
            start, end = int(wanted[1]), int(wanted[2] or len(body) - 1)
            headers += f"Content-Range: bytes {start}-{min(end, len(body) - 1)}/{len(body)}\r\n"
            body, status = body[start : end + 1], 206
        return [reply(status, length=len(body), headers=headers), body]


def measure(args: argparse.Namespace) -> dict[str, Any]:
    times: dict[str, list[float]] = {"restore": [], "s5cmd": []}
    with tempfile.TemporaryDirectory(dir=args.folder) as name, serve(__file__) as url:
        credentials(url)
        folder, store = Path(name), open_store("s3://bench")
        sync_run(store, write_run(folder / "run", args.files, args.size_kib << 10), 1)
        shutil.rmtree(folder / "run")
        line = [args.s5cmd, "--endpoint-url", url, "cp", "s3://bench/run-1/checkpoint-500/*"]

        def ours(target: Path) -> None:
            assert restore(open_store("s3://bench"), Selection(1), target).files > args.files

        def theirs(target: Path) -> None:
            subprocess.run([*line, f"{target}/"], check=True, stdout=subprocess.DEVNULL)
            assert len(list(target.iterdir())) > args.files

        contenders: dict[str, Callable[[Path], None]] = {"restore": ours, "s5cmd": theirs}
        for number in range(args.rounds + 1):  # the first one warms up
            for who, fetch in contenders.items():
                target, started = folder / f"{who}-{number}", time.perf_counter()
                fetch(target)
                times[who] += [time.perf_counter() - started] if number else []
                shutil.rmtree(target)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"times": times, "peak": peak}


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--folder", default="/dev/shm" if Path("/dev/shm").is_dir() else None)
    args = parser.parse_args()
    if args.serve_sink:
        Keeper().serve()
    if not args.s5cmd:
        parser.error("s5cmd is not found; give --s5cmd")
    result = measure(args)
    medians = {name: statistics.median(values) for name, values in result["times"].items()}
    for name, values in result["times"].items():
        speed = args.files * args.size_kib / 1024 / medians[name]
        print(f"{name:<8} {speed:>6.0f} MiB/s   {min(values):.2f} to {max(values):.2f} s")
    ratio = medians["s5cmd"] / medians["restore"]
    bests = min(result["times"]["s5cmd"]) / min(result["times"]["restore"])
    print(f"ratio {ratio:.2f}, of the bests {bests:.2f}, goal {GOAL}; peak memory {result['peak']:.0f} MiB")
    return 0 if ratio >= GOAL and result["peak"] < PEAK_GOAL_MIB else 1


if __name__ == "__main__":
    sys.exit(main())
