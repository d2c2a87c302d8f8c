"""Give a stored checkpoint a name (best, production) that restore takes and retention keeps.

The checkpoint is verified first, and judged by the stored records of its run: those that the manifest lists,
and the evaluations in the store. A name means one checkpoint in the whole store. It moves atomically: a
reader sees the old checkpoint or the new one, and if two people move it at once, one of them gets an error.
After --withdraw no checkpoint has the name; to give it to the previous checkpoint again, promote that one.

Reads:  --store: the run's manifests and the checkpoint's objects, to --depth; AWS_* (credentials, …);
        GITHUB_ACTOR, else the user's name
Writes: promoted/NAME.json in the store; with --json the pointer on stdout
Exit codes: 0 promoted; 1 the checkpoint does not verify or was removed, its run did not learn, its evaluation
        misses a threshold or is missing, or somebody else moved the name; 2 wrong usage; 4 the store cannot
        be reached or refuses

Example: trainyard store promote --store s3://ml-runs --run-number 812 --step 4500 --name production
"""

import argparse
import getpass
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainyard.artifacts.promotion import find_promotable, promote, read_promotion, require_name, withdraw
from trainyard.artifacts.store.store_address import open_store
from trainyard.artifacts.verify.comparison import Depth
from trainyard.command import arguments, output
from trainyard.command.parser import add_flag, add_option, add_run_number, script_parser
from trainyard.errors import ExitCode
from trainyard.proof.checkpoint_gates import REQUIREMENTS, require_learned

if TYPE_CHECKING:
    from trainyard.artifacts.store.object_store import Store

DEPTHS = ("listing", "sample", "full")


def requirements(text: str) -> tuple[str, ...]:
    """Return the names in `evaluation,proof`."""
    names = tuple(text.split(","))
    if not set(names) <= set(REQUIREMENTS):
        raise argparse.ArgumentTypeError(f"{arguments.quote(text)}: name one of {', '.join(REQUIREMENTS)}")
    return names


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__, reads_store=True, dry_run="verify, change nothing", json="the pointer")
    add_run_number(parser, text="the run's number")
    add_option(parser, "--step", "S|newest", "a step, or newest")
    add_flag(parser, "--withdraw", "take the name from the checkpoint that has it")
    parser.add_argument("--name", required=True, help="a to z, 0 to 9 and dashes: best, production, …")
    depth = "depth of the verification; default: full"
    parser.add_argument("--depth", choices=DEPTHS, default="full", help=depth)
    more = "further gates: evaluation (one that meets its thresholds), proof (all parts)"
    add_option(parser, "--require", "NAMES", more, type=requirements, default=())
    args = parser.parse_args(argv)
    if args.withdraw == bool(args.run_number or args.step) or bool(args.run_number) != bool(args.step):
        parser.error("give the number and --step of the checkpoint that gets the name, or --withdraw alone")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    store = open_store(args.store)
    by = os.environ.get("GITHUB_ACTOR") or getpass.getuser()
    if args.withdraw:
        return take_back(store, args.name, by=by, dry_run=args.dry_run, as_json=args.json)
    number, step = args.run_number, arguments.parse(arguments.step_or_newest, args.step, "--step")
    require_name(args.name)
    depth = Depth(args.depth)
    run_id, checkpoint = find_promotable(store, number, step, depth=depth)
    require_learned(store, checkpoint, args.require)
    what = f"{args.name} → {checkpoint.name} of run {number} ({checkpoint.digest[:12]}…), verified: {depth}"
    if args.dry_run:
        output.announce("promoted", f"{what}; nothing was changed", "ok")
        return ExitCode.DONE
    pointer = promote(store, args.name, checkpoint, run_id=run_id, by=by, depth=depth)
    was = pointer.previous
    before = f", before: step {was['step']} of run {was['run_number']}" if was else ""
    output.announce("promoted", what + before, "ok")
    if args.json:
        output.print_json(pointer.to_json())
    return ExitCode.DONE


def take_back(store: "Store", name: str, *, by: str, dry_run: bool = False, as_json: bool = False) -> int:
    """Take a name from the checkpoint that has it, report it, and return the exit code."""
    had = read_promotion(store, name)
    pointer = had if dry_run and had else withdraw(store, name, by=by)
    end = "would be taken back; nothing was changed" if dry_run else "taken back"
    output.announce("promoted", f"{name} of step {pointer.step} of run {pointer.run_number}: {end}", "ok")
    if as_json:
        output.print_json(pointer.to_json())
    return ExitCode.DONE
