#!/usr/bin/env python3
"""Measure what the observer costs a training step: tiny steps, observed and not, in turns.

A loop of `zero_grad`, forward, `backward` and `step` of one linear layer runs in processes that are started
as `trainyard run` starts a program, half of them with `program.observe: false`. Importing torch and the first
steps, which report the machine and have a row each, do not count.

Reads:      nothing
Writes:     a temporary folder; the figures on stdout (--json: as JSON)
Exit codes: 0 the goal is met, 1 it is not
Example:    benchmarks/observer_overhead.py --steps 100000 --rounds 3
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from trainyard.programs.program import Program, ProgramLaunch
from trainyard.run.directory import RunDirectory
from trainyard.run.launch_environment import NodeLauncher

GOAL = 30.0
"""Most microseconds a step."""
LOOP = """
import sys, time, torch
torch.set_num_threads(1)
steps = int(sys.argv[1])
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
x = torch.randn(8, 4)
def step():
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()
for _ in range(500):
    step()
began = time.process_time()
for _ in range(steps):
    step()
print((time.process_time() - began) / steps * 1e6)
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=100_000, help="of each process")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each kind, in turns")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    times: dict[bool, list[float]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as text:
        for number in range(args.rounds):
            for observe in (True, False) if number % 2 else (False, True):
                times[observe].append(microseconds(Path(text), args.steps, observe=observe))
                print(f"{'observed' if observe else 'alone'}: {times[observe][-1]:.1f} µs", file=sys.stderr)
    observed, alone = statistics.median(times[True]), statistics.median(times[False])
    figures = {"observed": observed, "alone": alone, "difference": observed - alone, "goal": GOAL}
    print(json.dumps(figures) if args.json else "\n".join(f"{k:<12}{v:6.1f} µs" for k, v in figures.items()))
    return 0 if observed - alone <= GOAL else 1


def microseconds(folder: Path, steps: int, *, observe: bool) -> float:
    """Return the processor time of a step in microseconds, which other programs hardly change."""
    words = (sys.executable, "-c", LOOP, str(steps))
    directory = RunDirectory(folder)
    directory.logs.mkdir(exist_ok=True)
    program = Program("command", words, folder, observe=observe)
    added = ProgramLaunch(program, directory, NodeLauncher(1, 0, 1)).environment(None)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **added}
    done = subprocess.run(words, cwd=folder, env=environment, check=True, capture_output=True, text=True)
    return float(done.stdout)


if __name__ == "__main__":
    sys.exit(main())
