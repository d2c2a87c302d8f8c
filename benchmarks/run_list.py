#!/usr/bin/env python3
"""Measure the index of many runs: processor time for 2,000 and for 20,000 runs of a folder, and its page.

The goal is a time in proportion to the number of runs, at most 1 ms a run, and a page below 10 MB.

Reads:   --runs
Writes:  one line for each number on stdout; runs in a temporary folder, some 60 MB
Exit codes: 0 within the goals, 1 not
Example: benchmarks/run_list.py --runs 20000
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

MILLISECONDS, MEGABYTES, FEWER = 1.0, 10.0, 10
ROWS = "".join(json.dumps({"step": step, "loss": 1 + 4 / step}) + "\n" for step in range(1, 31))


def write_run(folder: Path, number: int) -> None:
    """Write the small records of a run that ended, and 30 rows."""
    run = folder / f"run-{number:06d}"
    run.mkdir(parents=True)
    outcome = {"status": "succeeded", "exit_code": 0, "steps": 30, "final_loss": 1 + number / 1e5}
    record = {"schema": 1, "run_id": run.name, "created": 1795800000 + number, "outcome": outcome}
    (run / "run.json").write_text(json.dumps(record))
    (run / "metrics.jsonl").write_text(ROWS)


def seconds_used() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=20_000)
    most, written, is_good = parser.parse_args(argv).runs, 0, True
    with tempfile.TemporaryDirectory() as folder:
        page, runs = Path(folder, "index.html"), Path(folder, "runs")
        for count in (most // FEWER, most):
            for number in range(written, count):
                write_run(runs, number)
            written, before = count, seconds_used()
            command = [sys.executable, "-m", "trainyard", "report", runs, "--output", page]
            subprocess.run(command, check=True)
            seconds, size = seconds_used() - before, page.stat().st_size / 1e6
            each = 1000 * seconds / count
            load = os.getloadavg()[0]
            print(f"{count:,} runs: {seconds:.1f} s, {each:.2f} ms a run, {size:.1f} MB, load {load:.0f}")
            is_good = (each <= MILLISECONDS or count < most) and size <= MEGABYTES
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
