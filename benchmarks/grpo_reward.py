#!/usr/bin/env python3
"""Train `configs/grpo.yaml` and measure how much the reward rises from the first steps to the last.

Reads:      configs/grpo.yaml of this tree
Writes:     a temporary run; with --json the figures on stdout
Exit codes: 0 the mean reward of the last twenty steps exceeds that of the first twenty by --least, 1 not
Example:    benchmarks/grpo_reward.py --set compute.threads=1
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HOUSE = Path(__file__).resolve().parent.parent
STEPS = 20
FIGURES = ("reward", "accuracy", "kl", "entropy", "completion_length", "step_seconds")


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--least", type=float, default=0.2, help="the least rise of the mean reward")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        train(run, [f"--set={value}" for value in args.set])
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        outcome = json.loads((run / "run.json").read_text())["outcome"]
    first, last = means(rows[:STEPS]), means(rows[-STEPS:])
    result = {"steps": len(rows), "seconds": outcome["seconds"], "first": first, "last": last}
    print(json.dumps(result, indent=2) if args.json else text(result))
    return 0 if last["reward"] - first["reward"] >= args.least else 1


def train(run: Path, overrides: Sequence[str]) -> None:
    script, config = HOUSE / "scripts" / "train.py", HOUSE / "configs" / "grpo.yaml"
    line = [sys.executable, script, "--config", config, "--run-dir", run, *overrides]
    subprocess.run(line, check=True, cwd=HOUSE)


def means(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The mean of each figure that all rows have."""
    known = [name for name in FIGURES if all(name in row for row in rows)]
    return {name: round(sum(row[name] for row in rows) / len(rows), 3) for name in known}


def text(result: dict[str, Any]) -> str:
    lines = [f"{result['steps']} steps in {result['seconds']:.0f} s"]
    first, last = result["first"], result["last"]
    lines += [f"{name:18} {first[name]:8.3f} → {last[name]:.3f}" for name in first]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
