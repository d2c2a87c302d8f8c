"""Restore a stored run: all of it, one checkpoint, the newest that verifies, or only its records.

Every file is hashed as it arrives. The directory appears when it is complete, or not at all. After an
interruption the same command continues where it stopped.

Reads:  --store: the run's manifests and objects; AWS_* (credentials, AWS_REGION, AWS_ENDPOINT_URL);
        --public-key: whose signature the run's manifest must have, checked before anything is fetched
Writes: --to: a run directory (run.json, config.yaml, metrics.jsonl, …, checkpoints/step-NNNNNNNN), new or
        empty before; .NAME.restoring beside it while it works; with --json a report on stdout;
        the step outputs manifest, manifest_sha256 and reason
Exit codes: 0 restored; 1 files do not match the manifest, which are listed, or the disk is full;
        2 wrong usage; 4 the store cannot be reached

Example: trainyard store restore --store s3://ml-runs --run-number 812 --step newest --to runs/back
"""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainyard.artifacts.record.manifest import read_chain
from trainyard.artifacts.restore import restore
from trainyard.artifacts.restore.selection import parse_selection
from trainyard.artifacts.store.store_address import open_store
from trainyard.command import arguments, output, terminal
from trainyard.command.parser import add_option, add_run_number, script_parser
from trainyard.errors import ExitCode
from trainyard.gateways.github import in_actions, refusal_in_summary, set_outputs
from trainyard.gateways.model_signing import KeyVerifier
from trainyard.report.terminal.phase import PhaseDisplay

if TYPE_CHECKING:
    from trainyard.artifacts.store.object_store import Store


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(
        __doc__, reads_store=True, dry_run="print the plan, write nothing", json="the report"
    )
    add_run_number(parser, text="the run's number; not needed with a promoted name")
    step = "a step, newest (that verifies), none (only the records), or a promoted name; default: all"
    add_option(parser, "--step", "S|newest", step)
    add_option(parser, "--to", "DIR", "the new run directory", type=arguments.path, required=True)
    public_key = "PEM file; the run must be signed with its private key"
    parser.add_argument("--public-key", type=arguments.path, help=public_key)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    display = PhaseDisplay("restored", "reading the manifests")
    with terminal.show_live(display), refusal_in_summary("Not restored"):
        store = open_store(args.store)
        selection = parse_selection(store, args.run_number, args.step)
        verifier = KeyVerifier(args.public_key) if args.public_key else None
        if args.dry_run:
            plan = restore.plan_restore(store, selection, args.to, verifier=verifier)
        else:
            report = restore.restore(store, selection, args.to, verifier=verifier, progress=display)
    if args.dry_run:
        output.print_json(plan.to_json()) if args.json else output.print_text(plan.text())
        return ExitCode.DONE
    set_manifest_outputs(store, report.run_number)
    output.announce("restored", report.summary(), "degraded" if report.passed_over else "ok")
    if report.go_on:
        output.announce("resume", report.go_on, copied=True)
    if args.json:
        output.print_json(report.to_json())
    return ExitCode.DONE


def set_manifest_outputs(store: "Store", run_number: int) -> None:
    """In GitHub Actions, set the step outputs manifest and manifest_sha256 to the run's newest manifest."""
    if in_actions():
        newest = read_chain(store, run_number)[-1]
        set_outputs({"manifest": newest.key.rpartition("/")[2], "manifest_sha256": newest.sha256})
