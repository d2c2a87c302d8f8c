#!/usr/bin/env python3
"""Time `--help` of every script against `python -c pass` in the same run. Goal: under 0.25 s each.

The two alternate, so that a busy machine slows both; medians are compared.

Reads:   scripts/*.py; --rounds
Writes:  one line per script on stdout
Exit codes: 0 every script is under the limit, 1 one is not
Example: benchmarks/script_start.py --rounds 9
"""

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

SCRIPTS = sorted((Path(__file__).resolve().parent.parent / "scripts").glob("*.py"))
LIMIT_SECONDS = 0.25


def seconds_of(arguments: list[str]) -> float:
    """Wall time of one start of the interpreter."""
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True, timeout=60)
    return time.perf_counter() - start


def measure(script: Path, rounds: int) -> tuple[float, float]:
    """Median seconds of `--help` and of an interpreter that does nothing, taken in turns."""
    pairs = [(seconds_of([str(script), "--help"]), seconds_of(["-c", "pass"])) for _ in range(rounds)]
    ours, bare = zip(*pairs, strict=True)
    return statistics.median(ours), statistics.median(bare)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    slowest = 0.0
    for script in SCRIPTS:
        ours, bare = measure(script, rounds)
        slowest = max(slowest, ours)
        print(f"{script.name:<32} {ours:.3f} s   python -c pass {bare:.3f} s   ratio {ours / bare:.1f}")
    print(f"slowest {slowest:.3f} s, limit {LIMIT_SECONDS} s")
    return 0 if slowest < LIMIT_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
