"""Fetch the checkpoint from which a workflow's run resumes, unless it is on this machine already.

A later segment uses the directory of the previous one or the newest checkpoint in the store, whichever has
the later step. If --resume is the address of a manifest, a new run starts from that run's newest checkpoint.
Machines without a shared folder, whose training is started by hand, call it before the training.

Reads:      --run-dir; the store: its manifests and objects; AWS_*
Writes:     the run's directory, or one beside it for another run's checkpoint; the value for --resume of
            trainyard train on stdout (with --json also the reason) and in the step output `resume`; a
            failure in the job summary, in an annotation, and as one line in the step output `reason`
Exit codes: 0 it is here, or nothing is needed; 1 there is nothing to resume from, or it does not verify;
            2 wrong usage; 4 the store cannot be reached
Example:    trainyard step fetch-checkpoint --run-dir runs/gh-1 --resume auto --store s3://lab --run-number 8
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from trainyard.artifacts.record.run_numbers import parse_run_number
from trainyard.artifacts.restore.resume_source import ResumeRequest, Resumption, fetch_resume_source
from trainyard.artifacts.store.store_address import open_store, require_address
from trainyard.command import arguments, output, terminal
from trainyard.command.parser import add_option, script_parser
from trainyard.errors import ExitCode
from trainyard.gateways.github import refusal_in_summary, set_output
from trainyard.report.terminal.phase import PhaseDisplay
from trainyard.run.directory import RunDirectory


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__, dry_run="print the request, fetch nothing", json="the answer")
    run_dir = "the run's directory; need not exist"
    add_option(parser, "--run-dir", "DIR", run_dir, type=arguments.path, required=True)
    resume = "auto, none, a manifest's address, or a checkpoint"
    parser.add_argument("--resume", type=str, required=True, help=resume)
    add_option(parser, "--store", "URL", "s3://bucket/prefix or file:///folder", required=True)
    number = "its number in the store; auto: the number of the run that is named like --run-dir"
    add_option(parser, "--run-number", "N|auto", number, required=True)
    place = "number of the segment in its lineage, from 1; a later one needs a checkpoint"
    add_option(parser, "--segment", "N", place, type=arguments.positive, default=1)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    number = parse_run_number(args.run_number)
    require_address(args.store)
    if args.dry_run:
        found = Resumption(args.resume, "the store was not read")
        output.announce("resume", f"{found.resume}: {found.reason}")
    else:
        found = fetch_checkpoint(
            args.run_dir, store=args.store, run_number=number, resume=args.resume, segment=args.segment
        )
    output.print_json(asdict(found)) if args.json else print(found.resume)
    return ExitCode.DONE


def fetch_checkpoint(
    run_dir: Path,
    *,
    store: str,
    run_number: int | None = None,
    run_id: str | None = None,
    resume: str = "auto",
    segment: int = 1,
    searches: bool = True,
    allow_missing_checkpoint: bool = False,
    wait: float = 0.0,
) -> Resumption:
    """Restore the checkpoint to resume from, unless it is here, and report where the run resumes.

    `searches` reads the store in a first segment too. `wait` is how many seconds to wait until the store has
    all parts of a checkpoint of this machine. `run_id` None is the name of the directory;
    empty: that of the run with this number.
    """
    require_address(store)
    display = PhaseDisplay("resume", "searching for the newest checkpoint")
    wanted = ResumeRequest(
        directory=RunDirectory(run_dir),
        run_id=run_dir.name if run_id is None else run_id,
        resume=resume,
        store=store,
        run_number=run_number,
        segment=segment,
        may_fetch=searches,
        allow_missing_checkpoint=allow_missing_checkpoint,
        wait_seconds=wait,
        progress=display,
    )
    refusal = "Not started: the checkpoint to resume from could not be fetched"
    with refusal_in_summary(refusal), terminal.show_live(display):
        found = fetch_resume_source(wanted, open_store)
    output.announce("resume", f"{found.resume}: {found.reason}")
    set_output("resume", found.resume)
    return found
