#!/usr/bin/env python3
"""Store a run's checkpoints, metrics and records, and a manifest of them that goes last.

Run it twice, or again after a failure: what the store holds already is not sent again.

Reads:  --run-dir (or --checkpoint and --metrics); its config.yaml where --store or --encryption is not given;
        AWS_* (credentials, AWS_REGION, AWS_ENDPOINT_URL, AWS_MAX_ATTEMPTS: 5 a call);
        TRAINYARD_SIGNING_KEY[_FILE, _PASSWORD] or TRAINYARD_SIGNING=keyless, to sign the manifest with
Writes: objects in the store; with --json a report on stdout; the step outputs manifest, manifest_sha256
Exit codes: 0 stored; 1 not whole, the number another run's, a full disk; 2 usage; 4 the store refuses;
        --follow: 5 no run, or no news of one without an outcome; 75 SIGTERM or SIGINT: run it again to go on

Example: scripts/training_artifact_sync.py --run-dir runs/20261120-214501-7c1f --store s3://ml-runs
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainyard.command import arguments, handler, output, signals
from trainyard.command.parser import script_parser

Json = dict[str, Any]
ENCRYPTIONS = ("AES256", "aws:kms", "none")
FOLLOW = "beside the trainer, at the lowest priority: each checkpoint once it is whole, the rest at the end"


def calculate_file_hash(file_path: str) -> str:
    """The hex SHA-256 of a file."""
    return str(_files().calculate_file_hash(file_path))


def sync_to_s3(local_path: str, s3_bucket: str, s3_key: str, metadata: Json | None = None) -> bool:
    """Upload a file, encrypted, its SHA-256 confirmed by S3; False, with the reason logged, if that fails."""
    return bool(_files().store_file(_bucket(s3_bucket), Path(local_path), s3_key, metadata or {}))


def create_manifest(checkpoint_path: str, metrics_path: str, s3_bucket: str, run_number: int) -> Json:
    """The manifest of a checkpoint and its metrics, from the files on disk."""
    files = Path(checkpoint_path), Path(metrics_path)
    return {"bucket": s3_bucket, **_files().describe_files(*files, run_number, provenance=_provenance())}


def upload_manifest(manifest: Json, s3_bucket: str, run_number: int) -> bool:
    """Put the manifest; False if the run has another one already."""
    return bool(_files().store_manifest(_bucket(s3_bucket), manifest, run_number))


def verify_s3_upload(s3_key: str, expected_hash: str, s3_bucket: str) -> bool:
    """Whether the object's SHA-256, as S3 computed it or else read back, is the expected one."""
    return bool(_files().object_has_hash(_bucket(s3_bucket), s3_key, expected_hash))


def _encryption(text: str) -> str:
    if text in ENCRYPTIONS:
        return text
    raise argparse.ArgumentTypeError(
        f"{text[:80]!r} is none of {', '.join(ENCRYPTIONS)}. Make a KMS key of your own the bucket's "
        "default key, and ask for none"
    )


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    what, where = (parser.add_mutually_exclusive_group(required=required) for required in (True, False))
    what.add_argument("--run-dir", type=arguments.path, help="the run's directory")
    loose = "a checkpoint file or directory of no run directory"
    what.add_argument("--checkpoint", type=arguments.path, help=loose)
    metrics = "with --checkpoint: its metrics, JSON or JSON lines"
    parser.add_argument("--metrics", type=arguments.path, help=metrics)
    where.add_argument("--store", metavar="URL", help="s3://bucket/prefix or file:///folder")
    bucket = "short for --store s3://NAME"
    where.add_argument("--s3-bucket", dest="store", metavar="NAME", type="s3://{}".format, help=bucket)
    number = "N, or auto: the number it has, else a free one"
    parser.add_argument("--run-number", default="auto", metavar="N|auto", help=number)
    _add_ways(parser)
    parser.add_argument("--encryption", type=_encryption, choices=ENCRYPTIONS, help="asked of S3")
    checksums, of = ("CRC64NVME", "SHA256"), "S3's own, of files above 64 MiB: CRC64NVME"
    parser.add_argument("--checksum", choices=checksums, default=checksums[0], help=of)
    limit = "time limit of a read or write, 30"
    parser.add_argument("--call-seconds", type=arguments.seconds, default=30, help=limit)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    args = parser.parse_args(argv)
    if (reason := _impossible(args)) is not None:
        parser.error(reason)
    return args


def _add_ways(parser: argparse.ArgumentParser) -> None:
    """One pass, or beside the trainer; and how."""
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--once", action="store_true", help="one pass; this is also the default")
    how.add_argument("--follow", action="store_true", help=FOLLOW)
    how.add_argument("--dry-run", action="store_true", help="say what would be sent, send nothing")
    for flag, help_ in (
        ("--silence", "with --follow: how long a run may write nothing, 30m"),
        ("--outage", "with --follow: how long the store may be away, 30m"),
    ):
        parser.add_argument(flag, type=arguments.duration, default=1800.0, metavar="DURATION", help=help_)
    behind = "with --follow: go on behind what starts it; process id in FILE, words in FILE.log"
    parser.add_argument("--behind", type=arguments.path, metavar="FILE", help=behind)
    rate = "with --follow: MB read a second, 200"
    parser.add_argument("--max-rate", type=arguments.rate, default=200, help=rate)


def _impossible(args: argparse.Namespace) -> str | None:
    """What is wrong with options that fit the parser; None if nothing is."""
    if args.checkpoint and not args.metrics:
        return "--checkpoint needs --metrics, the metrics that belong to it"
    if args.follow and args.checkpoint:
        return "--follow needs --run-dir: a checkpoint alone does not go on"
    if args.behind and not args.follow:
        return "--behind needs --follow: everything else ends by itself"
    return None


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    watched = output.on_terminal() and not args.follow  # a live line says there what a log gets in lines
    output.configure_logging(args.log_level or ("warning" if watched else "info"))
    from trainyard.command.terminal import shown
    from trainyard.report.terminal.phase import PhaseDisplay

    display = PhaseDisplay("artifacts")
    display.begin("looking into the store")
    with shown(display):
        from trainyard.artifacts.record import run_numbers
        from trainyard.artifacts.upload import node_parts, preview, sync
        from trainyard.gateways import github, signing
        from trainyard.run.directory import RunDirectory

        wanted = run_numbers.parse_run_number(args.run_number)
        signed: Json = {} if args.dry_run else {"signer": signing.signer_from()}
    shows: Json = {} if args.dry_run else {"progress": display}
    if args.follow:
        result: Any = _follow(args, RunDirectory(args.run_dir), wanted, signed)
    elif args.checkpoint:
        files = _files().preview_files if args.dry_run else _files().sync_files
        paths = args.checkpoint, args.metrics
        with shown(display):
            store = _open(args, pace=display.advance)
            result = files(store, *paths, wanted, provenance=_provenance(), **signed, **shows)
    elif not args.dry_run and node_parts.is_further_machine(RunDirectory(args.run_dir)):
        with shown(display):
            store = _open(args, pace=display.advance)
            result = node_parts.sync_node(store, RunDirectory(args.run_dir), wanted, **shows)
    else:
        run: Any = preview.preview_run if args.dry_run else sync.sync_run
        with shown(display):
            store = _open(args, pace=display.advance)
            result = run(store, RunDirectory(args.run_dir), wanted, **signed, **shows)
    if args.json or args.dry_run:
        print(json.dumps(result.to_json(), indent=2) if args.json else result.text())
    if not args.dry_run:
        output.announce("artifacts", result.summary(), "failed" if result.problems else "ok")
        github.set_outputs(result.outputs)
    return int(result.exit_code)


def _follow(args: argparse.Namespace, directory: Any, wanted: int | None, signed: Json) -> Any:
    from trainyard.artifacts.upload import node_parts, pace, run_following

    stop, limits = signals.stand_back(args.behind), run_following.Patience(args.silence, args.outage)
    run_following.wait_for_run(directory, limits, stop)
    store = _open(args, pace=pace.Pace(args.max_rate * 1e6))
    if node_parts.is_further_machine(directory):
        return node_parts.follow_node(store, directory, wanted, stop=stop, patience=limits)
    return run_following.follow_run(store, directory, wanted, stop=stop, patience=limits, **signed)


def _bucket(name: str) -> Any:
    return _open(parse_args(["--checkpoint=.", "--metrics=.", "--s3-bucket", name]))


def _open(args: argparse.Namespace, **pace: Any) -> Any:
    from trainyard.artifacts.store import store_settings
    from trainyard.gateways import open_store

    url, kind = store_settings.store_settings(args.run_dir, url=args.store, encryption=args.encryption)
    return open_store(url, encryption=kind, call_seconds=args.call_seconds, checksum=args.checksum, **pace)


def _files() -> Any:
    from trainyard.artifacts.upload import standalone_checkpoint

    return standalone_checkpoint


def _provenance() -> Json:
    from trainyard.gateways.git import git_facts
    from trainyard.run.identity import ci_facts

    return {"git": git_facts(Path()), "ci": ci_facts()}


if __name__ == "__main__":
    sys.exit(handler.exit_code_of(main))
