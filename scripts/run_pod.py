#!/usr/bin/env python3
"""Run one pod of a job: train, and on the first node store and prove the run when it is done.

    every node     train.py, or run_program.py with --program
    the first one  the same ──> training_artifact_sync.py ──> prove_run.py ──> training_dashboard.py

A job that succeeds has therefore been proven. Without a store, it has only been trained. Of another program
(--program) only `trained` and `stored` must hold: what else is not proven, the proof says. A pod that starts
again after the training was done does not train: its peers have ended, and it would wait for them. Where the
operator does not number the nodes, the pod whose name ends in -0 is the first one.

Reads:      the configuration; the operator's variables (PET_NODE_RANK and others); TRAINYARD_POD
Writes:     what these scripts write: the run directory, the store, its proof
Exit codes: that of the first script that does not end with 0: 1 training failed or is not proven; 2 wrong
            configuration; 4 the store refused; 75 stopped, the same pod goes on when it is started again
Example:    scripts/run_pod.py --config /etc/trainyard/config.yaml --run-dir /checkpoints/llama --grace 285s
"""

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from trainyard.command import arguments, handler, output
from trainyard.command.parser import script_parser
from trainyard.errors import ExitCode

HERE = Path(__file__).resolve().parent
RANKS = ("PET_NODE_RANK", "NODE_RANK", "JOB_COMPLETION_INDEX", "RANK")
OUTCOME_SECONDS = 120.0


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__, reads_config=True)
    parser.add_argument("--run-dir", type=arguments.path, required=True, metavar="DIR", help="of the run")
    parser.add_argument(
        "--nproc-per-node", type=arguments.processes, metavar="N", help="processes of this pod"
    )
    program = "another program than the trainer, as a plan has it"
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

    if not args.dry_run:
        place_files(os.environ)
    config = load_config(args.config, args.set).config
    store = config.artifacts.store
    train = [] if is_trained(args.run_dir, config_sha256(config)) else training_command(args)
    after = commands_after(args, store) if store and is_first_node(os.environ) else []
    if args.dry_run:
        output.print_json({"commands": [command for command in (train, *after) if command]})
        return ExitCode.DONE
    return run_in_order(train, after, args.run_dir, another=args.program is not None)


def is_trained(run_dir: Path, digest: str) -> bool:
    """Return whether this configuration was trained to its end in `run_dir`."""
    try:
        run = json.loads((run_dir / "run.json").read_bytes())
        return bool(run["config_sha256"] == digest and run["outcome"]["status"] == "succeeded")
    except (OSError, ValueError, KeyError, TypeError):
        return False


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
    return [
        [sys.executable, str(HERE / "training_artifact_sync.py"), *stored, "--once"],
        [sys.executable, str(HERE / "prove_run.py"), *stored],
        [sys.executable, str(HERE / "training_dashboard.py"), str(args.run_dir), "--write"],
    ]


def is_first_node(environment: Mapping[str, str]) -> bool:
    """Return whether this pod is on the first node, or is the only one."""
    for name in RANKS:
        if environment.get(name):
            return environment[name] == "0"
    number = re.search(r"-(\d+)$", environment.get("TRAINYARD_POD", ""))
    return number is None or int(number[1]) == 0


def run_in_order(
    train: list[str], after: Sequence[list[str]], run_dir: Path, *, another: bool = False
) -> int:
    """Run the commands in order and return the first exit code that is not 0; the rest is not run.

    With `another` program a proof in which only other parts than `trained` and `stored` do not hold counts
    as 0.
    """
    from trainyard.gateways.process import run_passing_signals

    code = run_passing_signals(train) if train else ExitCode.DONE
    if code == ExitCode.DONE and after:
        wait_for_outcome(run_dir / "run.json")
    for command in after:
        if code != ExitCode.DONE:
            break
        code = run_passing_signals(command)
        if another and code == ExitCode.NO and command[1].endswith("prove_run.py"):
            code = ExitCode.DONE if trained_and_stored(run_dir) else code
    return code


def trained_and_stored(run_dir: Path) -> bool:
    """Return whether the run's proof says that it trained and is stored."""
    try:
        parts = json.loads((run_dir / "report" / "proof.json").read_bytes())["parts"]
        held = {part["name"] for part in parts if part["holds"] is True}
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return {"trained", "stored"} <= held


def wait_for_outcome(path: Path) -> None:
    """Wait until the main process, which may be in another pod, has written how the run ended."""
    deadline = time.monotonic() + OUTCOME_SECONDS
    while time.monotonic() < deadline:
        try:
            if "outcome" in json.loads(path.read_bytes()):
                return
        except (OSError, ValueError):
            pass
        time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(handler.exit_code_of(main))
