#!/usr/bin/env python3
"""Train a model into a run directory, or go on with one.

Reads:   the configuration, the data, a checkpoint; torchrun's variables where torchrun started it;
         TRAINYARD_RUN_ID (the identity of a new run), TRAINYARD_IMAGE_DIGEST, GitHub's variables, WANDB_API_KEY.
Writes:  the run directory (run.json, config.yaml, metrics.jsonl, events.jsonl, checkpoints/, tensorboard/);
         --json prints the outcome.
Exit codes: 0 all steps done; 1 training failed; 2 configuration, data or checkpoint do not fit;
         75 stopped early with a good checkpoint, run it again to go on; 130 interrupted twice.
Example: scripts/train.py --config configs/smoke.yaml --set training.max_steps=50
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainyard import command
from trainyard.gateways.torchrun import launch, leave_exit_code

HOUSE = Path(__file__).resolve().parent.parent
LOCK = HOUSE / "requirements-training.txt"


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = command.parser(__doc__)
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the configuration")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help="change one value; may be repeated",
    )
    parser.add_argument("--run-dir", type=Path, help="default: runs/<run id>")
    parser.add_argument("--resume", default="auto", metavar="none|auto|CHECKPOINT", help="default: auto")
    parser.add_argument("--deadline", type=command.duration, metavar="DURATION", help="8h, 25m, 90s from now")
    parser.add_argument(
        "--nproc-per-node", type=int, metavar="N", help="train in N processes on this machine"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be trained, and stop")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    start = time.monotonic()
    is_main = os.environ.get("RANK", "0") == "0"
    command.configure_logging(args.log_level if is_main else "error")
    if args.nproc_per_node and "WORLD_SIZE" not in os.environ:
        return launch([__file__, *(sys.argv[1:] if argv is None else argv)], processes=args.nproc_per_node)
    # Torch reads it once, at its start; with it, matrix products on a GPU repeat to the bit.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

    from trainyard.training.stop import StopRequest

    stop = StopRequest(None if args.deadline is None else start + args.deadline)
    if not args.dry_run:
        stop.listen()

    from trainyard.config.load import load_config
    from trainyard.gateways.nvidia import gpu_sampler
    from trainyard.report.progress import ProgressDisplay, summary_line
    from trainyard.run.directory import RunDirectory
    from trainyard.run.identity import choose_run_id
    from trainyard.training.session import Request, describe, train
    from trainyard.training.tokens import prepare_data

    config = load_config(args.config, args.overrides).config
    run_id = choose_run_id(args.run_dir)
    directory = RunDirectory((args.run_dir or Path("runs") / run_id).absolute())
    data = prepare_data(config.data, config.model)
    facts = gpu_sampler(seconds=10) if config.model.device != "cpu" else dict
    request = Request(config, directory, data, args.resume, run_id, provenance(args.config), facts)
    if args.dry_run:
        print(json.dumps(describe(request), indent=2))
        return 0
    display = ProgressDisplay(sys.stderr if command.on_terminal() and is_main else None)
    try:
        outcome = train(request, stop=stop, listener=display)
    finally:
        display.close()
    command.announce("training", summary_line(outcome), "ok")
    if args.json and is_main:
        print(json.dumps(outcome, indent=2))
    return 0


def provenance(config_file: Path) -> dict[str, Any]:
    """Where the code and the environment come from."""
    from trainyard import __version__
    from trainyard.gateways.git import git_facts
    from trainyard.run.files import sha256_of_file
    from trainyard.run.identity import ci_facts

    return {
        "version": __version__,
        "config_file": str(config_file),
        "git": git_facts(HOUSE),
        "lock_sha256": sha256_of_file(LOCK) if LOCK.is_file() else None,
        "ci": ci_facts(),
        "image_digest": os.environ.get("TRAINYARD_IMAGE_DIGEST"),
    }


if __name__ == "__main__":
    sys.exit(leave_exit_code(command.exit_code_of(main)))
