"""Run the pipeline in a job of GitHub: for `action.yml` with its inputs, for `train.yml` by its plan.

    check ─> prepare ─> fetch ─> train and follow ─> evaluate ─> store ─> prove ─> report ─> notify

Where the plan says so, another machine trains (`training_elsewhere`).

Reads:      TRAINYARD_PLAN, the output of `trainyard step plan`; without it the inputs of the action:
            COMMAND, CONFIG, CHANGES, STORE, RUN_NUMBER, RUN_DIR, RESUME and DEADLINE, empty if not given.
            MATRIX, GITHUB_RUN_ID, GITHUB_JOB and USED_BY (the step of the job) are the id of the run then.
            TRAINYARD_AWS_ROLE: the role for the store. PROGRAM_ENV: NAME=VALUE lines for the program alone.
            TRAINYARD_PASS: variables of ours that the program gets, too. FINISH: `true` stores, proves and
            reports what a killed step left; JOB_STATUS is GitHub's status of the job then
Writes:     what `trainyard run` writes; RUNNER_TEMP/records, to keep as an artifact; the step outputs
            `run_dir`, `exit_code`, those of the proof and the store, and `end`, which the last job reads
Exit codes: those of `trainyard run`
Example:    COMMAND="python train.py" trainyard step action
"""

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainyard.artifacts.gathering import gather_records
from trainyard.artifacts.record.run_numbers import parse_run_number
from trainyard.artifacts.retention.run_directories import plan_removal, remove_directories
from trainyard.artifacts.store.store_address import open_store
from trainyard.command import arguments, output, terminal
from trainyard.command.handler import exit_code_of
from trainyard.command.parser import script_parser
from trainyard.commands.notify import Posted
from trainyard.commands.run import RunRequest, pipeline_of, pipeline_to_run, show_plan
from trainyard.errors import ConfigError, ExitCode, TrainyardError
from trainyard.gateways.aws_session import REGION, ROLE, credential_variables
from trainyard.gateways.github import (
    Level,
    annotate,
    append_summary,
    mask_in_log,
    read_outputs,
    set_outputs,
    workflow_file,
)
from trainyard.gateways.github_api import github_from
from trainyard.gateways.process import passed_names, program_variables
from trainyard.github.continuation import find_newer_push
from trainyard.github.target import Target
from trainyard.github.variables import read_json
from trainyard.pipeline import Pipeline, Step, StepRunner, finish, run_pipeline
from trainyard.program_training import is_alive
from trainyard.proven_run_search import find_proven_run
from trainyard.report.facts.proof_record import read_proof
from trainyard.report.facts.quantities import format_count
from trainyard.report.facts.run_facts import read_record
from trainyard.report.slack.slack_thread import FILE_NAME, read_thread
from trainyard.report.terminal.phase import PhaseDisplay
from trainyard.run.directory import RunDirectory
from trainyard.run.sizes import format_size
from trainyard.run.waiting import describe_wait
from trainyard.training_elsewhere import training_elsewhere

INPUTS = ("COMMAND", "CONFIG", "CHANGES", "STORE", "RUN_NUMBER", "RUN_DIR", "RESUME", "DEADLINE")
MOST_KEPT = "3"
"""How many proven runs stay on the runner, unless TRAINYARD_KEEP_RUNS says otherwise."""
USING_STORE = ("readiness", "fetch", "claim", "store")
"""Steps whose exit code 4 is an outage of the store."""
_SAVING_SECONDS = 90.0  # the step has five minutes, and has to store and to report then
Json = Mapping[str, Any]


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    return script_parser(__doc__, dry_run="print the steps, run nothing").parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    plan = read_json(os.environ, "TRAINYARD_PLAN")
    if python := python_of_trainer(plan):
        os.execv(python, [python, *sys.orig_argv[1:]])  # noqa: S606 - this command, without a shell
    set_job_environment(plan)
    if args.dry_run:
        return show_plan(request_of_job(plan))
    steps, chosen = StepRunner(is_grouped=True), list[Pipeline]()
    is_finish = os.environ.get("FINISH") == "true"
    if (training := training_elsewhere(plan)) is not None:
        if is_finish:  # the last job reports it; what trains elsewhere is not of this machine
            return ExitCode.INTERRUPTED
        elsewhere, run_dir = training, training.run_dir
        code = exit_code_of(lambda: elsewhere.run(steps))
    else:
        code = exit_code_of(lambda: run_job(plan, steps, chosen, is_finish=is_finish))
        run_dir = chosen[0].run_dir if chosen else Path("none")
    is_proven, notice = steps.codes.get("prove") == ExitCode.DONE, steps.results.get("notify")
    if (run_dir / "run.json").is_file():
        records = Path(os.environ.get("RUNNER_TEMP") or tempfile.gettempdir()) / "records"
        keep = Step("records", keep_records, {"run_dir": run_dir, "to": records})
        steps.run(keep, *(prune_steps(chosen) if is_proven else ()))
    end = end_of(plan, run_dir, code, steps) | {"reported": reported_in(code, notice)}
    set_outputs({"run_dir": str(run_dir), "exit_code": str(int(code)), "end": json.dumps(end)})
    return code


def python_of_trainer(plan: Json) -> str:
    """Return the Python of the checkout if it trains with Trainyard's own trainer, which the action lacks.

    The action is installed without torch; the job's set-up (`make install`) made the trainer's environment.
    """
    place = Path(".venv/bin/python").absolute()
    is_other = plan.get("kind") == "trainer" and Path(sys.prefix).resolve() != place.parents[1].resolve()
    return str(place) if is_other and place.exists() else ""


def set_job_environment(plan: Json) -> None:
    """Set the variables that the steps read, and hide from the log what only the program gets."""
    for value in program_variables(os.environ).values():
        mask_in_log(value)
    os.environ.setdefault("TRAINYARD_PASS", "")
    is_followed = os.environ.get("TRAINYARD_FOLLOW") not in ("false", "off")
    os.environ["TRAINYARD_FOLLOW"] = "true" if is_followed else "false"
    if plan:
        os.environ["TRAINYARD_RUN_ID"] = str(plan.get("run_id") or "")
        os.environ["JOB_MINUTES"] = os.environ["TRAINYARD_JOB_MINUTES"] = str(plan.get("job_minutes") or "")
        os.environ.update({ROLE: str(plan.get("role") or ""), REGION: str(plan.get("region") or "us-east-1")})
        if plan.get("target") == Target.GPU_RUNNER and not str(plan.get("store")).startswith("s3://"):
            del os.environ[ROLE]
    names = passed_names(os.environ)
    if any(name.startswith("AWS_") for name in names):
        os.environ.update({name: value for name, value in credential_variables().items() if name in names})


def run_job(plan: Json, steps: StepRunner, chosen: list[Pipeline], *, is_finish: bool = False) -> int:
    """Run the pipeline, which `chosen` gets, or finish what a killed one left."""
    try:
        request = request_of_job(plan)
    except ConfigError as error:
        annotate(Level.ERROR, str(error), title="Not started")
        raise
    if is_finish:
        chosen.append(pipeline_of(request))
        return finish_killed_run(chosen[0], steps)
    with pipeline_to_run(request) as pipeline:
        chosen.append(pipeline)
        return run_pipeline(pipeline, steps, is_needless=lambda runner: is_needless(plan, pipeline, runner))


def finish_killed_run(pipeline: Pipeline, steps: StepRunner) -> int:
    """Store, prove and report the run of a step that was killed, once the trainer that is left has ended."""
    if not (pipeline.run_dir / "run.json").is_file():
        return ExitCode.INTERRUPTED
    until = time.monotonic() + _SAVING_SECONDS
    with describe_wait("the trainer, which saves a checkpoint", _SAVING_SECONDS):
        while is_alive(pipeline.run_dir):
            if time.monotonic() > until:
                return ExitCode.INTERRUPTED
            time.sleep(0.2)
    stopped = replace(pipeline, notice={**pipeline.notice, "job_status": os.environ.get("JOB_STATUS", "")})
    with steps:
        if stopped.stores_failed:
            steps.run(stopped.store_run())
        return finish(stopped, steps, ExitCode.INTERRUPTED, prove=True)


def request_of_job(plan: Json) -> RunRequest:
    return request_of_plan(plan, os.environ) if plan else request_of(os.environ)


def request_of_plan(plan: Json, environment: Mapping[str, str]) -> RunRequest:
    """Return the request of a plan. Raises ConfigError if the plan lacks a value or has a wrong one."""
    is_again = environment.get("GITHUB_RUN_ATTEMPT", "1") != "1"
    try:
        searches = is_again or plan["fetch"] == "true"
        # A repeated job has the plan of the first attempt.
        resume = "auto" if is_again and plan["resume"] == "none" else plan["resume"]
        number = plan["run_number"]
        return RunRequest(
            config=Path(plan["config"]),
            changes=str(plan["overrides"]).splitlines(),
            run_dir=Path(plan["run_dir"]),
            store=plan["store"],
            run_number=parse_run_number(str(number)),
            resume="" if resume == "auto" and not searches else resume,
            run_id=plan["run_id"],
            is_again=is_again,
            deadline=arguments.duration(plan["deadline"]),
            lineage=plan["title"],
            segment=int(plan["segment"]),
            notice={"segment": f"{plan['segment']}/{plan['most_segments']}", "thread": plan["thread"]},
            start={"plan": plan["expected"], "reason": plan["reason"]},
        )
    except (KeyError, TypeError, ValueError, argparse.ArgumentTypeError) as error:
        raise ConfigError(f"TRAINYARD_PLAN is not what `trainyard step plan` resolved ({error})") from None


def default_run_id(environment: Mapping[str, str]) -> str:
    """Return an id that no other job, cell of a matrix, step or run has; further attempts have it, too."""
    cell = environment.get("MATRIX", "")
    digest = "" if cell in ("", "null", "{}") else hashlib.sha256(cell.encode()).hexdigest()[:8]
    job = re.sub(r"[^A-Za-z0-9_-]", "-", environment.get("GITHUB_JOB", ""))[:60]
    # GitHub names steps without an id after their action: __OWNER_NAME, then __OWNER_NAME_2.
    step = re.fullmatch(r"__.*?(?:_(?P<further>\d+))?|(?P<id>.*)", environment.get("USED_BY", ""))
    words = ("gh", environment.get("GITHUB_RUN_ID", "local"), job, digest, *(step.groups() if step else ()))
    return "-".join(word for word in words if word)


def request_of(environment: Mapping[str, str]) -> RunRequest:
    """Return the request of the inputs. Raises ConfigError if they name no program or cannot be used."""
    given = {name: environment.get(name, "").strip() for name in INPUTS}
    if not given["COMMAND"] and not given["CONFIG"]:
        raise ConfigError("command: give the action its input command, such as python train.py, or config.")
    deadline, is_again = given["DEADLINE"], environment.get("GITHUB_RUN_ATTEMPT", "1") != "1"
    run_id = environment.get("TRAINYARD_RUN_ID", "") or default_run_id(environment)
    is_default = not given["RUN_DIR"] and "TRAINYARD_RUN_ID" not in environment
    return RunRequest(
        config=Path(given["CONFIG"]) if given["CONFIG"] else None,
        changes=[line.strip() for line in given["CHANGES"].splitlines() if line.strip()],
        command=words_of(given["COMMAND"]),
        run_dir=Path(given["RUN_DIR"] or f"runs/{run_id}"),
        store=given["STORE"],
        run_number=parse_run_number(given["RUN_NUMBER"] or "auto"),
        # A repeated job has the inputs of the first attempt.
        resume="" if is_again and given["RESUME"] == "none" else given["RESUME"],
        run_id=run_id if is_default else "",
        is_again=is_again,
        deadline=arguments.parse(arguments.duration, deadline, "deadline") if deadline else None,
    )


def words_of(command: str) -> list[str]:
    """Return the words of a command, which may continue on a line after a backslash.

    Raises ConfigError for several commands and for what only a shell understands.
    """
    joined = re.sub(r"\\[ \t]*\r?\n", " ", command)
    try:
        words = shlex.split(joined)
    except ValueError as error:
        raise ConfigError(f'command: {error}. Write an apostrophe as "it\'s".') from None
    if len(joined.splitlines()) > 1 and not any("\n" in word for word in words):
        text = "end each line but the last with a backslash, or put several commands into a script"
        raise ConfigError(f"command: {len(joined.splitlines())} lines are one command: {text}.")
    if words and re.match(r"[A-Za-z_]\w*=", words[0]):
        name = words[0].partition("=")[0]
        raise ConfigError(
            f"command: no shell runs it, so {name}=... cannot begin it. Set {name} by env: of the step."
        )
    return words


def is_needless(plan: Json, pipeline: Pipeline, steps: StepRunner) -> bool:
    """Return whether nobody requested this run, and a newer push replaces it or the same run is proven."""
    if plan.get("unless_proven") != "true" or os.environ.get("GITHUB_RUN_ATTEMPT", "1") != "1":
        return False
    if newer_push(plan):
        return True
    values = {"file": pipeline.config, "changes": pipeline.changes, "store": pipeline.store}
    if steps.run(Step("proven", find_proven_run, values)):
        output.print_remarks(["Proven runs could not be searched, so this one is trained."])
        return False
    return bool(steps.result[0])


def newer_push(plan: Json) -> bool:
    """Return whether a newer push replaces this one, if TRAINYARD_SUPERSEDE is true, and report it."""
    if os.environ.get("TRAINYARD_SUPERSEDE") != "true" or os.environ.get("GITHUB_EVENT_NAME") != "push":
        return False
    try:
        run = int(os.environ.get("GITHUB_RUN_NUMBER", "0"))
        address = find_newer_push(github_from(), workflow_file(), branch=str(plan["branch"]), number=run)
    except TrainyardError as error:
        output.print_remarks([f"Newer pushes could not be listed, so this one is trained: {error}"])
        return False
    if address:
        append_summary(
            f"### Not trained: a newer push replaces this one: {address}\n\nTRAINYARD_SUPERSEDE is true.\n"
        )
        annotate(Level.NOTICE, f"Nothing was trained: a newer push replaces this one: {address}")
    return bool(address)


def prune_steps(chosen: Sequence[Pipeline]) -> list[Step]:
    """Return the step that removes old runs beside a proven one, unless all are kept or it has a name."""
    most = os.environ.get("TRAINYARD_KEEP_RUNS") or MOST_KEPT
    if most == "all" or os.environ.get("RUN_DIR"):
        return []
    places = ({"run_dir": each.run_dir, "store": each.store, "keep": most} for each in chosen)
    return [Step("prune", prune, place) for place in places]


def keep_records(run_dir: Path, to: Path) -> int:
    """Copy the report and the records of a run, of limited size, into the folder `to`, and report it."""
    shutil.rmtree(to, ignore_errors=True)  # of an earlier use of the action in this job
    gathered = gather_records(RunDirectory(run_dir), to)
    for name in gathered.shortened:
        output.announce("records", f"{name} is too large: only a part is copied", "degraded")
    for name in gathered.left_out:
        output.announce("records", f"{name} is too large and is not copied", "degraded")
    count = format_count(len(gathered.names), "file")
    output.announce("records", f"{count}, {format_size(gathered.size)} → {to}")
    return ExitCode.DONE


def prune(run_dir: Path, *, store: str, keep: str) -> int:
    """Remove old runs beside `run_dir` that are proven and stored, and report it; the newest `keep` stay.

    A run goes if it is a workflow's run (`gh-NUMBER`), its proof is of its present records, nothing uses it,
    its copy in the store verifies, and the store has each of its checkpoints. Everything else in the folder
    stays: runs that failed, stopped or were not proven, other folders, links, and what cannot be read.
    """
    newest = arguments.parse(arguments.positive, keep, "TRAINYARD_KEEP_RUNS")
    with terminal.show_live(PhaseDisplay("old runs", "reading the runs")):
        plan = plan_removal(
            run_dir.parent, open_store(store), keep_last=newest, current=run_dir, proof_of=proof_of
        )
        problems = [problem for _, problem in remove_directories(plan) if problem]
    words = {True: "kept", False: "removed"}
    output.print_text("\n".join(f"{each.path.name}: {words[each.keep]}: {each.reason}" for each in plan))
    output.print_remarks(problems)
    removals = [each for each in plan if not each.keep]
    size = format_size(sum(each.size for each in removals))
    text = f"{len(removals) - len(problems)} of {len(plan)}, {size}, removed"
    output.announce("old runs", text, "failed" if problems else "ok")
    return ExitCode.NO if problems else ExitCode.DONE


def proof_of(directory: RunDirectory, run: Json) -> tuple[int, str] | None:
    """Return number and store of the proven run; None without a proof of its present records."""
    proof = read_proof(directory, run)
    if proof is None or not proof.proven or proof.run_number is None or proof.store is None:
        return None
    return proof.run_number, proof.store


def end_of(plan: Json, run_dir: Path, code: int, steps: StepRunner) -> dict[str, str]:
    """Return how the job ended, for the last job, which continues the run or reports its end."""
    attempt, outputs = os.environ.get("GITHUB_RUN_ATTEMPT", "1"), read_outputs()
    outcome = read_record(RunDirectory(run_dir).run_file).get("outcome")
    codes = [steps.codes.get(name) for name in USING_STORE]
    is_outage = int(plan.get("segment") or 1) > 1 and ExitCode.REFUSED in codes
    return {
        "exit_code": str(int(code)),
        "step": str(outcome.get("steps") or 0) if isinstance(outcome, dict) else "",
        "stored": "true"
        if ExitCode.DONE in (steps.codes.get("store"), steps.codes.get("restore"))
        else "false",
        "manifest": outputs.get("manifest", ""),
        "outage": "true" if is_outage else "",
        "running": outputs.get("running", ""),
        "thread": read_thread(run_dir / FILE_NAME).address or str(plan.get("thread") or ""),
        "continues": attempt if is_outage or code == ExitCode.STOPPED else "",
        "reason": steps.reason,
    }


def reported_in(code: int, notice: object) -> str:
    """Return the attempt if somebody has heard of the end, or nobody has to; else nothing."""
    is_reported = code == ExitCode.DONE or (isinstance(notice, Posted) and notice.is_done)
    return os.environ.get("GITHUB_RUN_ATTEMPT", "1") if is_reported else ""
