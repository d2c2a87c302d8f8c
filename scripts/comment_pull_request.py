#!/usr/bin/env python3
"""Write the comparison of base and head into a comment of a pull request, and keep that comment up to date.

The comment is found by its hidden mark among the comments of bots. If GitHub refuses the comment, as it does
for the token of a fork, that is only a warning, because the job summary has the comparison too.

Reads:   --comparison, the JSON of compare_change.py, every part of which is checked; GITHUB_TOKEN,
         which needs pull-requests: write; GitHub's variables.
Writes:  the comment; with --dry-run the comment is printed on stdout.
Exit codes: 0 written, up to date already, or refused by GitHub; 2 no comparison, or not in a workflow run.
Example: scripts/comment_pull_request.py --comparison comparison.json --pull-request 57
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainyard.command import arguments, handler, output
from trainyard.command.parser import script_parser
from trainyard.errors import ConfigError, DamagedFileError, ServiceError

_logger = logging.getLogger("trainyard.comment_pull_request")


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument(
        "--comparison", type=arguments.path, required=True, metavar="FILE", help="the JSON of it"
    )
    parser.add_argument(
        "--pull-request", type=arguments.positive, required=True, metavar="N", help="its number"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the comment, write nothing")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)
    from trainyard.gateways.github import Level, annotate
    from trainyard.report.change.change import comparison_from
    from trainyard.report.change.change_markdown import comment
    from trainyard.run.identity import ci_facts, run_address

    body = comment(comparison_from(read(args.comparison)), address=run_address(ci_facts()))
    if args.dry_run:
        sys.stdout.write(body)
        return 0
    try:
        done = put(args.pull_request, body)
    except ServiceError as error:
        _logger.warning("The comment was not written: %s", error)
        annotate(Level.WARNING, f"{error}. The job summary has the comparison.", title="No comment written")
        return 0
    output.announce("comment", f"pull request {args.pull_request}: {done}", "ok")
    return 0


def read(path: Path) -> Any:
    from trainyard.run.untrusted_files import read_json

    try:
        return read_json(path)
    except (FileNotFoundError, DamagedFileError) as error:
        raise ConfigError(str(error)) from None


def put(pull_request: int, body: str) -> str:
    """Create the comment or update the existing one; return what was done."""
    from trainyard.gateways.github_api import github_from
    from trainyard.report.change.change_markdown import MARK

    github, place = github_from(), f"/issues/{pull_request}/comments"
    for found in github.pages(place):
        author = found.get("user") or {}
        if author.get("type") == "Bot" and str(found.get("body") or "").startswith(MARK):
            if found["body"].strip() == body.strip():
                return "as it was"
            github.patch(f"/issues/comments/{found['id']}", {"body": body})
            return "brought up to date"
    github.post(place, {"body": body})
    return "written"


if __name__ == "__main__":
    sys.exit(handler.exit_code_of(main))
