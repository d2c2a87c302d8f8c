"""Remove checkpoints from a store by rule. Without --apply it only prints the plan, with reasons.

--keep-last and --keep-every name checkpoints that are kept; --max-age removes older ones anyway. The
newest checkpoint of a run that verifies is kept, unless the run failed and it is older than --max-age.
Promoted checkpoints, and those that another run was started from, are kept unless an option removes them. A
run that is followed stores its records with each checkpoint; only the newest records are kept. Before any
object is deleted, a new manifest is stored that lists the removed checkpoints as removed, so that the run
verifies at any moment.

Reads:  --store: the manifests of all runs, names and checksums; AWS_*; GITHUB_ACTOR, else the user's name;
        TRAINYARD_SIGNING_KEY and the like (docs/runbooks/signing.md): the new manifest is signed as well
Writes: with --apply a further manifest for each run, and deletes objects; the plan on stdout
Exit codes: 0 planned, or removed; 1 something could not be removed; 2 wrong usage; 4 the store refuses

Example: trainyard store prune --store s3://ml-runs --all-runs --keep-last 3 --keep-every 5000
"""

import argparse
import getpass
import os
from collections.abc import Sequence
from typing import Any

from trainyard.artifacts.record.run_numbers import runs_in_question
from trainyard.artifacts.retention.pruning import prune
from trainyard.artifacts.retention.pruning_plan import RetentionRules, plan_pruning
from trainyard.artifacts.store.store_address import open_store
from trainyard.command import arguments, output, terminal
from trainyard.command.parser import add_flag, add_option, script_parser
from trainyard.errors import ExitCode
from trainyard.gateways.model_signing import signer_from
from trainyard.report.terminal.phase import PhaseDisplay
from trainyard.run.sizes import format_size


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(
        __doc__, reads_store=True, dry_run="only plan; this is also the default", json="the plan"
    )
    which = parser.add_mutually_exclusive_group(required=True)
    add_option(which, "--run-number", "N", "this run")
    add_flag(which, "--all-runs", "every run of the store")
    add_option(
        parser, "--keep-last", "N", "keep the newest N checkpoints of each run", type=arguments.positive
    )
    add_option(parser, "--keep-every", "STEPS", "keep those at multiples of STEPS", type=arguments.positive)
    add_option(parser, "--max-age", "TIME", "remove older ones, such as 90d or 12h", type=arguments.duration)
    add_flag(parser, "--apply", "carry out the plan")
    args = parser.parse_args(argv)
    if args.apply and args.dry_run:
        parser.error("--apply and --dry-run contradict each other: give one")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    rules = RetentionRules(args.keep_last, args.keep_every, args.max_age)
    store = open_store(args.store)
    with terminal.show_live(PhaseDisplay("retention", "reading the manifests")) as display:
        plans = plan_pruning(store, runs_in_question(store, args.run_number), rules)
    if args.json:
        output.print_json({"store": store.url, "runs": [plan.to_json() for plan in plans]})
    else:
        output.print_text("\n".join(line for plan in plans for line in plan.lines()))
    count, size = sum(len(plan.removals) for plan in plans), format_size(sum(plan.bytes for plan in plans))
    problems = [f"run {plan.run_number}: {plan.problem}" for plan in plans if plan.problem]
    if args.apply:
        display.begin("removing", sum(len(plan.removals) for plan in plans), "checkpoints")
        with terminal.show_live(display):
            problems += _apply(store, plans, progress=display)
    output.print_remarks(problems)
    words = "removed" if args.apply else "would be removed; nothing was changed; --apply removes them"
    output.announce("retention", f"{count} checkpoints, {size} {words}", "failed" if problems else "ok")
    return ExitCode.NO if problems else ExitCode.DONE


def _apply(store: Any, plans: Sequence[Any], *, progress: Any) -> list[str]:
    signer = signer_from()
    who, problems = os.environ.get("GITHUB_ACTOR") or getpass.getuser(), []
    for plan in plans:
        if plan.changes:
            problems += prune(store, plan, by=who, signer=signer)
            progress.advance(len(plan.removals))
    return problems
