"""Run one step of the pipeline in a job of training_ci.yml, as the plan of the workflow run states.

    check ─> prepare ─> fetch ─> train ─> evaluate ─> store ─> prove ─> report ─> notify

It runs the commands of `trainyard run` (commands/run.py), one step per call, so that a workflow shows each.
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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainyard.command import arguments, output
from trainyard.command.parser import script_parser
from trainyard.commands import notify as notify_command
from trainyard.commands.run import Pipeline, has_stopped, run_steps, step
from trainyard.errors import CheckFailedError, ConfigError, ExitCode, TrainyardError
from trainyard.gateways.github import Level, annotate, append_summary, report_step, set_output
from trainyard.gateways.github_api import github_from
from trainyard.github.continuation import find_newer_push
from trainyard.github.job_end import end_of_steps, outputs_of
from trainyard.github.variables import ROLE, read_json, set_variables

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
ACCESS = {"ready": "check", "check": "check", "fetch": "read", "prove": "read", "report": "read"}
"""Step -> the access of its AWS session (TRAINYARD_AWS_ACCESS); other steps may write."""
WITHOUT_ROLE = ("prepare", "train", "evaluate", "start", "notify")
"""Steps that do not assume the role; so a program that trains or evaluates cannot access the store."""
FOLLOWER_SECONDS = 300
HOSTED_MINUTES = 360
"""Minutes after which GitHub ends a job on its own machines."""
Json = Mapping[str, Any]


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("step", choices=STEPS, help="the step")
    parser.add_argument("--dry-run", action="store_true", help="print the commands, run nothing")
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
        output.print_text(json.dumps({"run_dir": str(pipeline.run_dir), "store": pipeline.store}))
        return ExitCode.DONE
    if args.step in ("train", "follow"):  # the program replaces this process and gets its signals itself
        replace_process(train_command(pipeline) if args.step == "train" else follow_command(pipeline))
        return ExitCode.DONE
    try:
        code = run_step(args.step, plan, pipeline)
    except TrainyardError as error:
        set_output("exit_code", str(int(error.exit_code)))
        raise
    set_output("exit_code", str(int(code)))
    return code


def run_step(name: str, plan: Json, pipeline: Pipeline) -> int:
    """Run one step in this process, and return its exit code."""
    steps = {
        "ready": lambda: check_ready(pipeline),
        "check": lambda: check(plan, pipeline),
        "prepare": lambda: run_steps(pipeline.before()[2:]),
        "fetch": lambda: fetch(plan, pipeline),
        "start": lambda: start(plan, pipeline),
        "evaluate": lambda: run_steps(pipeline.evaluate()),
        "store": lambda: store(pipeline),
        "prove": lambda: run_steps([pipeline.prove()]),
        "report": lambda: report(pipeline),
        "notify": lambda: notify(plan, pipeline),
    }
    return steps[name]()


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
            changes=str(plan["overrides"]).splitlines(),
            store=plan["store"],
            run_number=plan["run_number"],
            # A repeated job has the plan of the first attempt.
            resume="auto" if is_again and plan["resume"] == "none" else plan["resume"],
            searches="true" if is_again else plan["fetch"],
            deadline=arguments.duration(plan["deadline"]),
            lineage=plan["run_number"],
            segment=int(plan["segment"]),
            may_begin=plan["may_begin"],
            notifies=True,
            prepares=plan["prepares"],
        )
    except (KeyError, TypeError, ValueError, argparse.ArgumentTypeError) as error:
        raise ConfigError(f"TRAINYARD_PLAN is not what plan_run.py resolved ({error})") from None


def replace_process(command: Sequence[str]) -> None:
    if command:
        sys.stdout.flush()
        os.execv(command[0], list(command))  # noqa: S606 - a command of this package, without a shell


def train_command(pipeline: Pipeline) -> list[str]:
    return replace(pipeline, resume=os.environ.get("RESUME") or pipeline.resume).train()


def follow_command(pipeline: Pipeline) -> list[str]:
    """Return the command that stores checkpoints beside the training; empty if TRAINYARD_FOLLOW is off."""
    if os.environ.get("TRAINYARD_FOLLOW") == "false":
        return []
    return step(
        "training_artifact_sync", *pipeline.store_options, "--follow", "--behind", str(follower_file())
    )


def follower_file() -> Path:
    return Path(os.environ.get("RUNNER_TEMP") or tempfile.gettempdir()) / "follower"


def check_ready(pipeline: Pipeline) -> int:
    """Check the store, the run number and the signing key from a hosted runner."""
    words = [*pipeline.configuration, "--store", pipeline.store, "--run-number", pipeline.run_number]
    return run_steps([step("doctor", *words)])


def check(plan: Json, pipeline: Pipeline) -> int:
    """Check the machine, and in a first segment the store, unless `ready` has checked the store."""
    problem = hosted_problem(
        os.environ.get("RUNNER_ENVIRONMENT", ""), int(plan["job_minutes"]), pipeline.store
    )
    if problem:
        refuse(*problem)
    environment, readiness, *_ = pipeline.before()
    is_checked = plan["jobs"]["ready"] or pipeline.segment > 1
    return run_steps([environment] if is_checked else [environment, readiness])


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


def refuse(reason: str, text: str) -> None:
    summary = f"### ❌ Not started\n\n{text}.\n"
    report_step({"reason": reason}, summary, error=("Not started", text))
    raise CheckFailedError(text)


def fetch(plan: Json, pipeline: Pipeline) -> int:
    """Restore the checkpoint to resume from, unless nothing has to be trained (output `skip`)."""
    reason = newer_push(plan) or proven_run(plan, pipeline)
    if reason:
        set_output("skip", reason)
        return ExitCode.DONE
    return run_steps([pipeline.fetch()])


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


def proven_run(plan: Json, pipeline: Pipeline) -> str:
    """Return which proven run is the same as this one; nothing if there is none or it is not known."""
    if plan["unless_proven"] != "true" or os.environ.get("GITHUB_RUN_ATTEMPT", "1") != "1":
        return ""
    words = [*pipeline.configuration, "--store", pipeline.store, "--json"]
    with tempfile.TemporaryFile() as printed:
        run_steps([step("step proven", *words)], stdout=printed)
        printed.seek(0)
        try:
            number = json.loads(printed.read() or b"{}").get("run_number")
        except (ValueError, AttributeError) as error:
            output.print_remarks([f"Proven runs could not be searched, so this one is trained: {error}"])
            return ""
    return f"run {number} is proven" if number else ""


def start(plan: Json, pipeline: Pipeline) -> int:
    """Post the start to Slack."""
    words = ["--reason", plan["reason"], "--segment", segment_of(plan), "--thread", plan["thread"]]
    words += ["--plan", plan["expected"]]
    run_steps(pipeline.notify(plan["moment"], *words))
    return ExitCode.DONE


def segment_of(plan: Json) -> str:
    return f"{plan['segment']}/{plan['most_segments']}"


def store(pipeline: Pipeline) -> int:
    """Store a run that is done or stopped with a good checkpoint, not a failed one."""
    trained = read_json(os.environ, "STEPS").get("train") or {}
    code = str((trained.get("outputs") or {}).get("exit_code") or "")
    end_follower()
    stopped = code.isdigit() and has_stopped(pipeline.run_dir, int(code))
    if trained.get("outcome") != "success" and not stopped:
        output.announce("artifacts", "a run that failed is not stored")
        return ExitCode.DONE
    result = run_steps([pipeline.store_run()])
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


def report(pipeline: Pipeline) -> int:
    """Write the report and the records to keep, and remove old runs that are proven and stored."""
    records = Path(os.environ.get("RUNNER_TEMP") or tempfile.gettempdir()) / "records"
    run_steps([pipeline.report()])
    run_steps([step("step records", "--run-dir", str(pipeline.run_dir), "--to", str(records))])
    keep = os.environ.get("TRAINYARD_KEEP_RUNS") or "3"
    proof = read_json(os.environ, "STEPS").get("prove") or {}
    if keep != "all" and proof.get("outcome") == "success":
        words = ["--runs-directory", str(pipeline.run_dir.parent), "--current", str(pipeline.run_dir)]
        words += ["--store", pipeline.store, "--keep-last", keep, "--apply"]
        run_steps([step("step prune-runs", *words)])
    return ExitCode.DONE


def notify(plan: Json, pipeline: Pipeline) -> int:
    """Report once how the training job ended, and pass its result to the next jobs."""
    steps, status = read_json(os.environ, "STEPS"), os.environ.get("JOB_STATUS", "failure")
    run, attempt = (os.environ.get(name, "") for name in ("GITHUB_RUN_ID", "GITHUB_RUN_ATTEMPT"))
    end = end_of_steps(steps, status=status, run=run, attempt=attempt, segment=pipeline.segment)
    outputs = {
        name: (steps.get(name) or {}).get("outputs") or {} for name in ("train", "start", "store", "prove")
    }
    thread = str(outputs["start"].get("slack_thread") or plan["thread"])
    words = [
        "--run-dir",
        str(pipeline.run_dir),
        "--lineage",
        plan["run_number"],
        "--segment",
        segment_of(plan),
    ]
    posted = True
    if (steps.get("train") or {}).get("outcome") in ("success", "failure"):
        notify_command.notify(notify_command.parse_args(["degraded", *words, "--thread", thread]))
    if end.event:
        words += ["--reason", end.reason, "--next-step", end.next_step, "--job-status", status]
        posted, thread = notify_command.notify(
            notify_command.parse_args([end.event, *words, "--thread", thread])
        )
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
    words = ["failed", "--run-dir", str(folder), "--lineage", number, "--needs", json.dumps(needs)]
    args = notify_command.parse_args([*words, "--thread", handed.get("thread") or plan.get("thread") or ""])
    posted, _ = notify_command.notify(args)
    if args.reason:
        append_summary(f"### ❌ {args.reason}\n\nNext: `{args.next_step}`\n")
    return ExitCode.DONE if posted else ExitCode.REFUSED


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
