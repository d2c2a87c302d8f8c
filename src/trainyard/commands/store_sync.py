"""Store a run's checkpoints, metrics and records, and last a manifest of them.

It can be run again at any time, also after a failure: objects that the store holds already are not sent
again.

Reads:  --run-dir (or --checkpoint and --metrics); its config.yaml if --store or --encryption is not given;
        AWS_* (credentials, AWS_REGION, AWS_ENDPOINT_URL, AWS_MAX_ATTEMPTS: 5 per call);
        TRAINYARD_SIGNING_KEY[_FILE, _PASSWORD] or TRAINYARD_SIGNING=keyless, to sign the manifest with
Writes: objects in the store; with --json a report on stdout; the step outputs manifest, manifest_sha256
Exit codes: 0 stored; 1 not all was stored, the run number belongs to another run, or the disk is full;
        2 wrong usage; 4 the store refuses; with --follow: 5 no run appeared, or one without an outcome fell
        silent; 75 SIGTERM or SIGINT, run it again to continue

Example: trainyard store sync --run-dir runs/20261120-214501-7c1f --store s3://ml-runs
"""

import argparse
import logging
import shlex
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainyard.artifacts.record.run_numbers import parse_run_number
from trainyard.artifacts.record.sync_report import SyncReport
from trainyard.artifacts.store.object_store import Store
from trainyard.artifacts.store.store_address import open_store
from trainyard.artifacts.store.store_settings import DEFAULTS, OpenOptions, open_store_of
from trainyard.artifacts.upload import standalone_checkpoint
from trainyard.artifacts.upload.node_parts import follow_node, is_further_machine, sync_node
from trainyard.artifacts.upload.preview import Preview, preview_run
from trainyard.artifacts.upload.rate_limit import RateLimit
from trainyard.artifacts.upload.run_following import FollowReport, Patience, wait_for_run
from trainyard.artifacts.upload.run_following import follow_run as follow_training
from trainyard.artifacts.upload.standalone_checkpoint import preview_files, sync_files
from trainyard.artifacts.upload.sync import OTHERS_SECONDS, sync_run
from trainyard.command import arguments, output, signals, terminal
from trainyard.command.parser import script_parser
from trainyard.errors import ConfigError, TrainyardError
from trainyard.gateways import github
from trainyard.gateways.git import git_facts, is_older_than_head, repository_facts
from trainyard.gateways.model_signing import signer_from
from trainyard.report.facts.proof_record import read_proof
from trainyard.report.terminal.phase import PhaseDisplay
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import ci_facts_at, read_run
from trainyard.run.suggested_commands import made_by, trainyard_command

LOG = logging.getLogger(__name__)
Json = dict[str, Any]
ENCRYPTIONS = ("AES256", "aws:kms", "none")
FOLLOW = "store each checkpoint as soon as it is complete, and the rest at the end, at the lowest priority"


def calculate_file_hash(file_path: str) -> str:
    """Return the hex SHA-256 of a file."""
    return str(standalone_checkpoint.calculate_file_hash(file_path))


def sync_to_s3(local_path: str, s3_bucket: str, s3_key: str, metadata: Json | None = None) -> bool:
    """Upload a file encrypted, and let S3 confirm its SHA-256; on failure log the reason and return False."""
    return bool(
        standalone_checkpoint.store_file(_bucket(s3_bucket), Path(local_path), s3_key, metadata or {})
    )


def create_manifest(checkpoint_path: str, metrics_path: str, s3_bucket: str, run_number: int) -> Json:
    """Return the manifest of a checkpoint and its metrics, from the files on disk."""
    files = Path(checkpoint_path), Path(metrics_path)
    return {
        "bucket": s3_bucket,
        **standalone_checkpoint.describe_standalone_files(
            *files, run_number, provenance=_provenance(files[0])
        ),
    }


def upload_manifest(manifest: Json, s3_bucket: str, run_number: int) -> bool:
    """Store the manifest; return False if the run already has another manifest."""
    return bool(standalone_checkpoint.store_manifest(_bucket(s3_bucket), manifest, run_number))


def verify_s3_upload(s3_key: str, expected_hash: str, s3_bucket: str) -> bool:
    """Return whether S3's own checksum, or else the object read back, has the expected SHA-256."""
    return bool(standalone_checkpoint.object_has_hash(_bucket(s3_bucket), s3_key, expected_hash))


def _encryption(text: str) -> str:
    if text in ENCRYPTIONS:
        return text
    raise argparse.ArgumentTypeError(
        f"{text[:80]!r} is none of {', '.join(ENCRYPTIONS)}. To use a KMS key of your own, make it "
        "the bucket's default key and choose none"
    )


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    what, where = (parser.add_mutually_exclusive_group(required=required) for required in (True, False))
    what.add_argument("--run-dir", metavar="DIR", type=arguments.path, help="the run's directory")
    loose = "a checkpoint file or directory outside of a run directory"
    what.add_argument("--checkpoint", type=arguments.path, help=loose)
    metrics = "with --checkpoint: its metrics, JSON or JSON lines"
    parser.add_argument("--metrics", type=arguments.path, help=metrics)
    code = (
        "with --checkpoint: a folder of the repository that trained it; default: the one that holds it, "
        "unless its commit is newer than the checkpoint"
    )
    parser.add_argument("--code", type=arguments.path, metavar="DIR", help=code)
    where.add_argument("--store", metavar="URL", help="s3://bucket/prefix or file:///folder")
    bucket = "short for --store s3://NAME"
    where.add_argument("--s3-bucket", dest="store", metavar="NAME", type="s3://{}".format, help=bucket)
    number = "N, or auto: the number of the run in the store, else a free one"
    parser.add_argument("--run-number", default="auto", metavar="N|auto", help=number)
    _add_follow_options(parser)
    parser.add_argument(
        "--encryption", type=_encryption, choices=ENCRYPTIONS, help="the encryption requested from S3"
    )
    checksums, of = (
        ("CRC64NVME", "SHA256"),
        "the checksum that S3 computes for files above 64 MiB; default: CRC64NVME",
    )
    parser.add_argument("--checksum", choices=checksums, default=checksums[0], help=of)
    limit = "time limit of one call; default: 20 for a cluster, 30 for a store"
    parser.add_argument("--call-seconds", metavar="SECONDS", type=arguments.seconds, default=30, help=limit)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    args = parser.parse_args(argv)
    if (reason := _option_conflict(args)) is not None:
        parser.error(reason)
    return args


def _add_follow_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose between one pass and following the run."""
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--once", action="store_true", help="one pass; this is also the default")
    how.add_argument("--follow", action="store_true", help=FOLLOW)
    how.add_argument("--dry-run", action="store_true", help="print the plan, send nothing")
    for flag, default, help_ in (
        ("--silence", 1800.0, "with --follow: how long a run may write nothing; default: 30m"),
        ("--outage", 1800.0, "with --follow: how long the store may be unreachable; default: 30m"),
        ("--others", 600.0, "how long to wait at the end for the parts of other machines; default: 10m"),
    ):
        parser.add_argument(flag, type=arguments.duration, default=default, metavar="DURATION", help=help_)
    behind = "with --follow: continue in the background; process id in FILE, log in FILE.log"
    parser.add_argument("--behind", type=arguments.path, metavar="FILE", help=behind)
    rate = "with --follow: MB read per second; default: 200"
    parser.add_argument("--max-rate", type=arguments.rate, default=200, help=rate)


def _option_conflict(args: argparse.Namespace) -> str | None:
    """Return why these options do not go together; None if they do."""
    if args.checkpoint and not args.metrics:
        return "--checkpoint needs --metrics FILE"
    if args.code and not args.checkpoint:
        return "--code is for --checkpoint: a run directory records its code itself"
    if args.follow and args.checkpoint:
        return "--follow needs --run-dir: nothing is added to a single checkpoint"
    if args.behind and not args.follow:
        return "--behind needs --follow"
    return None


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)

    number = parse_run_number(args.run_number)
    options = OpenOptions(args.encryption, args.checksum, args.call_seconds)
    if args.checkpoint:
        return store_checkpoint(
            args.checkpoint,
            args.metrics,
            code=args.code,
            store=args.store,
            run_number=number,
            options=options,
            dry_run=args.dry_run,
            as_json=args.json,
        )
    if args.follow:
        return follow_run(
            args.run_dir,
            store=args.store,
            run_number=number,
            behind=args.behind,
            silence=args.silence,
            outage=args.outage,
            others=args.others,
            max_rate=args.max_rate,
            options=options,
            as_json=args.json,
        )
    return store_run(
        args.run_dir,
        store=args.store,
        run_number=number,
        others=args.others,
        options=options,
        dry_run=args.dry_run,
        as_json=args.json,
    )


def store_run(
    run_dir: Path,
    *,
    store: str | None = None,
    run_number: int | None = None,
    others: float = OTHERS_SECONDS,
    options: OpenOptions = DEFAULTS,
    dry_run: bool = False,
    as_json: bool = False,
) -> int:
    """Store what is complete of a run, report it, and return the exit code.

    Without `store` it is that of the run's configuration; without `run_number` that of the run in the store,
    else a free one. `others` is how many seconds to wait for the parts of other machines.
    """
    directory = RunDirectory(run_dir)
    signer = None if dry_run else signer_from()
    with output.leave_log_to_terminal(), terminal.show_live(_display()) as display:
        there = open_store_of(run_dir, store, options, display.advance)
        if dry_run:
            return _print_plan(preview_run(there, directory, run_number), as_json=as_json)
        if is_further_machine(directory):
            report = sync_node(there, directory, run_number, progress=display)
        else:
            report = sync_run(
                there, directory, run_number, signer=signer, progress=display, others_seconds=others
            )
    _report(report, as_json=as_json)
    if not report.problems:
        _suggest_proof(directory, there.url)
    return report.exit_code


def follow_run(
    run_dir: Path,
    *,
    store: str | None = None,
    run_number: int | None = None,
    behind: Path | None = None,
    stop: threading.Event | None = None,
    silence: float = 1800.0,
    outage: float = 1800.0,
    others: float = OTHERS_SECONDS,
    max_rate: float = 200.0,
    options: OpenOptions = DEFAULTS,
    as_json: bool = False,
) -> int:
    """Store each checkpoint of a run as soon as it is complete, and the rest at its end; see `store_run`.

    The event `stop` ends it. Without one it lowers the priority of this process and takes its signals. With
    `behind` it continues in a process of its own, whose id is in that file, and the calling process ends.
    """
    directory, signer = RunDirectory(run_dir), signer_from()
    stop = stop or signals.run_in_background(behind)
    limits = Patience(silence, outage, others_seconds=others)
    wait_for_run(directory, limits, stop)
    there = open_store_of(run_dir, store, options, RateLimit(max_rate * 1e6))
    report: SyncReport | FollowReport
    if is_further_machine(directory):
        report = follow_node(there, directory, run_number, stop=stop, patience=limits)
    else:
        report = follow_training(there, directory, run_number, stop=stop, patience=limits, signer=signer)
    _report(report, as_json=as_json)
    return report.exit_code


def store_checkpoint(
    checkpoint: Path,
    metrics: Path,
    *,
    code: Path | None = None,
    store: str | None = None,
    run_number: int | None = None,
    options: OpenOptions = DEFAULTS,
    dry_run: bool = False,
    as_json: bool = False,
) -> int:
    """Store a checkpoint and its metrics that are in no run directory, report it, return the exit code."""
    signer = None if dry_run else signer_from()
    with output.leave_log_to_terminal(), terminal.show_live(_display()) as display:
        there = open_store_of(None, store, options, display.advance)
        provenance = _provenance(checkpoint, code)
        if dry_run:
            plan = preview_files(there, checkpoint, metrics, run_number, provenance=provenance)
            return _print_plan(plan, as_json=as_json)
        report = sync_files(
            *(there, checkpoint, metrics, run_number), provenance=provenance, signer=signer, progress=display
        )
    _report(report, as_json=as_json)
    return report.exit_code


def _display() -> PhaseDisplay:
    return PhaseDisplay("artifacts", "reading the store")


def _print_plan(plan: Preview, *, as_json: bool) -> int:
    output.print_json(plan.to_json()) if as_json else output.print_text(plan.text())
    return plan.exit_code


def _report(report: SyncReport | FollowReport, *, as_json: bool) -> None:
    if as_json:
        output.print_json(report.to_json())
    output.announce("artifacts", report.summary(), "failed" if report.problems else "ok")
    github.set_outputs(report.outputs)


def _suggest_proof(directory: RunDirectory, url: str) -> None:
    """Print the command that proves the run again, if its last proof did not find it in the store."""
    if made_by():
        return
    try:
        proof = read_proof(directory, read_run(directory.run_file))
    except TrainyardError:  # a machine with only a part of the run, or a damaged record: it is stored anyway
        return
    if proof is not None and any(part.name == "stored" for part in proof.failing):
        words = ["--run-dir", str(directory.path), "--store", url, "--run-number", "auto"]
        output.announce("next", trainyard_command(f"prove {shlex.join(words)}"), copied=True)


def _bucket(name: str) -> Store:
    return open_store(f"s3://{name}")


def _provenance(checkpoint: Path, code: Path | None = None) -> Json:
    """Return the origin of a checkpoint: the repository at `code`, or else the one that contains it.

    Without `code`, a checkpoint that is older than the repository's commit has no origin.
    Raises ConfigError when `code` is given and holds no committed code, or the checkpoint has a run's record.
    """
    if code is not None and standalone_checkpoint.run_file_of(checkpoint) is not None:
        raise ConfigError(f"--code {code}: {checkpoint} is in a run directory, whose run.json names its code")
    if code is not None and not git_facts(code):
        raise ConfigError(f"--code {code}: no file there is committed. Name a folder of the repository")
    git, why = repository_facts(code or checkpoint), "it is in no repository"
    if git and code is None and is_older_than_head(checkpoint):
        git, why = {}, f"it is older than commit {git['commit'][:12]} of the repository that holds it"
    if not git and standalone_checkpoint.run_file_of(checkpoint) is None:
        LOG.warning(
            "%s: its commit is unknown, because %s; --code DIR names the repository of its code",
            str(checkpoint).encode(errors="backslashreplace").decode(),
            why,
        )
    return {"git": git, "ci": ci_facts_at(git.get("commit"))}
