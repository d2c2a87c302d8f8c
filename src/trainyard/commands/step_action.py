"""Run the pipeline for the action of this repository (`action.yml`), with the inputs of a workflow.

Reads:      COMMAND, CONFIG, CHANGES, STORE, RUN_NUMBER, RUN_DIR, RESUME and DEADLINE: the inputs of the
            action; an empty input counts as not given. TRAINYARD_AWS_ROLE: the role for the store.
            TRAINYARD_PASS: variables of ours that the program gets, too, such as SLACK_WEBHOOK_URL
Writes:     what `trainyard run` writes; the step outputs `run_dir` and `exit_code`, and those of the proof
Exit codes: those of `trainyard run`
Example:    COMMAND="python train.py" trainyard step action
"""

import argparse
import os
import shlex
from collections.abc import Mapping, Sequence

from trainyard.command import output
from trainyard.command.handler import exit_code_of
from trainyard.command.parser import script_parser
from trainyard.commands import run
from trainyard.errors import ConfigError
from trainyard.gateways.aws_session import credential_variables
from trainyard.gateways.github import set_outputs
from trainyard.gateways.process import passed_names

_OPTIONS = {
    "CONFIG": "--config",
    "STORE": "--store",
    "RUN_NUMBER": "--run-number",
    "RUN_DIR": "--run-dir",
    "RESUME": "--resume",
    "DEADLINE": "--deadline",
}


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("--dry-run", action="store_true", help="print the commands, run nothing")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)

    words = words_of(os.environ)
    if args.dry_run:
        return run.main(["--dry-run", *words])
    code = exit_code_of(lambda: train(words))
    set_outputs({"run_dir": words[1], "exit_code": str(int(code))})
    return code


def train(words: Sequence[str]) -> int:
    """Run the pipeline; the program gets only those keys of the action's role that TRAINYARD_PASS names."""
    os.environ.setdefault("TRAINYARD_PASS", "")
    names = passed_names(os.environ)
    if any(name.startswith("AWS_") for name in names):
        os.environ.update({name: value for name, value in credential_variables().items() if name in names})
    return run.main(words)


def words_of(environment: Mapping[str, str]) -> list[str]:
    """Return the arguments of `trainyard run`. Raises ConfigError for inputs that name no program."""
    given = {name: environment.get(name, "").strip() for name in (*_OPTIONS, "COMMAND", "CHANGES")}
    if not given["COMMAND"] and not given["CONFIG"]:
        raise ConfigError("command: give the action its input command, such as python train.py, or config.")
    given["RUN_DIR"] = given["RUN_DIR"] or f"runs/gh-{environment.get('GITHUB_RUN_ID', 'local')}"
    words = ["--run-dir", given.pop("RUN_DIR")]
    for name, option in _OPTIONS.items():
        words += [option, given[name]] if given.get(name) else []
    for line in given["CHANGES"].splitlines():
        words += ["--set", line.strip()] if line.strip() else []
    try:
        command = shlex.split(given["COMMAND"])
    except ValueError as error:
        raise ConfigError(f'command: {error}. Write an apostrophe as "it\'s".') from None
    return [*words, "--", *command] if command else words
