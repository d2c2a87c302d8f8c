"""Run the pipeline for the action of this repository (`action.yml`), with the inputs of a workflow.

Reads:      COMMAND, CONFIG, CHANGES, STORE, RUN_NUMBER, RUN_DIR, RESUME and DEADLINE: the inputs of the
            action; an empty input counts as not given. MATRIX: the cell of the job, as JSON; with
            GITHUB_RUN_ID and GITHUB_JOB it is the id of the run. TRAINYARD_AWS_ROLE: the role for the store.
            TRAINYARD_PASS: variables of ours that the program gets, too, such as SLACK_WEBHOOK_URL
Writes:     what `trainyard run` writes; the step outputs `run_dir` and `exit_code`, and those of the proof
Exit codes: those of `trainyard run`
Example:    COMMAND="python train.py" trainyard step action
"""

import argparse
import hashlib
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from trainyard.artifacts.record.run_numbers import parse_run_number
from trainyard.command import arguments, output
from trainyard.command.handler import exit_code_of
from trainyard.command.parser import script_parser
from trainyard.commands.run import RunRequest, pipeline_to_run, show_plan
from trainyard.errors import ConfigError
from trainyard.gateways.aws_session import credential_variables
from trainyard.gateways.github import set_outputs
from trainyard.gateways.process import passed_names
from trainyard.pipeline import run_pipeline

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
    run_dirs = [str(request.run_dir)]
    code = exit_code_of(lambda: train(request, run_dirs.append))
    set_outputs({"run_dir": run_dirs[-1], "exit_code": str(int(code))})
    return code


def train(request: RunRequest, on_chosen: Callable[[str], object] = lambda _: None) -> int:
    """Run the pipeline; the program gets only those keys of the action's role that TRAINYARD_PASS names.

    `on_chosen` gets the run directory, which may be another one than was asked for.
    """
    os.environ.setdefault("TRAINYARD_PASS", "")
    names = passed_names(os.environ)
    if any(name.startswith("AWS_") for name in names):
        os.environ.update({name: value for name, value in credential_variables().items() if name in names})
    with pipeline_to_run(request) as pipeline:
        on_chosen(str(pipeline.run_dir))
        return run_pipeline(pipeline)


def default_run_id(environment: Mapping[str, str]) -> str:
    """Return an id that no other job, cell of a matrix or workflow run has; a further attempt has it too."""
    cell = environment.get("MATRIX", "")
    digest = "" if cell in ("", "null", "{}") else hashlib.sha256(cell.encode()).hexdigest()[:8]
    job = re.sub(r"[^A-Za-z0-9_-]", "-", environment.get("GITHUB_JOB", ""))[:60]
    words = ("gh", environment.get("GITHUB_RUN_ID", "local"), job, digest)
    return "-".join(word for word in words if word)


def request_of(environment: Mapping[str, str]) -> RunRequest:
    """Return the request of the inputs. Raises ConfigError if they name no program or cannot be used."""
    given = {name: environment.get(name, "").strip() for name in INPUTS}
    if not given["COMMAND"] and not given["CONFIG"]:
        raise ConfigError("command: give the action its input command, such as python train.py, or config.")
    try:
        command = shlex.split(given["COMMAND"])
    except ValueError as error:
        raise ConfigError(f'command: {error}. Write an apostrophe as "it\'s".') from None
    deadline, is_again = given["DEADLINE"], environment.get("GITHUB_RUN_ATTEMPT", "1") != "1"
    run_id = environment.get("TRAINYARD_RUN_ID", "") or default_run_id(environment)
    is_default = not given["RUN_DIR"] and "TRAINYARD_RUN_ID" not in environment
    return RunRequest(
        config=Path(given["CONFIG"]) if given["CONFIG"] else None,
        changes=[line.strip() for line in given["CHANGES"].splitlines() if line.strip()],
        command=command,
        run_dir=Path(given["RUN_DIR"] or f"runs/{run_id}"),
        store=given["STORE"],
        run_number=parse_run_number(given["RUN_NUMBER"] or "auto"),
        # A repeated job has the inputs of the first attempt.
        resume="" if is_again and given["RESUME"] == "none" else given["RESUME"],
        run_id=run_id if is_default else "",
        is_again=is_again,
        deadline=arguments.parse(arguments.duration, deadline, "deadline") if deadline else None,
    )
