"""Check the settings of a bucket: versions, encryption, aborted uploads, public access. --fix corrects them.

Only settings are changed, never an object, and a setting applies only to new objects. A setting that the
store does not have, or that the role may not read, is reported and does not count as a failure.

Reads:  --store: its settings; AWS_* (credentials, AWS_REGION, AWS_ENDPOINT_URL, AWS_MAX_ATTEMPTS)
Writes: with --fix the wrong settings of the bucket; a line for each setting on stdout
Exit codes: 0 all is right, or was fixed; 1 something is wrong; 2 wrong usage; 4 the store cannot be reached

Example: trainyard store check --store s3://ml-runs/phase2 --fix
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict

from trainyard.artifacts.store.store_address import open_setup
from trainyard.command import output
from trainyard.command.parser import add_flag, script_parser
from trainyard.errors import ExitCode


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__, reads_store=True, json="the findings")
    wanted = "encryption that the bucket must have; --fix sets it"
    parser.add_argument("--encryption", choices=("AES256", "aws:kms"), default="AES256", help=wanted)
    how = parser.add_mutually_exclusive_group()
    add_flag(how, "--fix", "correct wrong settings")
    add_flag(how, "--dry-run", "change nothing; this is also the default")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    setup = open_setup(args.store, encryption=args.encryption)
    findings = []
    for finding in setup.findings(fix=args.fix):
        findings.append(finding)
        if not args.json:
            output.print_text(finding.text())
    if args.json:
        output.print_json({"findings": [asdict(finding) for finding in findings]})
    bad = sum(finding.good is False for finding in findings)
    verdict = f"{bad} of {len(findings)} findings about {args.store} need attention"
    output.announce("store", verdict, "failed" if bad else "ok")
    return ExitCode.NO if bad else ExitCode.DONE
