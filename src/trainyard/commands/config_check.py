"""Check configurations and report every problem with its line; in GitHub Actions also as an annotation.

Reads:   the named files, else every .yaml under configs/, and the files that they extend. A preset of a model
         (a file in a folder models/) has no number of steps; it is checked with training.max_steps=1. A file
         that leaves the model to weights named on the command line (fine_tuning.yaml) is checked as if they
         were there.
Writes:  a line per file on stderr; in GitHub Actions an annotation for each problem; --json prints all.
Exit codes: 0 all can be used; 2 a file has problems, which are listed, or there is no file to check.
Example: trainyard config check configs/smoke.yaml
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from trainyard.command import arguments, output
from trainyard.command.checkout import REPOSITORY_ROOT
from trainyard.command.parser import script_parser
from trainyard.config.from_weights import NO_WEIGHTS
from trainyard.config.load import load_config
from trainyard.errors import ConfigError, ExitCode
from trainyard.gateways.github import annotate_problems


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__, json="each file with its problems")
    files = "default: all below configs/"
    parser.add_argument("files", type=arguments.path, nargs="*", metavar="FILE", help=files)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    files = args.files or [
        relative_path(path) for path in sorted((REPOSITORY_ROOT / "configs").rglob("*.yaml"))
    ]
    if not files:
        raise ConfigError(f"{REPOSITORY_ROOT / 'configs'}: there is no configuration to check")
    problems = {str(path): problem_with(path) for path in files}
    wrong = {path: problem for path, problem in problems.items() if problem}
    for problem in dict.fromkeys(wrong.values()):
        sys.stderr.write(f"{problem}\n")
        annotate_problems(problem)
    if args.json:
        output.print_json({"problems": problems})
    summary = f"{len(files) - len(wrong)} of {len(files)} can be used"
    output.announce("configs", summary, "failed" if wrong else "ok")
    return ExitCode.USAGE if wrong else ExitCode.DONE


def problem_with(path: Path, *weights: str) -> str:
    """Return the problems of a file, one line each; empty if there are none.

    Where only the weights are missing, the rest is checked as if they were named.
    """
    changes = ["training.max_steps=1"] if path.parent.name == "models" else []
    try:
        load_config(path, [*changes, *weights])
    except ConfigError as error:
        lacks_weights = NO_WEIGHTS in str(error) and not weights
        return problem_with(path, "model.path=weights") if lacks_weights else str(error)
    return ""


def relative_path(path: Path) -> Path:
    """Return the path relative to the working directory, as GitHub annotations need it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
