#!/usr/bin/env python3
"""Kill `make train` with SIGKILL at random moments, `make resume`, and compare with a run left alone.

The moments are drawn over the whole pipeline: installing is done before, then checking, preparing, training,
saving, validating, storing and proving. At the end the weights, the optimizer and every loss must be equal to
the bit.

Reads:      the Makefile of this tree; its environment must be there (make install)
Writes:     temporary runs and stores; with --json the figures on stdout
Exit codes: 0 equal, 1 not equal
Example:    benchmarks/kill_resume.py --kills 20 --set training.max_steps=200
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HOUSE = Path(__file__).resolve().parent.parent
DEFAULT = ["training.max_steps=200", "checkpointing.save_steps=10", "training.validation_steps=50"]


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1, help="of the moments")
    parser.add_argument("--earliest", type=float, default=2.0, help="seconds from start to kill at least")
    parser.add_argument("--latest", type=float, default=12.0, help="seconds from start to kill at most")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    moments = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        start = time.monotonic()
        whole = make("train", folder / "whole", args.set)
        assert whole.wait() == 0, "the run that nobody disturbed failed"
        alone = time.monotonic() - start
        kills = kill_until_done(folder, args, moments)
        a, b = (numbers(next((folder / name).iterdir())) for name in ("whole", "killed"))
        result = {"kills": kills, "seconds_alone": round(alone, 1), "equal": a == b, "rows": len(a["rows"])}
    print(
        json.dumps(result) if args.json else "\n".join(f"{key:16} {value}" for key, value in result.items())
    )
    return 0 if result["equal"] and kills >= args.kills else 1


def kill_until_done(folder: Path, args: argparse.Namespace, moments: random.Random) -> int:
    """Start, kill, go on: `args.kills` times, then let it end. Returns how many were killed in time."""
    kills, target = 0, "train"
    while True:
        process = make(target, folder / "killed", args.set)
        if kills < args.kills:
            try:
                process.wait(moments.uniform(args.earliest, args.latest))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                kills += 1
        code = process.wait()
        if (folder / "killed").is_dir() and any((folder / "killed").iterdir()):
            target = "resume"
        if code == 0:
            return kills
        assert code in (-signal.SIGKILL, 2), f"make ended with {code}"


def make(target: str, runs: Path, overrides: Sequence[str]) -> "subprocess.Popen[bytes]":
    settings = " ".join([*DEFAULT, *overrides])
    words = ["make", target, f"RUNS={runs}", f"STORE=file://{runs}-store", f"SET={settings}"]
    return subprocess.Popen(words, cwd=HOUSE, start_new_session=True, stderr=subprocess.DEVNULL)


def numbers(run: Path) -> dict[str, Any]:
    """Everything of a run that must repeat to the bit."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {
        "state": json.loads((run / "run.json").read_text())["outcome"]["state_sha256"],
        "rows": [(row["step"], row["loss"], row["grad_norm"], row.get("val_loss")) for row in rows],
    }


if __name__ == "__main__":
    sys.exit(main())
