"""Publish a built release on GitHub with `gh`: a draft first, public once every file is there.

An interrupted publication is continued. A release that is public already is not changed.

Reads:   --dist, whose files must match its SHA256SUMS; --notes; GH_TOKEN, for gh.
Writes:  the release of the tag and its files; with --dry-run the plan is printed.
Exit codes: 0 published, now or before; 1 the files do not match SHA256SUMS, or the public release has other
         files; 2 no such folder or tag; 4 GitHub refused.
Example: scripts/publish_release.py --tag v0.1.0 --dist dist --notes notes.md
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainyard.command import arguments, output
from trainyard.command.parser import script_parser
from trainyard.errors import CheckFailedError, ServiceError
from trainyard.gateways.process import run_program
from trainyard.github.release import verified_files

SECONDS = 600
UNATTESTED = (
    "GitHub did not attest these files: in a private repository it does so with Enterprise Cloud only."
)


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("--tag", metavar="TAG", required=True, help="such as v1.2.3; it must be on GitHub")
    parser.add_argument(
        "--dist", type=arguments.path, required=True, metavar="DIR", help="folder that build_release.py wrote"
    )
    parser.add_argument(
        "--notes", type=arguments.path, required=True, metavar="FILE", help="the notes of the release"
    )
    parser.add_argument("--preliminary", choices=("true", "false"), default="false", help="a pre-release")
    attested = "outcome of the attestation; if it is not success, the notes say so"
    parser.add_argument("--attested", default="success", metavar="OUTCOME", help=attested)
    parser.add_argument("--dry-run", action="store_true", help="print the plan, change nothing")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)

    files = [str(path) for path in verified_files(args.dist)]
    names = {Path(file).name for file in files}
    if args.dry_run:
        print(f"{args.tag} would be published with {', '.join(sorted(names))}")
        return 0
    there = release_of(args.tag)
    if there is not None and not there["isDraft"]:
        if {asset["name"] for asset in there["assets"]} != names:
            raise CheckFailedError(f"{args.tag} is public with other files. Release a new version instead.")
        output.announce("release", f"{args.tag} is public already", "ok")
        return 0
    if there is None:
        if args.attested != "success":
            with args.notes.open("a", encoding="utf-8") as notes:
                notes.write(f"\n{UNATTESTED}\n")
            output.announce("release", UNATTESTED, "degraded")
        more = ["--prerelease"] if args.preliminary == "true" else []
        title = ["--title", f"Trainyard {args.tag.removeprefix('v')}", "--notes-file", str(args.notes)]
        gh("create", args.tag, "--draft", "--verify-tag", *title, *more)
    gh("upload", args.tag, "--clobber", *files)
    gh("edit", args.tag, "--draft=false")
    output.announce("release", f"{args.tag} is public with {len(files)} files", "ok")
    return 0


def release_of(tag: str) -> dict[str, Any] | None:
    """Return `isDraft` and `assets` of the release; None if there is none."""
    line = ["gh", "release", "view", tag, "--json", "isDraft,assets"]
    done = run_program(line, seconds=SECONDS)
    if done.ok:
        found: dict[str, Any] = json.loads(done.stdout)
        return found
    if "release not found" in done.stderr:
        return None
    raise ServiceError(f"gh release view {tag}: {done.stderr.strip()[-500:]}")


def gh(verb: str, *arguments: str) -> None:
    done = run_program(["gh", "release", verb, *arguments], seconds=SECONDS)
    if not done.ok:
        raise ServiceError(f"gh release {verb} {arguments[0]}: {done.stderr.strip()[-500:]}")
