#!/usr/bin/env python3
"""Time `--help` of every script, and a job of 128 nodes rendered and linted, from start to end.

Goals: under 0.25 s for each `--help`, under 0.3 s for the job. `python -c pass` alternates with them in the
same run, so that a busy machine slows both; medians are compared.

Reads:   scripts/*.py; --rounds
Writes:  one line for the job and for each script, and the slowest, on stdout
Exit codes: 0 all are under their limits, 1 one is not
Example: benchmarks/script_start.py --rounds 9
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

SCRIPTS = sorted((Path(__file__).resolve().parent.parent / "scripts").glob("*.py"))
LIMIT_SECONDS = 0.25
JOB_LIMIT_SECONDS = 0.3
JOB = (
    *(str(SCRIPTS[0].parent / "deploy_training_job.py"), "--dry-run", "--kind", "pytorchjob"),
    *("--config", str(SCRIPTS[0].parent.parent / "configs" / "training_configuration.yaml")),
    *("--num-nodes", "128", "--instance-type", "p5.48xlarge", "--set", "compute.strategy=fsdp"),
    *("--volume", "checkpoints", "--namespace", "research"),
    *("--image-uri", f"123456789012.dkr.ecr.us-west-2.amazonaws.com/training@sha256:{'a' * 64}"),
)


def seconds_of(arguments: list[str]) -> float:
    """Wall time of one start of the interpreter."""
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True, timeout=60)
    return time.perf_counter() - start


def measure(arguments: Sequence[str], rounds: int) -> tuple[float, float]:
    """Median seconds of a script and of an interpreter that does nothing, taken in turns."""
    pairs = [(seconds_of([*arguments]), seconds_of(["-c", "pass"])) for _ in range(rounds)]
    ours, bare = zip(*pairs, strict=True)
    return statistics.median(ours), statistics.median(bare)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    job, bare = measure(JOB, rounds)
    print(f"{'128 nodes, rendered and linted':<32} {job:.3f} s   python -c pass {bare:.3f} s")
    slowest = 0.0
    for script in SCRIPTS:
        ours, bare = measure([str(script), "--help"], rounds)
        slowest = max(slowest, ours)
        print(f"{script.name:<32} {ours:.3f} s   python -c pass {bare:.3f} s   ratio {ours / bare:.1f}")
    print(f"slowest --help {slowest:.3f} s, limit {LIMIT_SECONDS} s; job limit {JOB_LIMIT_SECONDS} s")
    return 0 if slowest < LIMIT_SECONDS and job < JOB_LIMIT_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
