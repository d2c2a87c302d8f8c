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
from pathlib import Path

from trainyard.artifacts.record.run_numbers import parse_run_number
from trainyard.command import arguments, output
from trainyard.command.handler import exit_code_of
from trainyard.command.parser import script_parser
from trainyard.commands.run import RunRequest, show_plan, start
from trainyard.errors import ConfigError
from trainyard.gateways.aws_session import credential_variables
from trainyard.gateways.github import set_outputs
from trainyard.gateways.process import passed_names

INPUTS = ("COMMAND", "CONFIG", "CHANGES", "STORE", "RUN_NUMBER", "RUN_DIR", "RESUME", "DEADLINE")


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("--dry-run", action="store_true", help="print the steps, run nothing")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)

    request = request_of(os.environ)
    if args.dry_run:
        return show_plan(request)
    code = exit_code_of(lambda: train(request))
    set_outputs({"run_dir": str(request.run_dir), "exit_code": str(int(code))})
    return code


def train(request: RunRequest) -> int:
    """Run the pipeline; the program gets only those keys of the action's role that TRAINYARD_PASS names."""
    os.environ.setdefault("TRAINYARD_PASS", "")
    names = passed_names(os.environ)
    if any(name.startswith("AWS_") for name in names):
        os.environ.update({name: value for name, value in credential_variables().items() if name in names})
    return start(request)[1]


def request_of(environment: Mapping[str, str]) -> RunRequest:
    """Return the request of the inputs. Raises ConfigError if they name no program or cannot be used."""
    given = {name: environment.get(name, "").strip() for name in INPUTS}
    if not given["COMMAND"] and not given["CONFIG"]:
        raise ConfigError("command: give the action its input command, such as python train.py, or config.")
    try:
        command = shlex.split(given["COMMAND"])
    except ValueError as error:
        raise ConfigError(f'command: {error}. Write an apostrophe as "it\'s".') from None
    deadline = given["DEADLINE"]
    return RunRequest(
        config=Path(given["CONFIG"]) if given["CONFIG"] else None,
        changes=[line.strip() for line in given["CHANGES"].splitlines() if line.strip()],
        command=command,
        run_dir=Path(given["RUN_DIR"] or f"runs/gh-{environment.get('GITHUB_RUN_ID', 'local')}"),
        store=given["STORE"],
        run_number=parse_run_number(given["RUN_NUMBER"] or "auto"),
        resume=given["RESUME"] or "auto",
        deadline=arguments.parse(arguments.duration, deadline, "deadline") if deadline else None,
    )
