"""Give a stored checkpoint a name (best, production) that restore takes and retention keeps.

The checkpoint is verified first. A name means one checkpoint in the whole store. It moves atomically: a
reader sees the old checkpoint or the new one, and if two people move it at once, one of them gets an error.
After --withdraw no checkpoint has the name; to give it to the previous checkpoint again, promote that one.

Reads:  --store: the run's manifests and the checkpoint's objects, to --depth; AWS_* (credentials, …);
        GITHUB_ACTOR, else the user's name, unless --by is given
Writes: promoted/NAME.json in the store; with --json the pointer on stdout
Exit codes: 0 promoted; 1 the checkpoint does not verify or was removed, its run did not learn, its evaluation
        misses a threshold or is missing, or somebody else moved the name; 2 wrong usage; 4 the store cannot
        be reached or refuses

Example: trainyard store promote --store s3://ml-runs --run-number 812 --step 4500 --name production
"""

import argparse
import getpass
import os
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainyard.command import arguments, output
from trainyard.command.parser import script_parser
from trainyard.errors import ConfigError, ExitCode, VerificationError

if TYPE_CHECKING:
    from trainyard.artifacts.record.checkpoints import Checkpoint
    from trainyard.artifacts.store.object_store import Store

DEPTHS = ("listing", "sample", "full")


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("--store", required=True, metavar="URL", help="s3://bucket/prefix or file:///folder")
    parser.add_argument("--run-number", metavar="N", help="the run's number")
    parser.add_argument("--step", metavar="N|newest", help="a step, or newest")
    parser.add_argument(
        "--withdraw", action="store_true", help="take the name from the checkpoint that has it"
    )
    parser.add_argument("--name", required=True, help="a to z, 0 to 9 and dashes: best, production, …")
    parser.add_argument(
        "--depth", choices=DEPTHS, default="full", help="depth of the verification; default: full"
    )
    parser.add_argument(
        "--by", help="the name of the person on record; default: the actor of the workflow, else the user"
    )
    limit = "time limit of a read or write; default: 30"
    parser.add_argument("--call-seconds", type=arguments.seconds, default=30, help=limit)
    parser.add_argument("--json", action="store_true", help="print the pointer as JSON")
    parser.add_argument("--dry-run", action="store_true", help="verify, change nothing")
    args = parser.parse_args(argv)
    if args.withdraw == bool(args.run_number or args.step) or bool(args.run_number) != bool(args.step):
        parser.error("give --run-number and --step of the checkpoint that gets the name, or --withdraw alone")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)
    from trainyard.artifacts.promotion import find_promotable, promote, require_name
    from trainyard.artifacts.record.run_numbers import parse_run_number
    from trainyard.artifacts.store.store_address import open_store
    from trainyard.artifacts.verify.comparison import Depth

    if args.withdraw:
        return _withdraw(args)
    number, step = parse_run_number(args.run_number), None
    if number is None:
        raise ConfigError("--run-number auto needs a run; give its number")
    if args.step != "newest":
        step = arguments.step(args.step)
        if step is None:
            raise ConfigError(f"--step {args.step[:80]}: neither a step nor newest")
    require_name(args.name)
    store, depth = open_store(args.store, call_seconds=args.call_seconds), Depth(args.depth)
    run_id, checkpoint = find_promotable(store, number, step, depth=depth)
    require_learned(store, checkpoint)
    what = f"{args.name} → {checkpoint.name} of run {number} ({checkpoint.digest[:12]}…), verified: {depth}"
    if args.dry_run:
        output.announce("promoted", f"{what}; nothing was changed", "ok")
        return ExitCode.DONE
    pointer = promote(store, args.name, checkpoint, run_id=run_id, by=_promoter(args), depth=depth)
    was = pointer.previous
    before = f", before: step {was['step']} of run {was['run_number']}" if was else ""
    output.announce("promoted", what + before, "ok")
    if args.json:
        output.print_json(pointer.to_json())
    return ExitCode.DONE


def require_learned(store: "Store", checkpoint: "Checkpoint") -> None:
    """Raise VerificationError if the run did not learn or the checkpoint misses a threshold of its run.

    A checkpoint that was stored without the records of a run has nothing to judge.
    """
    from trainyard.artifacts.record.chain import newest_manifest
    from trainyard.artifacts.record.evaluations import read_evaluations
    from trainyard.proof.gates import judge_learning
    from trainyard.proof.learning import Curves
    from trainyard.proof.recorded_events import course_of
    from trainyard.report.facts.resolved_config import settings_of_config
    from trainyard.run.suggested_commands import script_command
    from trainyard.run.untrusted_files import parse_json_line

    _, manifest, _ = newest_manifest(store, checkpoint.run_number)
    config = None if manifest is None else store.read_object(f"{manifest.records_prefix}config.yaml")
    if manifest is None or config is None:
        return
    rows, events = (
        [
            parse_json_line(line)
            for line in (store.read_object(manifest.records_prefix + name) or b"").splitlines()
        ]
        for name in ("metrics.jsonl", "events.jsonl")
    )
    saved = {"step": checkpoint.step, "manifest_sha256": checkpoint.digest}
    run = {**manifest.provenance, "outcome": {**manifest.outcome, "checkpoint": saved}}
    begins_after, curves = course_of(run, events).begins_after, Curves()
    sum(1 for _ in curves.collect(rows))
    curves.start_with(events, begins_after)
    learned = judge_learning(
        run,
        curves,
        begins_after=begins_after,
        settings=settings_of_config(config),
        evaluations=read_evaluations(store, manifest),
    )
    if learned.is_red:
        where = f"--store {shlex.quote(store.url)} --run-number {checkpoint.run_number}"
        evaluate = f"{script_command('evaluate.py')} {where} --step {checkpoint.step}"
        step = learned.next_step.format(again="train again", evaluate=evaluate)
        raise VerificationError(
            f"{checkpoint.prefix} was not promoted: {learned.evidence}. Next: {step}, or promote another one."
        )


def _withdraw(args: argparse.Namespace) -> int:
    from trainyard.artifacts.promotion import read_promotion, withdraw
    from trainyard.artifacts.store.store_address import open_store

    store = open_store(args.store, call_seconds=args.call_seconds)
    had = read_promotion(store, args.name)
    pointer = had if args.dry_run and had else withdraw(store, args.name, by=_promoter(args))
    end = "would be taken back; nothing was changed" if args.dry_run else "taken back"
    output.announce(
        "promoted", f"{args.name} of step {pointer.step} of run {pointer.run_number}: {end}", "ok"
    )
    if args.json:
        output.print_json(pointer.to_json())
    return ExitCode.DONE


def _promoter(args: argparse.Namespace) -> str:
    return str(args.by or os.environ.get("GITHUB_ACTOR") or getpass.getuser())
