#!/usr/bin/env python3
"""What `--follow` costs training: the same run, with and without a follower beside it, in turns.

The shipped trainer trains `configs/smoke.yaml` in this process and saves often. The follower is the shipped
script in a process of its own, which brings every checkpoint to a loopback server that reads and discards.
All share the processors of this machine, as on a small runner.

Reads:      nothing but the embedded corpus
Writes:     temporary run directories; with --json the figures on stdout
Exit codes: 0 the goal is met, 1 it is not
Example:    benchmarks/follow_cost.py --rounds 5
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from artifact_sync import credentials, serve

HOUSE = Path(__file__).resolve().parent.parent
GOAL = 0.02
"""The share of the time of training that a follower may cost."""
WARM_UP = 5
"""Steps that are not measured."""


class Clock:
    """Hears of every row."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def on_row(self, _row: dict[str, Any]) -> None:
        self.at.append(time.perf_counter())

    def on_event(self, event: str, fields: dict[str, Any]) -> None: ...


def seconds_of(steps: int, save_steps: int, store: str) -> tuple[float, int]:
    """What the steps of one run take, and the checkpoints stored meanwhile by a follower; "" is without."""
    from trainyard.config.load import load_config
    from trainyard.run.directory import RunDirectory
    from trainyard.training.segment import Request
    from trainyard.training.session import train
    from trainyard.training.stop import StopRequest
    from trainyard.training.tokens import prepare_data

    overrides = [f"training.max_steps={steps}", "model.device=cpu", "training.validation_steps=null"]
    overrides += [f"checkpointing.save_steps={save_steps}", "monitoring.log_steps=1"]
    config = load_config(HOUSE / "configs" / "smoke.yaml", overrides).config
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        directory = RunDirectory(Path(folder) / "run")
        script = [sys.executable, str(HOUSE / "scripts" / "training_artifact_sync.py"), "--json"]
        line = [*script, "--follow", "--run-dir", str(directory.path), "--store", store]
        follower = (
            subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) if store else None
        )
        request = Request(config, directory, prepare_data(config.data, config.model), "none", "benchmark", {})
        train(request, stop=StopRequest(), listener=clock)
        stored = 0
        if follower is not None:
            said, _ = follower.communicate(timeout=120)
            stored = int(json.loads(said)["checkpoints"])
    return clock.at[-2] - clock.at[WARM_UP], stored  # the last row waits for the validation at the end


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="runs of each, in turns")
    parser.add_argument("--steps", type=int, default=100, help="steps a run")
    parser.add_argument("--save-steps", type=int, default=20, help="steps between two checkpoints")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    os.chdir(HOUSE)
    alone, followed, stored = [], [], 0
    with serve(str(HOUSE / "benchmarks" / "artifact_sync.py")) as url:
        credentials(url)
        for number in range(args.rounds):
            alone.append(seconds_of(args.steps, args.save_steps, "")[0])
            taken, count = seconds_of(args.steps, args.save_steps, f"s3://bench/{number}")
            followed.append(taken)
            stored += count
        used = resource.getrusage(resource.RUSAGE_CHILDREN)  # the server has not ended yet
    costs = [with_one / without - 1 for with_one, without in zip(followed, alone, strict=True)]
    result = {
        "alone_seconds": round(statistics.median(alone), 2),
        "followed_seconds": round(statistics.median(followed), 2),
        "median_cost": round(statistics.median(costs), 3),
        "spread": [round(min(costs), 3), round(max(costs), 3)],
        "cost_of_bests": round(min(followed) / min(alone) - 1, 3),
        "checkpoints_stored_meanwhile": stored,
        "processor_seconds_of_a_follower": round((used.ru_utime + used.ru_stime) / args.rounds, 2),
        "goal": GOAL,
    }
    print(
        json.dumps(result) if args.json else "\n".join(f"{key:30} {value}" for key, value in result.items())
    )
    return 0 if result["median_cost"] <= GOAL and stored else 1


if __name__ == "__main__":
    sys.exit(main())
