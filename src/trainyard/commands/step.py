"""Run one step of the pipeline in a job of training_ci.yml, as the plan of the workflow run states.

    check ─> prepare ─> fetch ─> train ─> evaluate ─> store ─> prove ─> report ─> notify

It takes the steps of `trainyard run` (trainyard.pipeline), one per call, so that a workflow shows each.
`ready` checks the store from a hosted runner. `start` posts the start to Slack, `follow` stores checkpoints
beside the training, and `notify` reports the end: in the job that trains from the results of its steps
(STEPS), in the last job from those of the jobs (NEEDS).

Reads:      TRAINYARD_PLAN (output of the plan job), TRAINYARD_VARIABLES (GitHub's context `vars`); STEPS,
            JOB_STATUS, NEEDS (GitHub's contexts, JSON); RESUME (of `train`); GitHub's and the runner's
            variables; what the commands of the steps read
Writes:     what the commands write; the step outputs exit_code, reason, skip, done and end; the job summary
Exit codes: those of the commands; 0 for `report`, `start` and `notify`; 4 for a `notify` of the last job that
            Slack refused
Example:    trainyard step check
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from trainyard.artifacts.gathering import gather_records
from trainyard.artifacts.record.run_numbers import parse_run_number
from trainyard.command import arguments, output
from trainyard.command.parser import script_parser
from trainyard.commands.notify import Notice, notify
from trainyard.commands.step_prune_runs import prune_runs
from trainyard.commands.store_sync import follow_run
from trainyard.errors import CheckFailedError, ConfigError, ExitCode, TrainyardError
from trainyard.gateways.github import Level, annotate, append_summary, report_step, set_output
from trainyard.gateways.github_api import github_from
from trainyard.github.continuation import find_newer_push
from trainyard.github.job_end import end_of_steps, outputs_of
from trainyard.github.variables import ROLE, read_json, set_variables
from trainyard.pipeline import Pipeline, Step, StepRunner, has_stopped, is_over, plan_text, training_command
from trainyard.proven_run_search import find_proven_run
from trainyard.report.facts.quantities import format_count, format_size
from trainyard.run.directory import RunDirectory

STEPS = (
    "ready",
    "check",
    "prepare",
    "fetch",
    "start",
    "follow",
    "train",
    "evaluate",
    "store",
    "prove",
    "report",
    "notify",
)
ACCESS = {"ready": "check", "check": "check", "prove": "read", "report": "read"}
"""Step -> the access of its AWS session (TRAINYARD_AWS_ACCESS); other steps may write: `fetch` claims."""
WITHOUT_ROLE = ("prepare", "train", "evaluate", "start", "notify")
"""Steps that do not assume the role; so a program that trains or evaluates cannot access the store."""
FOLLOWER_SECONDS = 300
HOSTED_MINUTES = 360
"""Minutes after which GitHub ends a job on its own machines."""
Json = Mapping[str, Any]


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("step", choices=STEPS, help="the step")
    parser.add_argument("--dry-run", action="store_true", help="print the steps, run nothing")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)

    plan = read_json(os.environ, "TRAINYARD_PLAN")
    set_step_environment(args.step, plan)
    if args.step == "notify" and "NEEDS" in os.environ:
        return notify_of_jobs(plan)
    pipeline = pipeline_of(plan)
    if args.dry_run:
        output.print_text(plan_text(steps_of(args.step, plan, pipeline)))
        return ExitCode.DONE
    if args.step == "train":  # the trainer replaces this process and gets its signals itself
        trained = replace(pipeline, resume=os.environ.get("RESUME") or pipeline.resume)
        replace_process(training_command(**trained.train().values))
    if args.step == "follow":
        return follow(pipeline)
    try:
        with StepRunner() as steps:
            code = run_step(args.step, plan, pipeline, steps)
    except TrainyardError as error:
        set_output("exit_code", str(int(error.exit_code)))
        raise
    set_output("exit_code", str(int(code)))
    return code


def steps_of(name: str, plan: Json, pipeline: Pipeline) -> list[Step]:
    """Return the steps of the pipeline that a step of the workflow takes."""
    steps: dict[str, Callable[[], list[Step]]] = {
        "ready": lambda: [pipeline.check_store()],
        "check": lambda: check(plan, pipeline),
        "prepare": pipeline.prepare,
        "fetch": lambda: [pipeline.fetch(), *pipeline.claim()],
        "start": lambda: start(plan, pipeline),
        "follow": lambda: [Step("follow", follow_run, {**pipeline.stored, "behind": follower_file()})],
        "train": lambda: [pipeline.train()],
        "evaluate": pipeline.evaluate,
        "store": lambda: [pipeline.store_run()],
        "prove": lambda: [pipeline.prove()],
        "report": lambda: report(pipeline),
    }
    return steps[name]() if name in steps else []


def run_step(name: str, plan: Json, pipeline: Pipeline, steps: StepRunner) -> int:
    """Take one step of the workflow in this process, and return its exit code."""
    if name == "check":
        require_machine(plan, pipeline)
    if name == "fetch" and (reason := newer_push(plan) or proven_run(plan, pipeline, steps)):
        set_output("skip", reason)
        return ExitCode.DONE
    if name == "store":
        return store(pipeline, steps)
    if name == "notify":
        return notify_of_job(plan, pipeline)
    taken = steps_of(name, plan, pipeline)
    if name in ("start", "report"):  # that they fail does not fail the run
        for each in taken:
            steps.run(each)
        return ExitCode.DONE
    return steps.run(*taken)


def set_step_environment(name: str, plan: Json) -> None:
    """Set the variables that the commands of a step read."""
    set_variables(os.environ)
    os.environ.setdefault("TRAINYARD_PASS", "")
    os.environ.setdefault("TRAINYARD_RUN_ID", str(plan.get("run_id") or ""))
    os.environ["JOB_MINUTES"] = os.environ["TRAINYARD_JOB_MINUTES"] = str(plan.get("job_minutes") or "")
    is_followed = os.environ.get("TRAINYARD_FOLLOW") not in ("false", "off")
    os.environ["TRAINYARD_FOLLOW"] = "true" if is_followed else "false"
    if name in WITHOUT_ROLE or not str(plan.get("store", "")).startswith("s3://"):
        os.environ.pop(ROLE, None)
    if os.environ.get(ROLE):
        os.environ.setdefault("AWS_REGION", os.environ.get("TRAINYARD_AWS_REGION") or "us-east-1")
        os.environ["TRAINYARD_AWS_ACCESS"] = ACCESS.get(name, "write")


def pipeline_of(plan: Json) -> Pipeline:
    """Return the pipeline of the plan. Raises ConfigError if the plan lacks a value or has a wrong one."""
    attempt = os.environ.get("GITHUB_RUN_ATTEMPT", "1")
    try:
        is_again = attempt != "1"
        return Pipeline(
            run_dir=Path(plan["run_dir"]),
            config=Path(plan["config"]),
            changes=tuple(str(plan["overrides"]).splitlines()),
            store=plan["store"],
            run_number=parse_run_number(str(plan["run_number"])),
            run_id=plan.get("run_id"),
            may_adopt=is_again or plan["fetch"] == "true",
            # A repeated job has the plan of the first attempt.
            resume="auto" if is_again and plan["resume"] == "none" else plan["resume"],
            searches=is_again or plan["fetch"] == "true",
            deadline=arguments.duration(plan["deadline"]),
            lineage=plan["run_number"],
            segment=int(plan["segment"]),
            may_begin=plan["may_begin"] == "true",
            notifies=True,
            prepares=plan["prepares"],
        )
    except (KeyError, TypeError, ValueError, argparse.ArgumentTypeError) as error:
        raise ConfigError(f"TRAINYARD_PLAN is not what `trainyard step plan` resolved ({error})") from None


def replace_process(command: Sequence[str]) -> NoReturn:
    sys.stdout.flush()
    os.execv(command[0], list(command))  # noqa: S606 - a command of this package, without a shell


def follow(pipeline: Pipeline) -> int:
    """Store checkpoints beside the training, in the background, unless TRAINYARD_FOLLOW is off."""
    if not pipeline.follows:
        return ExitCode.DONE
    [step] = steps_of("follow", {}, pipeline)
    return int(step.apply(**step.values))


def follower_file() -> Path:
    return Path(os.environ.get("RUNNER_TEMP") or tempfile.gettempdir()) / "follower"


def check(plan: Json, pipeline: Pipeline) -> list[Step]:
    """Return the check of the machine, and of the store in a first segment, unless `ready` has done it."""
    is_checked = plan["jobs"]["ready"] or pipeline.segment > 1
    return [pipeline.check_machine(), *([] if is_checked else [pipeline.check_store()])]


def require_machine(plan: Json, pipeline: Pipeline) -> None:
    """Raise CheckFailedError, and report why, if one of GitHub's own machines would lose the run."""
    machine = os.environ.get("RUNNER_ENVIRONMENT", "")
    if problem := hosted_problem(machine, int(plan["job_minutes"]), pipeline.store):
        reason, text = problem
        summary = f"### ❌ Not started\n\n{text}.\n"
        report_step({"reason": reason}, summary, error=("Not started", text))
        raise CheckFailedError(text)


def hosted_problem(machine: str, minutes: int, store: str) -> tuple[str, str] | None:
    """Return why one of GitHub's own machines would lose the run, as a short and a full text; else None."""
    if machine != "github-hosted":
        return None
    if minutes > HOSTED_MINUTES:
        command = "gh variable set TRAINYARD_JOB_MINUTES --body 355"
        reason = f"its machine ends jobs after {HOSTED_MINUTES} minutes: {command}"
        return reason, (
            f"GitHub ends jobs on its own machines after {HOSTED_MINUTES} minutes, and this one has "
            f"{minutes}. Nothing was trained. Run {command}, then start it again"
        )
    if store.startswith("file://"):
        command = "gh variable set TRAINYARD_STORE --body s3://BUCKET/PREFIX"
        return f"its store is lost with its machine: {command}", (
            f"{store} is a folder of a machine that GitHub destroys after the job, with all that is stored "
            f"there. Nothing was trained. Run {command}, then start it again"
        )
    return None


def newer_push(plan: Json) -> str:
    """Return which newer push replaces this one, if TRAINYARD_SUPERSEDE is true; else nothing."""
    if os.environ.get("TRAINYARD_SUPERSEDE") != "true" or plan["unless_proven"] != "true":
        return ""
    if os.environ.get("GITHUB_EVENT_NAME") != "push" or os.environ.get("GITHUB_RUN_ATTEMPT", "1") != "1":
        return ""
    try:
        run = int(os.environ.get("GITHUB_RUN_NUMBER", "0"))
        address = find_newer_push(github_from(), workflow_file(), branch=str(plan["branch"]), number=run)
    except TrainyardError as error:
        output.print_remarks([f"Newer pushes could not be listed, so this one is trained: {error}"])
        return ""
    if not address:
        return ""
    text = f"a newer push replaces this one: {address}"
    append_summary(f"### Not trained: {text}\n\nTRAINYARD_SUPERSEDE is true.\n")
    annotate(Level.NOTICE, f"Nothing was trained: {text}")
    return text


def proven_run(plan: Json, pipeline: Pipeline, steps: StepRunner) -> str:
    """Return which proven run is the same as this one; nothing if there is none or it is not known."""
    if plan["unless_proven"] != "true" or os.environ.get("GITHUB_RUN_ATTEMPT", "1") != "1":
        return ""
    values = {"file": pipeline.config, "changes": pipeline.changes, "store": pipeline.store}
    if steps.run(Step("proven", find_proven_run, values)):
        output.print_remarks(["Proven runs could not be searched, so this one is trained."])
        return ""
    number, *_ = steps.result
    return f"run {number} is proven" if number else ""


def start(plan: Json, pipeline: Pipeline) -> list[Step]:
    """Return the step that posts the start to Slack."""
    notice = Notice(
        event=plan["moment"],
        run_dir=pipeline.run_dir,
        lineage=pipeline.lineage,
        reason=plan["reason"],
        segment=segment_of(plan),
        thread=plan["thread"],
        plan=plan["expected"],
    )
    return [Step("notify", notify, {"notice": notice})]


def segment_of(plan: Json) -> str:
    return f"{plan['segment']}/{plan['most_segments']}"


def store(pipeline: Pipeline, steps: StepRunner) -> int:
    """Store a run, also one that failed unless `artifacts.store_failed` is false."""
    trained = read_json(os.environ, "STEPS").get("train") or {}
    code = str((trained.get("outputs") or {}).get("exit_code") or "")
    end_follower()
    stopped = code.isdigit() and has_stopped(pipeline.run_dir, int(code))
    if trained.get("outcome") != "success" and not stopped:
        if not pipeline.stores_failed:
            output.announce("artifacts", "artifacts.store_failed is false: a run that failed is not stored")
            return ExitCode.DONE
        if not is_over(pipeline.run_dir):
            return ExitCode.DONE
    result = steps.run(pipeline.store_run())
    if result == ExitCode.DONE and trained.get("outcome") == "success":
        set_output("done", "true")
    return result


def end_follower() -> None:
    """End the follower after its current objects; the next command stores the rest at full speed."""
    file = follower_file()
    if not file.is_file():
        return
    process, until = int(file.read_text()), time.monotonic() + FOLLOWER_SECONDS
    with suppress(OSError):
        os.kill(process, signal.SIGTERM)
    while is_running(process) and time.monotonic() < until:
        time.sleep(0.2)
    with suppress(OSError):
        os.kill(process, signal.SIGKILL)
    with suppress(OSError):
        output.print_text(Path(f"{file}.log").read_text(errors="replace"))
    file.unlink(missing_ok=True)


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError:
        return False
    with suppress(OSError, IndexError):  # a zombie has ended
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return True


def report(pipeline: Pipeline) -> list[Step]:
    """Return the steps that write the report and the records to keep, and remove old proven, stored runs."""
    records = Path(os.environ.get("RUNNER_TEMP") or tempfile.gettempdir()) / "records"
    steps = [
        pipeline.report(),
        Step("records", keep_records, {"run_dir": pipeline.run_dir, "to": records}),
    ]
    keep = os.environ.get("TRAINYARD_KEEP_RUNS") or "3"
    proof = read_json(os.environ, "STEPS").get("prove") or {}
    if keep != "all" and proof.get("outcome") == "success":
        values = {"run_dir": pipeline.run_dir, "store": pipeline.store, "keep": keep}
        steps.append(Step("prune", prune, values))
    return steps


def keep_records(run_dir: Path, to: Path) -> int:
    """Copy the report and the records of a run, of limited size, into the new folder `to`, and report it."""
    gathered = gather_records(RunDirectory(run_dir), to)
    for name in gathered.shortened:
        output.announce("records", f"{name} is too large: only a part is copied", "degraded")
    for name in gathered.left_out:
        output.announce("records", f"{name} is too large and is not copied", "degraded")
    count = format_count(len(gathered.names), "file")
    output.announce("records", f"{count}, {format_size(gathered.size)} → {to}")
    return ExitCode.DONE


def prune(run_dir: Path, *, store: str, keep: str) -> int:
    """Remove old runs beside `run_dir`, but not the newest `keep`."""
    newest = arguments.parse(arguments.positive, keep, "TRAINYARD_KEEP_RUNS")
    return prune_runs(run_dir.parent, store=store, keep_last=newest, current=run_dir, apply=True)


def notify_of_job(plan: Json, pipeline: Pipeline) -> int:
    """Report once how the training job ended, and pass its result to the next jobs."""
    steps, status = read_json(os.environ, "STEPS"), os.environ.get("JOB_STATUS", "failure")
    run, attempt = (os.environ.get(name, "") for name in ("GITHUB_RUN_ID", "GITHUB_RUN_ATTEMPT"))
    end = end_of_steps(steps, status=status, run=run, attempt=attempt, segment=pipeline.segment)
    outputs = {
        name: (steps.get(name) or {}).get("outputs") or {} for name in ("train", "start", "store", "prove")
    }
    thread = str(outputs["start"].get("slack_thread") or plan["thread"])
    notice = Notice(
        event="degraded",
        run_dir=pipeline.run_dir,
        lineage=pipeline.lineage,
        segment=segment_of(plan),
        thread=thread,
    )
    posted = True
    if (steps.get("train") or {}).get("outcome") in ("success", "failure"):
        notify(notice)
    if end.event:
        last = notify(
            replace(notice, event=end.event, reason=end.reason, next_step=end.next_step, job_status=status)
        )
        posted, thread = last.is_done, last.thread
    if (steps.get("keep") or {}).get("outcome") == "failure":
        text = "GitHub refused the artifact of report and records, or took too long. The verdict holds."
        annotate(Level.WARNING, f"{text} They are in {pipeline.run_dir} on the runner, and in the store")
    handed = {"exit_code": str(outputs["train"].get("exit_code") or ""), "thread": thread, "attempt": attempt}
    handed |= {name: str(outputs["prove"].get(name) or "") for name in ("step", "stored")}
    handed |= {
        "manifest": str(outputs["store"].get("manifest") or ""),
        "outage": "true" if end.event == "degraded" else "",
    }
    handed |= {"continues": attempt if end.continues else "", "reported": attempt if posted else ""}
    set_output("end", json.dumps({**handed, "reason": end.reason}))
    return ExitCode.DONE


def notify_of_jobs(plan: Json) -> int:
    """Report the end of the workflow run in Slack and in the summary, if no job has reported its own end."""
    needs, steps = read_json(os.environ, "NEEDS"), read_json(os.environ, "STEPS")
    needs["continue"] = end_of_continue(steps.get("continue") or {})
    run = os.environ.get("GITHUB_RUN_ID", "")
    number = str(plan.get("run_number") or os.environ.get("GITHUB_RUN_NUMBER", ""))
    handed = outputs_of(needs, "train")
    folder = Path(os.environ.get("RUNNER_TEMP") or tempfile.gettempdir()) / f"gh-{run}"
    thread = handed.get("thread") or plan.get("thread") or ""
    posted = notify(Notice(event="failed", run_dir=folder, lineage=number, needs=needs, thread=thread))
    if posted.notice.reason:
        append_summary(f"### ❌ {posted.notice.reason}\n\nNext: `{posted.notice.next_step}`\n")
    return ExitCode.DONE if posted.is_done else ExitCode.REFUSED


def end_of_continue(step: Json) -> Json:
    """Return the step that dispatches a segment in the form of a job; `success` only if it dispatched."""
    outputs, outcome = step.get("outputs") or {}, step.get("outcome")
    if outcome == "success" and outputs.get("dispatched") != "true":
        outcome = "skipped"
    return {"result": outcome or "skipped", "outputs": outputs}


def workflow_file() -> str:
    """Return the file name of the running workflow, from `OWNER/REPO/.github/workflows/FILE@REF`."""
    reference = os.environ.get("GITHUB_WORKFLOW_REF", "").partition("@")[0]
    return reference.rpartition("/")[2] or "training_ci.yml"
