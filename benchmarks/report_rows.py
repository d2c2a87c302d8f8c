#!/usr/bin/env python3
"""Measure the HTML report of a run with a million rows: processor time, memory, and whether a spike stays.

Goals: 5 s of processor time and 300 MB. Both grow on a busy machine, whose load is printed.

Reads:   --rows
Writes:  one line on stdout; a run in a temporary folder, some 580 MB
Exit codes: 0 within the goals, 1 not, or the spike is missing in the page
Example: benchmarks/report_rows.py --rows 1000000
"""

import argparse
import json
import math
import os
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

SECONDS, MEGABYTES = 5.0, 300
SPIKE = 61.25
REPORT = Path(__file__).resolve().parent.parent / "scripts" / "training_dashboard.py"


def write_rows(path: Path, count: int) -> None:
    """Write rows as a GPU run has them; one in a thousand has a validation loss, one a spike."""
    drawn = random.Random(0)
    with path.open("w") as file:
        for step in range(1, count + 1):
            row = {"step": step, "epoch": step / 1e5, "loss": 10 / (1 + step / 1e4) + drawn.random() / 10}
            row |= {"learning_rate": 3e-4 * math.cos(step / count), "grad_norm": drawn.random()}
            row |= {"tokens": step * 4096, "samples": step * 16, "mfu": 0.4 + drawn.random() / 100}
            row |= {"tokens_per_second": 41000 + drawn.random(), "samples_per_second": 160 + drawn.random()}
            row |= {"step_seconds": 0.1 + drawn.random() / 100, "data_seconds": 0.001}
            row |= {"forward_seconds": 0.04 + drawn.random() / 1000, "backward_seconds": 0.05}
            row |= {"optimizer_seconds": 0.005, "gpu_memory_bytes": 22_100_000_000}
            row |= {"gpu_memory_total_bytes": 80_000_000_000, "gpu_utilization_percent": 94}
            row |= {"gpu_temperature_celsius": 68, "time": 1795800000 + step / 10}
            if step % 1000 == 0:
                row["val_loss"] = row["loss"]
            if step == count // 2:
                row["loss"] = SPIKE
            file.write(json.dumps(row) + "\n")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        run, page = Path(folder, "run"), Path(folder, "page.html")
        run.mkdir()
        record = {"schema": 1, "run_id": "rows", "started": 1795800000.0, "plan": {"steps": args.rows}}
        (run / "run.json").write_text(json.dumps(record))
        write_rows(run / "metrics.jsonl", args.rows)
        subprocess.run([sys.executable, REPORT, run, "--output", page], check=True)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        has_spike = str(SPIKE) in page.read_text()
    seconds, megabytes = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
    load = os.getloadavg()[0]
    print(f"{args.rows:,} rows: {seconds:.1f} s, {megabytes:.0f} MB, spike {has_spike}, load {load:.1f}")
    return 0 if has_spike and seconds <= SECONDS and megabytes <= MEGABYTES else 1


if __name__ == "__main__":
    sys.exit(main())
