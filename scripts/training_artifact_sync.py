#!/usr/bin/env python3
"""Store a run's checkpoints, metrics and records, and a manifest of them that goes last.

What the store holds already is not sent again: it is safe to run twice, and goes on after a failure.

Reads:  --run-dir (or --checkpoint and --metrics); its config.yaml where --store or --encryption is not given;
        AWS_* (credentials, AWS_REGION, AWS_ENDPOINT_URL, AWS_MAX_ATTEMPTS: attempts a call, 5)
Writes: objects in the store; with --json a report on stdout
Exit codes: 0 stored; 1 a checkpoint is not whole, or the number another run's; 2 usage; 4 the store refuses

Example: scripts/training_artifact_sync.py --run-dir runs/20261120-214501-7c1f --store s3://ml-runs
         scripts/training_artifact_sync.py --checkpoint latest.pt --metrics metrics.json --s3-bucket runs
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainyard import command
from trainyard.errors import ExitCode

Json = dict[str, Any]


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


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = command.parser(__doc__)
    what, where = (parser.add_mutually_exclusive_group(required=required) for required in (True, False))
    what.add_argument("--run-dir", type=Path, help="the run's directory")
    what.add_argument("--checkpoint", type=Path, help="a checkpoint file or directory of no run directory")
    parser.add_argument("--metrics", type=Path, help="with --checkpoint: its metrics, JSON or JSON lines")
    where.add_argument("--store", help="s3://bucket/prefix or file:///folder")
    where.add_argument("--s3-bucket", help="short for --store s3://NAME")
    parser.add_argument("--run-number", default="auto", help="N, or auto: the number it has, else a free one")
    parser.add_argument("--once", action="store_true", help="one pass; this is also the default")
    parser.add_argument("--encryption", choices=("AES256", "aws:kms", "none"), help="asked of S3")
    parser.add_argument("--call-seconds", type=float, default=30, help="time limit of a read or write, 30")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--dry-run", action="store_true", help="say what would be sent, send nothing")
    args = parser.parse_args(argv)
    if args.checkpoint and not args.metrics:
        parser.error("--checkpoint needs --metrics, the metrics that belong to it")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    command.configure_logging(args.log_level)
    from trainyard.artifacts import numbers, preview, settings, sync
    from trainyard.gateways import open_store
    from trainyard.run.directory import RunDirectory

    wanted = numbers.parse_run_number(args.run_number)
    given = f"s3://{args.s3_bucket}" if args.s3_bucket else args.store
    url, encryption = settings.store_settings(args.run_dir, url=given, encryption=args.encryption)
    store = open_store(url, encryption=encryption, call_seconds=args.call_seconds)
    if args.checkpoint:
        files = _files().preview_files if args.dry_run else _files().sync_files
        result = files(store, args.checkpoint, args.metrics, wanted, provenance=_provenance())
    else:
        run: Any = preview.preview_run if args.dry_run else sync.sync_run
        result = run(store, RunDirectory(args.run_dir), wanted)
    if not args.dry_run:
        command.announce("artifacts", result.summary(), "failed" if result.problems else "ok")
    if args.json:
        print(json.dumps(result.to_json(), indent=2))
    elif args.dry_run:
        print(result.text())
    return ExitCode.NO if result.problems else ExitCode.DONE


def _bucket(name: str) -> Any:
    from trainyard.gateways import open_store

    return open_store(f"s3://{name}")


def _files() -> Any:
    from trainyard.artifacts import loose_files

    return loose_files


def _provenance() -> Json:
    from trainyard.gateways.git import git_facts
    from trainyard.run.identity import ci_facts

    return {"git": git_facts(Path()), "ci": ci_facts()}


if __name__ == "__main__":
    sys.exit(command.exit_code_of(main))
