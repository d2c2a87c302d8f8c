#!/usr/bin/env python3
"""Measure how fast NCCL's logs are judged, against `grep -c NCCL` and a loop over lines, in the same run.

Three logs of one size: a process's own NCCL log, the same lines as a collector of logs prefixes them, and a
training log in which one line in fifty is NCCL's. Each reader takes them in turn; the table has the best
round, in MB for each second of processor time.

Reads:      nothing
Writes:     the figures on stdout; the logs in a temporary folder
Exit codes: 0 the goal of 200 MB/s is met for each log, 1 it is not
Example:    benchmarks/network_log.py --megabytes 100
"""

import argparse
import itertools
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

GOAL = 200.0
"""MB/s of log."""
CHANNELS, NICS, RANKS = 32, 32, 64


def nccl_lines() -> Iterator[str]:
    """The lines of a process that joins one communicator after another."""
    for communicator in itertools.count():
        head = f"ip-10-0-0-7:4021:{4100 + communicator} [3] NCCL INFO "
        yield f"{head}Bootstrap: Using eth0:10.0.0.7<0>\n"
        yield f"{head}NET/OFI Selected provider is efa, fabric is efa-direct (found {NICS} nics)\n"
        yield (
            f"{head}ncclCommInitRankConfig comm 0x5{communicator:x} rank 3 nRanks {RANKS} nNodes 8 "
            f"localRanks 8 localRank 3 commId 0xabc{communicator:x} - Init COMPLETE\n"
        )
        for peer, channel in itertools.product(range(11, RANKS, 8), range(CHANNELS)):
            end = f"NET/Libfabric/{channel % NICS}(3)/GDRDMA/Shared comm 0x5{communicator:x} nRanks {RANKS}"
            yield f"{head}Channel {channel:02}/0 : {peer}[3] -> 3[3] [receive] via {end}\n"
            yield f"{head}Channel {channel:02}/0 : 3[3] -> {peer}[3] [send] via {end}\n"
            yield f"{head}Channel {channel:02}/0 : 3[3] -> 4[4] via P2P/CUMEM\n"
        yield f"{head}Connected all rings, use ring PXN 0 GDR 1\n"


def prefixed_lines() -> Iterator[str]:
    for number, line in enumerate(nccl_lines()):
        seconds, milliseconds = divmod(number, 1000)
        yield f"2026-11-26T10:{seconds // 60 % 60:02}:{seconds % 60:02}.{milliseconds:03}Z stdout F {line}"


def mixed_lines() -> Iterator[str]:
    for number, line in enumerate(nccl_lines()):
        for step in range(49 * number, 49 * number + 49):
            clock = f"{step // 3600:02}:{step // 60 % 60:02}:{step % 60:02}"
            yield f"{clock} INFO  step {step} loss 2.8714 tokens/s 41,220\n"
        yield line


LOGS = {"NCCL's own": nccl_lines, "NCCL's, prefixed": prefixed_lines, "training log": mixed_lines}


def write_log(path: Path, lines: Iterator[str], size: int) -> None:
    with path.open("w") as file:
        while file.tell() < size:
            file.writelines(itertools.islice(lines, 10_000))


def judge(path: Path) -> None:
    from trainyard.watch.network_record import read_facts

    facts = read_facts([path])
    assert facts.processes == 1 and facts.channels["efa+"] > 1000, facts


def read_lines(path: Path) -> None:
    with path.open("rb") as file:
        sum(b"NCCL" in line for line in file)


def grep(path: Path) -> None:
    subprocess.run(["grep", "-c", "NCCL", path], stdout=subprocess.PIPE, check=True)


def processor_seconds() -> float:
    """Return the processor time of this process and of its children that have ended."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


READERS: dict[str, Callable[[Path], None]] = {"judged": judge, "lines in Python": read_lines, "grep -c": grep}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=100, help="of each log")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, lines in LOGS.items():
            path = Path(folder) / "log"
            write_log(path, lines(), args.megabytes * 10**6)
            size = path.stat().st_size / 1e6
            best = dict.fromkeys(READERS, float("inf"))
            for _ in range(args.rounds):
                for reader, read in READERS.items():
                    started = processor_seconds()
                    read(path)
                    best[reader] = min(best[reader], processor_seconds() - started)
            found[name] = {reader: round(size / seconds, 1) for reader, seconds in best.items()}
    for name, speeds in found.items():
        speeds["to lines in Python"] = round(speeds["judged"] / speeds["lines in Python"], 2)
        if not args.json:
            print(f"{name:18}", ", ".join(f"{reader} {value}" for reader, value in speeds.items()))
    if args.json:
        print(json.dumps(found))
    return 0 if all(speeds["judged"] >= GOAL for speeds in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
