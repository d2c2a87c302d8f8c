"""Fetch the checkpoint from which a workflow's run resumes, unless it is on this machine already.

A later segment uses the directory of the previous one or the newest checkpoint in the store, whichever has
the later step. If --resume is the address of a manifest, a new run starts from that run's newest checkpoint.
With --may-begin, a later segment that finds nothing starts as --resume says, because the earlier ones stored
nothing.

Reads:      --run-dir; the store, only with --fetch true or a later segment: its manifests and objects; AWS_*
Writes:     the run's directory, or one beside it for another run's checkpoint; the value for --resume of
            trainyard train on stdout (with --json also the reason) and in the step output `resume`; a
            failure in the job summary, in an annotation, and as one line in the step output `reason`
Exit codes: 0 it is here, or nothing is needed; 1 there is nothing to resume from, or it does not verify;
            2 wrong usage; 4 the store cannot be reached
Example:    trainyard step fetch --run-dir runs/gh-1 --resume auto --store s3://ml-runs --run-number 812
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict

from trainyard.artifacts.record.run_numbers import parse_run_number
from trainyard.artifacts.restore.resume_source import ResumeRequest, Resumption, fetch_resume_source
from trainyard.artifacts.store.store_address import open_store, require_address
from trainyard.command import arguments, output, terminal
from trainyard.command.parser import script_parser
from trainyard.gateways.github import refusal_in_summary, set_output
from trainyard.report.terminal.phase import PhaseDisplay
from trainyard.run.directory import RunDirectory


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument(
        "--run-dir",
        metavar="DIR",
        type=arguments.path,
        required=True,
        help="the run's directory; need not exist",
    )
    parser.add_argument(
        "--resume", type=str, required=True, help="auto, none, a manifest's address, or a checkpoint"
    )
    parser.add_argument("--store", required=True, metavar="URL", help="s3://bucket/prefix or file:///folder")
    number = "its number in the store; auto: the number of the run that is named like --run-dir"
    parser.add_argument("--run-number", required=True, metavar="N|auto", help=number)
    place = "number of the segment in its lineage, from 1"
    parser.add_argument("--segment", type=arguments.positive, default=1, metavar="N", help=place)
    parser.add_argument("--fetch", default="false", choices=("true", "false"), help="search the store")
    parser.add_argument(
        "--may-begin", default="false", choices=("true", "false"), help="start even if no checkpoint is found"
    )
    wait = "how long to wait until the store has all parts of a checkpoint of this machine"
    parser.add_argument("--wait", type=arguments.duration, default=0.0, metavar="DURATION", help=wait)
    parser.add_argument("--dry-run", action="store_true", help="print the request, fetch nothing")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)

    require_address(args.store)
    display = PhaseDisplay("resume", "searching for the newest checkpoint")
    wanted = ResumeRequest(
        directory=RunDirectory(args.run_dir),
        run_id=args.run_dir.name,
        resume=args.resume,
        store=args.store,
        run_number=parse_run_number(args.run_number),
        segment=args.segment,
        may_fetch=args.fetch == "true",
        may_begin=args.may_begin == "true",
        wait_seconds=args.wait,
        progress=display,
    )
    if args.dry_run:
        found = Resumption(args.resume, "the store was not read")
    else:
        with (
            refusal_in_summary("Not started: the checkpoint to resume from could not be fetched"),
            terminal.show_live(display),
        ):
            found = fetch_resume_source(wanted, open_store)
    output.announce("resume", f"{found.resume}: {found.reason}")
    if not args.dry_run:
        set_output("resume", found.resume)
    output.print_json(asdict(found)) if args.json else print(found.resume)
    return 0
