"""Decide what a training workflow run will do: check its configuration, its inputs and the machine.

All later jobs use only the values that are resolved here. In a workflow it also tags the commit, so that
later segments run it. If the repository is not set up (it does not say where to train or where to store), a
push or the daily run trains nothing and succeeds, with a notice that names the commands to set it up. A
training that somebody requested is refused.

Reads:      the flags, else the inputs of the dispatch (GITHUB_EVENT_PATH), else INPUTS, GitHub's context
            `inputs` of train.yml, else the repository's variables (docs/variables.md); the configuration;
            CONTAINER; GitHub's variables, and GITHUB_TOKEN for the tag
Writes:     the tag; the plan on stdout (--json: all of it) and into --output; in GitHub Actions the step
            outputs `plan` (JSON) and `trains`, the job summary, and for a wrong configuration an annotation
            per problem, with its place
Exit codes: 0 decided, with a warning if it seems not to fit, cannot be proven or has one segment only, or
            there is nothing to train; 2 an input, a variable or the file is wrong, or a training was
            requested and the repository is not set up
Example:    trainyard step plan --config configs/smoke.yaml --settings "training.max_steps=50"
"""

import argparse
import dataclasses
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.command import arguments, output
from trainyard.command.parser import script_parser
from trainyard.config.load import config_sha256, load_config
from trainyard.config.parameters import count_parameters
from trainyard.config.registries import COMMAND
from trainyard.config.secret_filter import SecretFilter
from trainyard.errors import ConfigError, ExitCode, ServiceError
from trainyard.gateways.git import is_cleaned
from trainyard.gateways.github import (
    Level,
    annotate,
    annotate_problems,
    append_summary,
    in_actions,
    set_outputs,
)
from trainyard.gateways.github_api import github_from
from trainyard.github.continuation import make_tag
from trainyard.github.run_plan import DispatchInputs, overrides_in, plan_on, resolve, usd_per_hour
from trainyard.github.target import AS_SET_UP, Target, node_count, target_for
from trainyard.github.variables import REGION, ROLE, STORE, read_json, set_variables
from trainyard.jobs.job_planning import network_in_pods
from trainyard.plan.instances import room_of_type
from trainyard.proof.reachable_parts import PlannedRun, unreachable_parts
from trainyard.report.plan.plan_text import unproven_lines
from trainyard.report.plan.run_plan_summary import (
    RunPreview,
    markdown_plan,
    missing_settings_markdown,
    missing_settings_text,
    summarize_expectations,
)
from trainyard.run.atomic_files import write_json_atomically
from trainyard.run.segment import first_segment, read_continues
from trainyard.run.untrusted_files import parse_json

if TYPE_CHECKING:
    from trainyard.config.schema import Config
    from trainyard.github.run_plan import RunPlan
    from trainyard.run.segment import Segment


SETUP = "PYTHONPATH=src python3 -m trainyard init github --store URL"
SHIPPED = "configs/training_configuration.yaml"
BY_INPUT = {"store": STORE, "role": ROLE, "region": REGION, "container": "CONTAINER"}
"""An input of train.yml -> the variable that it replaces."""
TARGET = "where to train; default: as the repository is set up, and `here` outside of a workflow"


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    shipped = "default: TRAINYARD_CONFIG, else the shipped one"
    parser.add_argument("--config", type=arguments.path, metavar="FILE", help=shipped)
    parser.add_argument(
        "--settings", default="", metavar="WORDS", help="key=value, one or more; quote spaces in values"
    )
    parser.add_argument("--epochs", default="", metavar="N", help="replaces training.epochs")
    parser.add_argument("--resume", default="", help="auto (default), none, a manifest, or a checkpoint")
    parser.add_argument("--target", default="", metavar="gpu-runner|codebuild|eks|here", help=TARGET)
    parser.add_argument("--output", type=arguments.path, metavar="FILE", help="write the plan as JSON")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    return parser.parse_args(argv)


def given_inputs(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the inputs of the run: those of the dispatch, else those that the workflow gives to train.yml.

    A later segment has those of the first one, which are in `continues`. Raises ConfigError.
    """
    file = environment.get("GITHUB_EVENT_PATH", "")
    event = parse_json(Path(file).read_text(), "GITHUB_EVENT_PATH") if file and Path(file).is_file() else {}
    found: dict[str, str] = {}
    for inputs in (read_json(environment, "INPUTS"), (event or {}).get("inputs") or {}):
        given = {name: str(value or "").strip() for name, value in inputs.items()}
        found |= {name: value for name, value in given.items() if value not in ("", AS_SET_UP)}
    if found.get("continues"):
        found |= {name: value for name, value in read_continues(found["continues"])[1].items() if value}
    return found


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    set_variables(os.environ)
    given = given_inputs(os.environ)
    os.environ.update({BY_INPUT[name]: value for name, value in given.items() if name in BY_INPUT})
    try:
        plan, planned = plan_given(args, given)
    except ConfigError as error:
        annotate_problems(str(error))
        append_summary(f"### ❌ Not started: the configuration or an input is wrong\n\n```\n{error}\n```\n")
        raise ConfigError(str(error)) from None
    if plan.is_other:
        output.announce(
            "plan", f"this run continues another call of train.yml than {given.get('name') or 'this one'}"
        )
        set_outputs({"plan": json.dumps(plan.job_plan()), "trains": "false"})
        return ExitCode.DONE
    is_complete = not plan.missing_settings or plan.dispatch.dry_run
    text = markdown_plan(planned) if is_complete else report_missing_settings(plan)
    append_summary(text := SecretFilter().mask_under("", text))
    if plan.is_refused:
        raise ConfigError(
            missing_settings_text(plan.missing_settings, is_refused=True, hints=hints_for(plan, os.environ))
        )
    if plan.trains and plan.dispatch.target != Target.HERE:
        plan = keep_commit(plan)
    if args.output:
        write_json_atomically(args.output, plan.to_json())
    output.print_json(plan.job_plan()) if args.json else print(text)
    if not planned.plan.get("fits", True):  # this is only computed: check_environment decides on the machine
        own = "" if plan.is_requested else " For another file on pushes: gh variable set TRAINYARD_CONFIG"
        text = f"The run seems not to fit on the machine; the summary says what to change.{own}"
        annotate(Level.WARNING, text)
    for line in unproven_lines(planned.unproven) if plan.trains else ():
        annotate(Level.WARNING, line, title="This run cannot be proven")
    values = {**plan.job_plan(), "expected": summarize_expectations(planned)}
    set_outputs({"plan": json.dumps(values), "trains": "true" if plan.trains else "false"})
    return ExitCode.DONE


def plan_given(args: argparse.Namespace, given: Mapping[str, str]) -> "tuple[RunPlan, RunPreview]":
    """Return the plan for the flags, else the inputs, else the variables. Raises ConfigError."""
    file = str(args.config or given.get("config") or os.environ.get("TRAINYARD_CONFIG") or SHIPPED)
    changes, name = overrides_in(args.settings or given.get("set", "")), given.get("name", "")
    inputs = DispatchInputs(
        file,
        changes,
        epochs=args.epochs or given.get("epochs", ""),
        resume=args.resume or given.get("resume") or "auto",
        target=target_for(args.target or given.get("runner", ""), os.environ),
        dry_run=given.get("dry_run", "").lower() == "true",
    )
    config, segment = load_config(Path(file), changes).config, first_segment(local_run(os.environ), name)
    if given.get("continues"):
        segment = segment_here(read_continues(given["continues"])[0], segment.commit)
    plan = resolve(inputs, config, segment, name=name, variables=os.environ)
    refuse_cleaned_directory(os.environ)
    return plan, plan_of(config, plan)


def segment_here(segment: "Segment", commit: str) -> "Segment":
    """Return a later segment if its commit is here. Raises ConfigError: another one may be a fork's."""
    if segment.commit != commit:
        raise ConfigError(
            f"continues: the segment is of commit {segment.commit[:12]}, and this run has {commit[:12]}. "
            f"Only the workflow itself continues a run, on the tag {segment.tag}. Leave it empty"
        )
    return segment


def keep_commit(plan: "RunPlan") -> "RunPlan":
    """Tag the commit for later segments; if GitHub refuses, warn, and return the plan with one segment."""
    try:
        refusal = make_tag(github_from(), plan.segment)
    except (ServiceError, ConfigError) as error:
        refusal = str(error)
    if not refusal:
        return plan
    text = (
        f"One segment only: GitHub lets no workflow tag {plan.segment.commit[:12]} ({refusal}). That is "
        "so where the workflow files differ from those of the default branch. A training that is not done "
        f"{plan.deadline} after its job has started stops there, stored; for a longer one merge the files"
    )
    annotate(Level.WARNING, text, title="One segment only")
    output.announce("plan", text, "degraded")
    return dataclasses.replace(plan, most_segments=plan.segment.number)


def refuse_cleaned_directory(environment: Mapping[str, str]) -> None:
    """Raise ConfigError for a directory of runs in the checkout that the next job's `git clean` deletes.

    An absolute path on another machine is checked there, by trainyard step environment.
    """
    named = environment.get("TRAINYARD_RUNS_DIRECTORY", "")
    if named and in_actions(environment) and is_cleaned(Path(named)):
        raise ConfigError(
            f"TRAINYARD_RUNS_DIRECTORY: {named} is in the checkout and not ignored by git, so the next job's "
            "git clean deletes it. Name a folder outside: gh variable set TRAINYARD_RUNS_DIRECTORY "
            f"--body /mnt/storage/runs; or add {named.rstrip('/')}/ to .gitignore"
        )


def report_missing_settings(plan: "RunPlan") -> str:
    """Write the annotation and summary of a run that trains nothing, with the commands that change this."""
    hints = hints_for(plan, os.environ)
    text = missing_settings_text(plan.missing_settings, is_refused=plan.is_refused, hints=hints)
    annotate(Level.ERROR if plan.is_refused else Level.NOTICE, text)
    return missing_settings_markdown(plan.missing_settings, is_refused=plan.is_refused, hints=hints)


def hints_for(plan: "RunPlan", environment: Mapping[str, str]) -> list[str]:
    """Return further commands and settings for the owner of the repository."""
    if plan.dispatch.target is Target.HERE:
        return []
    hints = [f"For this and all else that a first run needs: {SETUP}"]
    if plan.dispatch.target is Target.GPU_RUNNER and not plan.machine.is_known:
        is_set = environment.get("TRAINYARD_CODEBUILD_PROJECT")
        there = "CodeBuild is set up: gh workflow run training_ci.yml -f runner=codebuild"
        instead = "To train on CodeBuild, set TRAINYARD_CODEBUILD_PROJECT instead of TRAINYARD_RUNNER_LABELS."
        hints.append(there if is_set else instead)
    return hints


def local_run(environment: Mapping[str, str]) -> dict[str, str]:
    """Return GitHub's variables, or defaults if the script runs outside GitHub."""
    here = {"GITHUB_RUN_ID": "1", "GITHUB_RUN_NUMBER": "1", "GITHUB_SHA": "0" * 40}
    return {**here, **{name: environment[name] for name in here if environment.get(name)}}


def plan_of(config: "Config", plan: "RunPlan") -> RunPreview:
    """Plan the run, for the runner's machine if it is known."""
    figures, is_program = plan_on(plan.machine, config), config.recipe == COMMAND
    target = "this machine" if plan.dispatch.target is Target.HERE else str(plan.dispatch.target)
    return RunPreview(
        plan.job_plan(),
        target=target,
        labels=(*plan.machine.labels, *([f"group {plan.machine.group}"] if plan.machine.group else [])),
        model=shlex.join(config.program.command or ()) if is_program else config.model.name,
        parameters=None if is_program else count_parameters(config.model.architecture).total,
        config_sha256=config_sha256(config),
        **dataclasses.asdict(figures),
        usd_per_hour=usd_per_hour(os.environ.get("TRAINYARD_USD_PER_HOUR", "")),
        missing_settings=plan.missing_settings,
        unproven=unproven(config, plan),
    )


def unproven(config: "Config", plan: "RunPlan") -> list[dict[str, str]]:
    """Return the parts of the proof that cannot hold, as far as the machines of the target are known."""
    nodes, room = node_count(plan.machine, os.environ), room_of_type(plan.machine.hardware or "")
    gpus = 0 if room is None or config.model.device == "cpu" else room.gpus
    network = network_in_pods(config, room, nodes=nodes, gpus=gpus)
    run = PlannedRun(
        nodes,
        max(1, gpus),
        network,
        plan.store or "file:///store",
        keeps_network_log=config.model.device != "cpu",
    )
    return [part.to_json() for part in unreachable_parts(run)]
