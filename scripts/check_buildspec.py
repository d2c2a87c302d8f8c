#!/usr/bin/env python3
"""Check a buildspec of CodeBuild: known keys, values of the right type, one command per line.

CodeBuild publishes no schema, and ignores some misspelt keys without a message.

Reads:   the buildspec
Writes:  each problem with its line on stderr; in GitHub Actions an annotation for each; --json prints them
Exit codes: 0 it can be used; 2 it has problems, which are listed, or there is no such file
Example: scripts/check_buildspec.py buildspec.yml
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from trainyard.command import arguments, handler, output
from trainyard.command.parser import script_parser
from trainyard.errors import ExitCode

_ROOT = Path(__file__).resolve().parent.parent


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    file = "default: buildspec.yml of this checkout"
    parser.add_argument("buildspec", type=arguments.path, nargs="?", metavar="FILE", help=file)
    parser.add_argument("--json", action="store_true", help="print the problems as JSON")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)
    from trainyard.gateways.github import annotate_problems
    from trainyard.repository.buildspec import find_buildspec_problems
    from trainyard.run.untrusted_files import read_named_text

    path = args.buildspec or _ROOT / "buildspec.yml"
    name = str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
    found = find_buildspec_problems(read_named_text(path, "name the buildspec"), name)
    for problem in found:
        sys.stderr.write(f"{problem}\n")
        annotate_problems(str(problem))
    if args.json:
        output.print_json([str(problem) for problem in found])
    said = f"{len(found)} problem{'s' * (len(found) != 1)} in {name}" if found else f"{name} can be used"
    output.announce("buildspec", said, "failed" if found else "ok")
    return ExitCode.USAGE if found else ExitCode.DONE


if __name__ == "__main__":
    sys.exit(handler.exit_code_of(main))
