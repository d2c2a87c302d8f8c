"""Store a run's checkpoints, metrics and records, and last a manifest of them.

It can be run again at any time, also after a failure: objects that the store holds already are not sent
again.

Reads:  --run-dir (or --checkpoint and --metrics); its config.yaml if --store or --encryption is not given;
        AWS_* (credentials, AWS_REGION, AWS_ENDPOINT_URL, AWS_MAX_ATTEMPTS: 5 per call);
        TRAINYARD_SIGNING_KEY[_PASSWORD], to sign the manifest with
Writes: objects in the store; with --json a report on stdout; the step outputs manifest, manifest_sha256
Exit codes: 0 stored; 1 not all was stored, the run number belongs to another run, or the disk is full;
        2 wrong usage; 4 the store refuses; with --follow: 5 no run appeared, or one without an outcome fell
        silent; 75 SIGTERM or SIGINT, run it again to continue

Example: trainyard store sync --run-dir runs/20261120-214501-7c1f --store s3://ml-runs
"""

import argparse
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainyard.artifacts.record.run_numbers import parse_run_number
from trainyard.artifacts.record.sync_report import SyncReport
from trainyard.artifacts.store.store_address import StoreOptions, open_store_of
from trainyard.artifacts.upload.node_parts import follow_node, is_further_machine, sync_node
from trainyard.artifacts.upload.preview import Preview, preview_run
from trainyard.artifacts.upload.run_following import FollowReport, Patience, wait_for_run
from trainyard.artifacts.upload.run_following import follow_run as follow_training
from trainyard.artifacts.upload.standalone_checkpoint import preview_files, sync_files
from trainyard.artifacts.upload.sync import OTHERS_SECONDS, sync_run
from trainyard.artifacts.upload.upload import RateLimit
from trainyard.checkpoint_functions import (
    calculate_file_hash,
    create_manifest,
    origin_of_checkpoint,
    sync_to_s3,
    upload_manifest,
    verify_s3_upload,
)
from trainyard.command import arguments, output, signals, terminal
from trainyard.command.parser import add_flag, add_option, add_run, script_parser
from trainyard.errors import ExitCode
from trainyard.gateways import github
from trainyard.gateways.model_signing import signer_from
from trainyard.report.terminal.phase import PhaseDisplay
from trainyard.run.directory import RunDirectory

# Source document 004 imports these functions from the script of this command.
__all__ = ["calculate_file_hash", "create_manifest", "main", "sync_to_s3"]
__all__ += ["upload_manifest", "verify_s3_upload"]
ENCRYPTIONS = ("AES256", "aws:kms", "none")
# Reading faster than this would take disk and memory bandwidth from the training that is followed.
BYTES_PER_SECOND = 200e6


def _encryption(text: str) -> str:
    if text in ENCRYPTIONS:
        return text
    raise argparse.ArgumentTypeError(
        f"{text[:80]!r} is none of {', '.join(ENCRYPTIONS)}. To use a KMS key of your own, make it "
        "the bucket's default key and choose none"
    )


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__, json="the report")
    what, where = (parser.add_mutually_exclusive_group(required=required) for required in (True, False))
    add_run(what)
    loose = "a checkpoint file or directory outside of a run directory"
    what.add_argument("--checkpoint", type=arguments.path, help=loose)
    metrics = "with --checkpoint: its metrics, JSON or JSON lines"
    parser.add_argument("--metrics", type=arguments.path, help=metrics)
    code = (
        "with --checkpoint: a folder of the repository that trained it; default: the one that holds it, "
        "unless its commit is newer than the checkpoint"
    )
    add_option(parser, "--code", "DIR", code, type=arguments.path)
    add_option(where, "--store", "URL", "s3://bucket/prefix or file:///folder")
    add_option(
        where, "--s3-bucket", "NAME", "short for --store s3://NAME", type="s3://{}".format, dest="store"
    )
    number = "N, or auto: the number of the run in the store, else a free one"
    add_option(parser, "--run-number", "N|auto", number, default="auto")
    _add_follow_options(parser)
    encryption = "the encryption requested from S3"
    parser.add_argument("--encryption", type=_encryption, choices=ENCRYPTIONS, help=encryption)
    args = parser.parse_args(argv)
    if args.checkpoint and not args.metrics:
        parser.error("--checkpoint needs --metrics FILE")
    if args.code and not args.checkpoint:
        parser.error("--code is for --checkpoint: a run directory records its code itself")
    if args.follow and args.checkpoint:
        parser.error("--follow needs --run-dir: nothing is added to a single checkpoint")
    return args


def _add_follow_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose between one pass and following the run."""
    how = parser.add_mutually_exclusive_group()
    add_flag(how, "--once", "one pass; this is also the default")
    follow = "store each checkpoint as soon as it is complete, the rest at the end, at the lowest priority"
    add_flag(how, "--follow", follow)
    add_flag(how, "--dry-run", "print the plan, send nothing")
    idle = "with --follow: how long a run may write nothing, or the store be unreachable; default: 30m"
    parts = "how long to wait at the end for the parts of other machines; default: 10m"
    for flag, default, text in (("--idle-timeout", 1800.0, idle), ("--node-timeout", 600.0, parts)):
        parser.add_argument(flag, type=arguments.duration, default=default, metavar="DURATION", help=text)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    number = parse_run_number(args.run_number)
    options: StoreOptions = {"encryption": args.encryption} if args.encryption else {}
    known: dict[str, Any] = {"store": args.store, "run_number": number, "others": args.node_timeout}
    known |= {"options": options, "as_json": args.json}
    if args.follow:
        return follow_run(args.run_dir, patience=args.idle_timeout, **known)
    if args.run_dir:
        return store_run(args.run_dir, dry_run=args.dry_run, **known)

    signer = None if args.dry_run else signer_from()
    with terminal.show_live(_display()) as display:
        store = open_store_of(None, args.store, options, display.advance)
        files, origin = (args.checkpoint, args.metrics), origin_of_checkpoint(args.checkpoint, args.code)
        if args.dry_run:
            return _print_plan(preview_files(store, *files, number, provenance=origin), as_json=args.json)
        report = sync_files(store, *files, number, provenance=origin, signer=signer, progress=display)
    return _report(report, as_json=args.json)


def store_run(
    run_dir: Path,
    *,
    store: str | None = None,
    run_number: int | None = None,
    others: float = OTHERS_SECONDS,
    options: StoreOptions | None = None,
    dry_run: bool = False,
    as_json: bool = False,
) -> int:
    """Store what is complete of a run, report it, and return the exit code.

    Without `store` it is that of the run's configuration; without `run_number` that of the run in the store,
    else a free one. `others` is how many seconds to wait for the parts of other machines.
    """
    directory, signer = RunDirectory(run_dir), None if dry_run else signer_from()
    with terminal.show_live(_display()) as display:
        there = open_store_of(run_dir, store, options or {}, display.advance)
        where = there, directory, run_number
        if dry_run:
            return _print_plan(preview_run(*where), as_json=as_json)
        if is_further_machine(directory):
            report = sync_node(*where, progress=display)
        else:
            report = sync_run(*where, signer=signer, progress=display, others_seconds=others)
    return _report(report, as_json=as_json)


def follow_run(
    run_dir: Path,
    *,
    store: str | None = None,
    run_number: int | None = None,
    stop: threading.Event | None = None,
    patience: float = 1800.0,
    others: float = OTHERS_SECONDS,
    options: StoreOptions | None = None,
    stores_rest: bool = True,
    as_json: bool = False,
) -> int:
    """Store each checkpoint of a run as soon as it is complete, and the rest at its end; see `store_run`.

    Without `stores_rest` the caller stores what is left then, and only what was stored is reported. The run
    may write nothing, and the store be unreachable, for `patience` seconds. The event `stop` ends it; without
    one it lowers the priority of this process and takes its signals.
    """
    directory, signer = RunDirectory(run_dir), signer_from()
    stop = stop or signals.run_in_background()
    limits = Patience(patience, patience, others_seconds=others)
    wait_for_run(directory, limits, stop)
    where = open_store_of(run_dir, store, options or {}, RateLimit(BYTES_PER_SECOND)), directory, run_number
    if is_further_machine(directory):
        return _report(follow_node(*where, stop=stop, patience=limits), as_json=as_json)
    report = follow_training(*where, stop=stop, patience=limits, signer=signer, stores_rest=stores_rest)
    if not stores_rest and not report.checkpoints:
        return ExitCode.DONE
    return _report(report, as_json=as_json)


def _display() -> PhaseDisplay:
    return PhaseDisplay("artifacts", "reading the store")


def _print_plan(plan: Preview, *, as_json: bool) -> int:
    output.print_json(plan.to_json()) if as_json else output.print_text(plan.text())
    return plan.exit_code


def _report(report: SyncReport | FollowReport, *, as_json: bool) -> int:
    if as_json:
        output.print_json(report.to_json())
    output.announce("artifacts", report.summary(), "failed" if report.problems else "ok")
    github.set_outputs(report.outputs)
    return report.exit_code
