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

from trainyard import command

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
    from trainyard.artifacts.sync_options import parse_sync_options as parse

    return parse(command.parser(__doc__), argv, command.duration, seconds=command.seconds)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    watched = command.on_terminal() and not args.follow  # a live line says there what a log gets in lines
    command.configure_logging(args.log_level or ("warning" if watched else "info"))
    from trainyard.report.phase import PhaseDisplay
    from trainyard.terminal import shown

    display = PhaseDisplay("artifacts")
    display.begin("looking into the store")
    with shown(display):
        from trainyard.artifacts import numbers, preview, sync
        from trainyard.gateways import github, signing
        from trainyard.run.directory import RunDirectory

        wanted = numbers.parse_run_number(args.run_number)
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
    else:
        run: Any = preview.preview_run if args.dry_run else sync.sync_run
        with shown(display):
            store = _open(args, pace=display.advance)
            result = run(store, RunDirectory(args.run_dir), wanted, **signed, **shows)
    if args.json or args.dry_run:
        print(json.dumps(result.to_json(), indent=2) if args.json else result.text())
    if not args.dry_run:
        command.announce("artifacts", result.summary(), "failed" if result.problems else "ok")
        github.set_outputs(result.outputs)
    return int(result.exit_code)


def _follow(args: argparse.Namespace, directory: Any, wanted: int | None, signed: Json) -> Any:
    from trainyard.artifacts import following, pace

    stop, limits = command.stand_back(args.behind), following.Patience(args.silence, args.outage)
    following.wait_for_run(directory, limits, stop)
    store = _open(args, pace=pace.Pace(args.max_rate * 1e6))
    return following.follow_run(store, directory, wanted, stop=stop, patience=limits, **signed)


def _bucket(name: str) -> Any:
    return _open(parse_args(["--checkpoint=.", "--metrics=.", "--s3-bucket", name]))


def _open(args: argparse.Namespace, **pace: Any) -> Any:
    from trainyard.artifacts import settings
    from trainyard.gateways import open_store

    url, kind = settings.store_settings(args.run_dir, url=args.store, encryption=args.encryption)
    return open_store(url, encryption=kind, call_seconds=args.call_seconds, checksum=args.checksum, **pace)


def _files() -> Any:
    from trainyard.artifacts import loose_files

    return loose_files


def _provenance() -> Json:
    from trainyard.gateways.git import git_facts
    from trainyard.run.identity import ci_facts

    return {"git": git_facts(Path()), "ci": ci_facts()}


if __name__ == "__main__":
    sys.exit(command.exit_code_of(main))
