"""Check that a tag may be released: the same version everywhere, dated notes, a commit of the main branch.

Reads:   pyproject.toml, src/trainyard/__init__.py, CHANGELOG.md; git's history.
Writes:  with --notes the section of the changelog; in GitHub Actions the outputs `version`, `preliminary`
         and `moving` (the tag of the major version, such as v1); --json prints version, title and notes.
Exit codes: 0 it may; 1 the versions differ, or the commit is not on the branch; 2 the tag is not a version.
Example: trainyard step check-release --tag v0.1.0
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from trainyard.command import arguments, output
from trainyard.command.checkout import REPOSITORY_ROOT
from trainyard.command.parser import add_option, script_parser
from trainyard.errors import CheckFailedError
from trainyard.gateways.github import set_outputs
from trainyard.gateways.process import run_program
from trainyard.github.release import read_release
from trainyard.run.atomic_files import write_bytes_atomically


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__, json="the result")
    add_option(parser, "--tag", "TAG", "such as v1.2.3, v1.2.3rc1 or v1", required=True)
    branch = "the branch that must contain it; default: origin/main"
    parser.add_argument("--branch", default="origin/main", help=branch)
    add_option(
        parser, "--root", "DIR", "default: this checkout", type=arguments.path, default=REPOSITORY_ROOT
    )
    add_option(parser, "--notes", "FILE", "write the notes to this file", type=arguments.path)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    release = read_release(args.root, args.tag)
    check_branch(args.root, args.branch)
    if args.notes is not None:
        write_bytes_atomically(args.notes, f"{release.notes}\n".encode())
    preliminary = str(release.is_preliminary).lower()
    set_outputs({"version": release.version, "preliminary": preliminary, "moving": release.moving_tag})
    output.announce("release", f"{release.version}: one version in every place, on {args.branch}", "ok")
    if args.json:
        known = {"version": release.version, "title": f"Trainyard {release.version}", "notes": release.notes}
        output.print_json(known)
    return 0


def check_branch(root: Path, branch: str) -> None:
    """Raise CheckFailedError when the commit is not on `branch`, because only merged commits are released."""
    line = ["git", "-C", str(root), "merge-base", "--is-ancestor", "HEAD", branch]
    done = run_program(line, seconds=30)
    if not done.ok:
        why = done.stderr.strip() or "merge it first, then tag what was merged"
        raise CheckFailedError(f"The commit is not on {branch}: {why}")
