"""Check the settings of a bucket: versions, encryption, aborted uploads, public access. --fix corrects them.

Only settings are changed, never an object. A setting applies only to new objects, so the encryption of the
newest run's objects is reported as well. A setting that the store does not have, or that the role may not
read, is reported and does not count as a failure.

Reads:  --store: its settings, the newest run's manifest, the encryption of its objects; AWS_*
        (credentials, AWS_REGION, AWS_ENDPOINT_URL, AWS_MAX_ATTEMPTS)
Writes: with --fix the wrong settings of the bucket; a line for each setting on stdout
Exit codes: 0 all is right, or was fixed; 1 something is wrong; 2 wrong usage; 4 the store cannot be reached

Example: trainyard store check --store s3://ml-runs/phase2 --fix
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING

from trainyard.artifacts.record.chain import newest_run
from trainyard.artifacts.store.store_address import open_setup, open_store
from trainyard.command import output
from trainyard.command.parser import script_parser
from trainyard.errors import ExitCode, ServiceError

if TYPE_CHECKING:
    from trainyard.gateways.s3.bucket_setup import BucketFinding, BucketSetup


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__, reads_store=True)
    wanted = "encryption that the bucket must have; --fix sets it"
    parser.add_argument("--encryption", choices=("AES256", "aws:kms"), default="AES256", help=wanted)
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--fix", action="store_true", help="correct wrong settings")
    how.add_argument("--dry-run", action="store_true", help="change nothing; this is also the default")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)

    setup = open_setup(args.store, encryption=args.encryption, call_seconds=args.call_seconds)
    findings = []
    newest = _encryption_findings(setup, args.store, call_seconds=args.call_seconds)
    for finding in chain(setup.findings(fix=args.fix), newest):
        findings.append(finding)
        if not args.json:
            output.print_text(finding.text())
    if args.json:
        output.print_json({"findings": [asdict(finding) for finding in findings]})
    bad = sum(finding.good is False for finding in findings)
    verdict = f"{bad} of {len(findings)} findings about {args.store} need attention"
    output.announce("store", verdict, "failed" if bad else "ok")
    return ExitCode.NO if bad else ExitCode.DONE


def _encryption_findings(setup: "BucketSetup", url: str, *, call_seconds: float) -> Iterator["BucketFinding"]:
    """Return the encryption of the newest run's objects; nothing without a stored or readable run."""
    try:
        newest = newest_run(open_store(url, call_seconds=call_seconds))
    except ServiceError as error:
        output.print_remarks([f"stored objects were not checked: {error}"])
        return
    if newest is not None:
        yield setup.check_objects([entry.key for entry in newest.objects])
