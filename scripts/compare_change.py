#!/usr/bin/env python3
"""Compare short training runs of a base and a head: loss, tokens/s, memory; report what got worse.

Both sides are checkouts. Each trains with its own code and configuration, in its own environment (.venv) if
it has one. The rules say how often; base and head take turns, so that both meet the same state of the
machine. They get only a few harmless variables, because code that nobody has reviewed must not find secrets.

Reads:   both checkouts; the rules: --rules, else .github/comparison.yml of the base, else of the head.
Writes:  the comparison as JSON to --output, as Markdown to stdout; with --github-summary to the job summary;
         in GitHub Actions an annotation for what got worse, and the output `compared`.
Exit codes: 0 nothing got worse, or the base cannot be run or has no trainer yet; 1 a figure is worse by more
         than its limit, or the head no longer trains; 2 the rules are wrong, or a checkout is missing.
Example: scripts/compare_change.py --base ../base --head . --output comparison.json
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.command import arguments, handler, output
from trainyard.command.parser import script_parser
from trainyard.errors import ConfigError, ExitCode, TrainyardError

if TYPE_CHECKING:
    from trainyard.report.change.change import ChangeRules, Comparison, Measured

RULES = Path(".github/comparison.yml")


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument(
        "--base", type=arguments.path, required=True, metavar="DIR", help="the checkout to compare with"
    )
    parser.add_argument("--head", type=arguments.path, required=True, metavar="DIR", help="checkout to judge")
    parser.add_argument(
        "--rules", type=arguments.path, metavar="FILE", help="default: .github/comparison.yml"
    )
    parser.add_argument("--output", type=arguments.path, metavar="FILE", help="write the comparison as JSON")
    parser.add_argument("--github-summary", action="store_true", help="append it to the job summary")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)
    from trainyard.gateways.github import Level, annotate, append_summary, set_output
    from trainyard.report.change.change_markdown import markdown, reasons
    from trainyard.run.atomic_files import write_json_atomically

    if missing := [path for path in (args.base, args.head / "scripts" / "train.py") if not path.exists()]:
        raise ConfigError(f"{missing[0]}: no such folder, so there is nothing to compare")
    comparison = compare((args.base.resolve(), args.head.resolve()), rules_of(args))
    if args.output is not None:
        write_json_atomically(args.output, comparison.to_json())
    set_output("compared", "true")
    if args.github_summary:
        append_summary(markdown(comparison))
    sys.stdout.write(markdown(comparison))
    for title, reason in reasons(comparison):
        annotate(Level.ERROR, reason, title=title)
        output.announce("compared", f"{title}: {reason}", "failed")
    return ExitCode.NO if comparison.refused else ExitCode.DONE


def rules_of(args: argparse.Namespace) -> "ChangeRules":
    from trainyard.report.change.change import read_rules
    from trainyard.run.untrusted_files import read_named_text

    places = (args.rules, *(side / RULES for side in (args.base, args.head) if (side / RULES).is_file()))
    path = next((place for place in places if place), None)
    hint = "--rules names the file with the rules"
    return read_rules(read_named_text(path, hint) if path else "", str(path))


def compare(directories: tuple[Path, Path], rules: "ChangeRules") -> "Comparison":
    """Run base and head in turns, each first in every other round; a side that fails is not run again."""
    from trainyard.gateways.git import git_facts
    from trainyard.report.change.change import Comparison, Side

    runs: tuple[list[Measured], ...] = ([], [])
    problems = [call(side, "prepare_data.py", rules)[0] for side in directories]  # so that no run does
    with tempfile.TemporaryDirectory(prefix="trainyard-compare-") as work:
        for turn in range(rules.repeats):
            for side in (0, 1) if turn % 2 == 0 else (1, 0):
                if not problems[side]:
                    where = Path(work) / f"{side}-{turn}"
                    problems[side] = train(directories[side], rules, where, runs[side])
    commits = [str(git_facts(directory).get("commit") or directory.name) for directory in directories]
    return Comparison(rules, *(Side(commits[i], tuple(runs[i]), problems[i]) for i in (0, 1)))


def train(directory: Path, rules: "ChangeRules", run_directory: Path, runs: "list[Measured]") -> str:
    """Add one run to `runs`; return why that failed, else an empty text."""
    from trainyard.report.change.change import measure_run

    problem, memory = call(directory, "train.py", rules, "--run-dir", str(run_directory))
    if not problem:
        try:
            runs.append(measure_run(run_directory, memory))
        except TrainyardError as error:
            return f"It left no record that can be read: {error}"
        output.announce("measured", f"{directory.name}: {runs[-1]}")
    return problem


def call(directory: Path, script: str, rules: "ChangeRules", *more: str) -> tuple[str, int]:
    """Run a script of a side; return why it failed (else empty), and its memory in bytes."""
    from trainyard.gateways.checkout import run_script

    arguments = ["--config", rules.config, *(f"--set={change}" for change in rules.overrides), *more]
    if not (directory / "scripts" / script).is_file():
        return f"It has no scripts/{script} yet.", 0
    done = run_script(directory, script, arguments, seconds=60 * rules.minutes)
    end = "\n".join(done.log.strip().splitlines()[-15:])
    return (f"{script} ended with {done.exit_code}:\n{end}", 0) if done.exit_code else ("", done.memory_bytes)


if __name__ == "__main__":
    sys.exit(handler.exit_code_of(main))
