#!/usr/bin/env python3
"""Compare the time of a program that prints many rows, alone and under `trainyard run`, in turns.

Alone, its output goes into a pipe that is read and dropped; under `trainyard run` the time is that from the
start of the program to the outcome on record. Goal: at most 1.5 times as long.

Reads:      --rows N (300,000), --rounds N (3)
Writes:     a line per round and the median ratio, on stdout
Exit codes: 0 met, 1 not met
Example:    benchmarks/printed_rows.py --rows 300000
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

_PROGRAM = """
for step in range({rows}):
    print(f"step {{step}}: loss {{1 + 1 / (step + 1):.4f}}")
"""
_CONFIG = """
recipe: command
program:
  command: [{python}, program.py]
  data: []
"""


def seconds_alone(folder: Path) -> float:
    """Return how long the program takes with its output in a pipe."""
    began = time.monotonic()
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "program.py"]
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        while os.read(process.stdout.fileno(), 1 << 16):
            pass
    return time.monotonic() - began


def seconds_recorded(folder: Path, name: str, rows: int) -> float:
    """Return how long the run takes from its start to its outcome. Raises ValueError without the last row."""
    command = [sys.executable, "-m", "trainyard", "run", "--config", "trainyard.yaml", "--run-dir", name]
    subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    run = json.loads((folder / name / "run.json").read_text())
    last = json.loads((folder / name / "metrics.jsonl").read_text().splitlines()[-1])["step"]
    if last != rows - 1:
        raise ValueError(f"the last step on record is {last:,} of {rows:,}")
    return float(run["outcome"]["seconds"])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args(argv)
    ratios = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "program.py").write_text(_PROGRAM.format(rows=given.rows))
        (folder / "trainyard.yaml").write_text(_CONFIG.format(python=sys.executable))
        for number in range(given.rounds):
            alone = seconds_alone(folder)
            recorded = seconds_recorded(folder, f"run-{number}", given.rows)
            ratios.append(recorded / alone)
            print(f"alone {alone:.1f} s, recorded {recorded:.1f} s: {ratios[-1]:.2f}", flush=True)
    median = statistics.median(ratios)
    print(f"median of {given.rounds}: {median:.2f} (goal 1.5)")
    return int(median > 1.5)


if __name__ == "__main__":
    sys.exit(main())
