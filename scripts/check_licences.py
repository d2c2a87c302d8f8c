#!/usr/bin/env python3
"""Check that every package of the locks has a licence that this repository allows.

It compares the licence in each installed package's metadata with the allowed licences and the exceptions,
both in trainyard.machine.licences. Packages for other platforms are not installed here; they are listed and
not judged.

Reads:      requirements-training.txt, requirements-development.txt, the metadata of the installed packages
Writes:     a line for each refused package on stderr; with --json every finding on stdout
Exit codes: 0 all are allowed; 1 a package is refused, or not installed as locked; 2 a lock cannot be read
Example:    scripts/check_licences.py --json
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.command import arguments, handler, output
from trainyard.command.parser import script_parser
from trainyard.errors import ExitCode

if TYPE_CHECKING:
    from trainyard.machine.licences import LicenceFinding

ROOT = Path(__file__).resolve().parent.parent
LOCKS = [ROOT / "requirements-training.txt", ROOT / "requirements-development.txt"]


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument(
        "locks", type=arguments.path, nargs="*", default=LOCKS, metavar="LOCK", help="default: both locks"
    )
    parser.add_argument("--json", action="store_true", help="print every finding as JSON")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)
    from trainyard.gateways.local_machine import declared_licences
    from trainyard.machine.licences import LicenceStanding, judge_licences
    from trainyard.machine.package_lock import read_pins
    from trainyard.run.untrusted_files import read_named_text

    texts = [read_named_text(lock, "name a lock that make lock wrote") for lock in args.locks]
    findings = judge_licences([pin for text in texts for pin in read_pins(text)], declared_licences())
    if args.json:
        output.print_json([asdict(finding) for finding in findings])
    refused = [finding for finding in findings if finding.standing == LicenceStanding.REFUSED]
    for finding in refused:
        sys.stderr.write(f"{finding.package} {finding.version}".rstrip() + f": {finding.reason}.\n")
    output.announce("licences", summary(findings), "failed" if refused else "ok")
    return ExitCode.NO if refused else ExitCode.DONE


def summary(findings: "Sequence[LicenceFinding]") -> str:
    """Return the number of packages per verdict, and the names of those that were not judged."""
    from trainyard.machine.licences import LicenceStanding

    names = {kind: [f.package for f in findings if f.standing == kind] for kind in LicenceStanding}
    parts = [
        f"{len(names[LicenceStanding.ALLOWED])} allowed",
        f"{len(names[LicenceStanding.EXCEPTED])} by exception",
    ]
    if names[LicenceStanding.REFUSED]:
        parts.append(f"{len(names[LicenceStanding.REFUSED])} refused")
    if names[LicenceStanding.ELSEWHERE]:
        parts.append(f"not judged (of other platforms): {' '.join(names[LicenceStanding.ELSEWHERE])}")
    return ", ".join(parts)


if __name__ == "__main__":
    sys.exit(handler.exit_code_of(main))
