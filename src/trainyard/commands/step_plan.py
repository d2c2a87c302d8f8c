"""Decide what a training workflow run will do: check its configuration, its inputs and the machine.

All later jobs use only the values that are resolved here. In a workflow it also tags the commit, so that
later segments run it. If the repository is not set up (it does not say where to train or where to store), a
push or the daily run trains nothing and succeeds, with a notice that names the commands to set it up. A
training that somebody requested is refused.

Reads:      the inputs of the dispatch (GITHUB_EVENT_PATH), else INPUTS, GitHub's context `inputs` of
            train.yml, else the repository's variables (docs/variables.md); the configuration; CONTAINER;
            GitHub's variables, and GITHUB_TOKEN for the tag
Writes:     the tag; the plan on stdout (--json: all of it); the step outputs `plan` (JSON) and `trains`, the
            job summary, and for a wrong configuration an annotation per problem, with its place
Exit codes: 0 decided, with a warning if it seems not to fit, cannot be proven or has one segment only, or
            there is nothing to train; 2 an input, a variable or the file is wrong, or a training was
            requested and the repository is not set up
Example:    trainyard step plan --json
"""

import argparse
import dataclasses
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.command import output
from trainyard.command.parser import script_parser
from trainyard.config.load import config_sha256, load_config
from trainyard.config.parameters import count_parameters
from trainyard.config.registries import COMMAND
from trainyard.config.secret_filter import SecretFilter
from trainyard.errors import ConfigError, ExitCode, ServiceError
from trainyard.gateways.github import (
    Level,
    annotate,
    annotate_problems,
    append_summary,
    set_outputs,
)
from trainyard.gateways.github_api import github_from
from trainyard.github.continuation import make_tag
from trainyard.github.run_plan import DispatchInputs, overrides_in, plan_on, resolve, usd_per_hour
from trainyard.github.target import AS_SET_UP, node_count, target_for
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
from trainyard.run.segment import first_segment, read_continues
from trainyard.run.untrusted_files import parse_json

if TYPE_CHECKING:
    from trainyard.config.schema import Config
    from trainyard.github.run_plan import RunPlan
    from trainyard.run.segment import Segment


SETUP = "All that a first run needs: PYTHONPATH=src python3 -m trainyard init github --store URL"
SHIPPED = "configs/training_configuration.yaml"
BY_INPUT = {"store": STORE, "role": ROLE, "region": REGION, "container": "CONTAINER"}
"""An input of train.yml -> the variable that it replaces."""


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    return script_parser(__doc__, json="everything").parse_args(argv)


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
        plan, planned = plan_given(given)
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
        raise ConfigError(missing_settings_text(plan.missing_settings, is_refused=True, hint=SETUP))
    if plan.trains:
        plan = keep_commit(plan)
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


def plan_given(given: Mapping[str, str]) -> "tuple[RunPlan, RunPreview]":
    """Return the plan for the inputs, else the variables. Raises ConfigError."""
    file, name = given.get("config") or os.environ.get("TRAINYARD_CONFIG") or SHIPPED, given.get("name", "")
    changes = overrides_in(given.get("set", ""))
    inputs = DispatchInputs(
        file,
        changes,
        epochs=given.get("epochs", ""),
        resume=given.get("resume") or "auto",
        target=target_for(given.get("runner", ""), os.environ),
        dry_run=given.get("dry_run", "").lower() == "true",
    )
    config, segment = load_config(Path(file), changes).config, first_segment(os.environ, name)
    if given.get("continues"):
        segment = segment_here(read_continues(given["continues"])[0], segment.commit)
    plan = resolve(inputs, config, segment, name=name, variables=os.environ)
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


def report_missing_settings(plan: "RunPlan") -> str:
    """Write the annotation and summary of a run that trains nothing, with the commands that change this."""
    text = missing_settings_text(plan.missing_settings, is_refused=plan.is_refused, hint=SETUP)
    annotate(Level.ERROR if plan.is_refused else Level.NOTICE, text)
    return missing_settings_markdown(plan.missing_settings, is_refused=plan.is_refused, hint=SETUP)


def plan_of(config: "Config", plan: "RunPlan") -> RunPreview:
    """Plan the run, for the runner's machine if it is known."""
    figures, is_program = plan_on(plan.machine, config), config.recipe == COMMAND
    return RunPreview(
        plan.job_plan(),
        target=str(plan.dispatch.target),
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
    store, is_logged = plan.store or "file:///store", config.model.device != "cpu"
    run = PlannedRun(nodes, max(1, gpus), network, store, keeps_network_log=is_logged)
    return [part.to_json() for part in unreachable_parts(run)]
