#!/usr/bin/env python3
"""Measure what `--follow` costs training: one run, whose follower works in every second save interval only.

The shipped trainer trains `configs/smoke.yaml` in this process and saves at the end of each interval. The
follower is the shipped script in its own process; it sends every checkpoint to a loopback server that reads
and discards (`paced_store.py`). All share the processors of this machine, as on a small runner. In the other
intervals SIGSTOP pauses the follower, so it has twice the work in its own ones. Neighbouring intervals are
compared, because a shared machine's speed changes by more than a follower costs.

Reads:      the embedded corpus; TRAINYARD_PACED_STORE
Writes:     a temporary run directory; with --json the figures on stdout
Exit codes: 0 the goal is met, 1 it is not
Example:    benchmarks/follow_cost.py --pairs 20
"""

import argparse
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paced_store import serving

HOUSE = Path(__file__).resolve().parent.parent
GOAL = 0.02
"""The largest share of training time that a follower may cost."""
WARM_UP = 2
"""Intervals that are not measured, while the follower starts."""


class Intervals:
    """A listener that pauses the follower in every second interval."""

    def __init__(self, steps: int, follower: int) -> None:
        self.seconds: list[float] = []
        """The duration of each interval that has ended."""
        self._steps, self._follower, self._start = steps, follower, time.perf_counter()

    def on_row(self, row: dict[str, Any]) -> None:
        if row["step"] % self._steps == 0:
            now = time.perf_counter()
            self.seconds.append(now - self._start)
            self._start = now
            number = len(self.seconds)
            held = number >= WARM_UP and number % 2 == 1
            os.kill(self._follower, signal.SIGSTOP if held else signal.SIGCONT)

    def on_event(self, event: str, fields: dict[str, Any]) -> None: ...


def intervals(count: int, steps: int, store: str) -> tuple[list[float], int]:
    """Train; return the seconds of each interval, and the number of checkpoints that the follower stored."""
    from trainyard.config.load import load_config
    from trainyard.run.directory import RunDirectory
    from trainyard.training.data.tokenize_corpus import prepare_data
    from trainyard.training.loop import train
    from trainyard.training.run.run_context import Request
    from trainyard.training.runtime.stop_signals import StopRequest

    overrides = [f"training.max_steps={count * steps}", "model.device=cpu", "training.validation_steps=null"]
    overrides += [f"checkpointing.save_steps={steps}", "monitoring.log_steps=1"]
    config = load_config(HOUSE / "configs" / "smoke.yaml", overrides).config
    data = prepare_data(config.data, config.model)
    with tempfile.TemporaryDirectory() as folder:
        directory = RunDirectory(Path(folder) / "run")
        script = [sys.executable, str(HOUSE / "scripts" / "training_artifact_sync.py"), "--json"]
        line = [*script, "--follow", "--run-dir", str(directory.path), "--store", store]
        follower = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        listener = Intervals(steps, follower.pid)
        try:
            request = Request(config, directory, data, "none", "benchmark", {})
            train(request, stop=StopRequest(), listener=listener)
        finally:
            follower.send_signal(signal.SIGCONT)
            said, _ = follower.communicate(timeout=120)
    return listener.seconds, int(json.loads(said)["checkpoints"])


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=15, help="of an interval with and one without")
    parser.add_argument("--steps", type=int, default=20, help="of an interval")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    os.chdir(HOUSE)
    with serving("-discard"):
        # The last interval includes the end of the run.
        seconds, stored = intervals(WARM_UP + 2 * args.pairs + 1, args.steps, "s3://bench/1")
        used = resource.getrusage(resource.RUSAGE_CHILDREN)  # the server has not ended yet
    measured = seconds[WARM_UP:-1]
    pairs = list(zip(measured[::2], measured[1::2], strict=True))
    # The follower does its complete work in half of the intervals.
    costs = [(beside / alone - 1) / 2 for beside, alone in pairs]
    middle = statistics.quantiles(costs, n=4)
    result = {
        "interval_seconds": round(statistics.median(alone for _, alone in pairs), 2),
        "median_cost": round(statistics.median(costs), 4),
        "middle_half": [round(middle[0], 4), round(middle[2], 4)],
        "cost_of_all": round((sum(beside for beside, _ in pairs) / sum(a for _, a in pairs) - 1) / 2, 4),
        "checkpoints_stored_meanwhile": stored,
        "processor_seconds_of_the_follower": round(used.ru_utime + used.ru_stime, 2),
        "goal": GOAL,
    }
    print(
        json.dumps(result) if args.json else "\n".join(f"{key:34} {value}" for key, value in result.items())
    )
    return 0 if result["median_cost"] <= GOAL and stored else 1


if __name__ == "__main__":
    sys.exit(main())
