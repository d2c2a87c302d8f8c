#!/usr/bin/env python3
"""Run one pod of a job: train, and on the first node store and prove the run when it is done.

    every node     train.py, or run_program.py with --program
    the first one  the same ──> training_artifact_sync.py ──> prove_run.py ──> training_dashboard.py

A job that succeeds is therefore proven; without a store it is only trained. For another program (--program)
only the parts `trained` and `stored` of the proof must hold. A pod that starts again after the training was
done does not train, because its peers have ended and it would wait for them. If the operator does not number
the nodes, the pod whose name ends in -0 is the first one.

Reads:      the configuration; the operator's variables (PET_NODE_RANK and others); TRAINYARD_POD
Writes:     the run directory, the store and the proof, through these scripts
Exit codes: that of the first script that does not end with 0: 1 training failed or is not proven; 2 wrong
            configuration; 4 the store refused; 75 stopped, the same pod resumes when it is started again
Example:    scripts/run_pod.py --config /etc/trainyard/config.yaml --run-dir /checkpoints/llama --grace 285s
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainyard.command import arguments, handler, output
from trainyard.command.parser import script_parser
from trainyard.errors import ExitCode, TrainyardError

HERE = Path(__file__).resolve().parent
OUTCOME_SECONDS = 120.0


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__, reads_config=True)
    parser.add_argument(
        "--run-dir", type=arguments.path, required=True, metavar="DIR", help="directory of the run"
    )
    parser.add_argument(
        "--nproc-per-node", type=arguments.processes, metavar="N", help="processes of this pod"
    )
    program = "another program than the trainer: the JSON that the plan wrote"
    parser.add_argument("--program", type=arguments.path, metavar="FILE", help=program)
    grace = "from SIGTERM to the end of the pod; default: 30s"
    parser.add_argument("--grace", type=arguments.duration, default="30s", metavar="DURATION", help=grace)
    parser.add_argument("--dry-run", action="store_true", help="print the commands, run nothing")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)
    from trainyard.config.load import config_sha256, load_config
    from trainyard.gateways.job_files import place_files
    from trainyard.run.launch_environment import is_first_node

    if not args.dry_run:
        place_files(os.environ)
    config = load_config(args.config, args.set).config
    store = config.artifacts.store
    train = [] if is_trained(args.run_dir, config_sha256(config)) else training_command(args)
    after = commands_after(args, store) if store and is_first_node(os.environ) else []
    if args.dry_run:
        output.print_json({"commands": [command for command in (train, *after) if command]})
        return ExitCode.DONE
    if train:
        tell_short_grace(args.run_dir, args.grace)
    return run_in_order(train, after, args.run_dir)


def tell_short_grace(run_dir: Path, grace: float) -> None:
    """Warn when a stop of this run took longer before than this pod has from a signal to its end."""
    from trainyard.jobs.recipes.wrapped_program import grace_seconds
    from trainyard.run.identity import grace_needed

    needed = grace_needed(run_dir)
    if needed > grace:
        text = (
            f"a stop of this run takes up to {needed:,.0f} s (its slowest step and its saves), and the "
            f"trainer is killed {grace:,.0f} s after a signal; deploy the job again with "
            f"cluster.pod.grace_seconds={grace_seconds(1.5 * needed)}, or save more often"
        )
        output.announce("grace", text, "degraded")


def is_trained(run_dir: Path, digest: str) -> bool:
    """Return whether this configuration was trained to its end in `run_dir`."""
    run = record_of(run_dir)
    return run.get("config_sha256") == digest and run.get("outcome", {}).get("status") == "succeeded"


def record_of(run_dir: Path) -> dict[str, Any]:
    """Return the content of `run.json`; empty when it is missing or damaged."""
    from trainyard.run.identity import read_run

    try:
        return read_run(run_dir / "run.json")
    except (OSError, TrainyardError):
        return {}


def training_command(args: argparse.Namespace) -> list[str]:
    changes = [word for change in args.set for word in ("--set", change)]
    processes = ["--nproc-per-node", str(args.nproc_per_node)] if args.nproc_per_node else []
    if args.program:
        program = [sys.executable, str(HERE / "run_program.py"), "--program", str(args.program)]
        place = ["--config", str(args.config), *changes, "--run-dir", str(args.run_dir)]
        return [*program, *place, "--grace", f"{args.grace:.3f}s", *processes]
    return [
        *(sys.executable, str(HERE / "train.py"), "--config", str(args.config), *changes),
        *("--run-dir", str(args.run_dir), "--resume", "auto", "--grace", f"{args.grace:.3f}s", *processes),
    ]


def commands_after(args: argparse.Namespace, store: str) -> list[list[str]]:
    """Return the commands that store and prove the run, in order."""
    run = ["--run-dir", str(args.run_dir)]
    stored = [*run, "--store", store, "--run-number", "auto"]
    only = ["--only", "trained,stored"] if args.program else []
    return [
        [sys.executable, str(HERE / "training_artifact_sync.py"), *stored, "--once"],
        [sys.executable, str(HERE / "prove_run.py"), *stored, *only],
        [sys.executable, str(HERE / "training_dashboard.py"), str(args.run_dir), "--write"],
    ]


def run_in_order(train: list[str], after: Sequence[list[str]], run_dir: Path) -> int:
    """Run the commands in order until one fails; return its exit code, else 0."""
    from trainyard.gateways.process import run_passing_signals

    code = run_passing_signals(train) if train else ExitCode.DONE
    if code == ExitCode.DONE and after:
        wait_for_outcome(run_dir)
    for command in after:
        if code != ExitCode.DONE:
            break
        code = run_passing_signals(command)
    return code


def wait_for_outcome(run_dir: Path) -> None:
    """Wait until the main process, which may be in another pod, has written how the run ended."""
    deadline = time.monotonic() + OUTCOME_SECONDS
    while time.monotonic() < deadline and "outcome" not in record_of(run_dir):
        time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(handler.exit_code_of(main))
