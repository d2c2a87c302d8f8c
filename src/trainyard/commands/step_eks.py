"""Train on a cluster from GitHub: the steps of `deploy_eks.yml` and `watch_eks.yml`, which share one plan.

`plan` checks the configuration and the cluster, and plans the job against its API. `send` sends what was
planned and records it as a deployment of the commit. `watch` follows the job for --timeout: a job that has
not ended yet is no failure. `prove` reads the store from outside of the cluster. `report` sends the end to
Slack and into the deployment, or starts the polls of a job that still trains. `poll` reads every recorded
job once, dispatches the run that reports an end, and stops polling when no job is left.

Reads:      TRAINYARD_PLAN, the plan that `plan` or `send` put out; for plan INPUTS, the JSON of the dispatch
            inputs, TRAINYARD_EKS_*, TRAINYARD_STORE, ECR_REPOSITORY; TRAINYARD_AWS_REGION; RUNNER_TEMP;
            GitHub's variables and GITHUB_TOKEN; Slack's as trainyard notify; the cluster, the store
Writes:     the job, unless --dry-run; deployments and a dispatch at GitHub; logs, the run and its records
            below RUNNER_TEMP; a Slack message; the outputs plan, ended, exit_code, reason, posted; summaries
Exit codes: 0 done, or the job has not ended; 1 the cluster is not ready, the job failed or is not proven;
            2 wrong inputs; 4 the cluster, the store or GitHub refused; 75 it stopped with a good checkpoint
Example:    TRAINYARD_PLAN="$PLAN" trainyard step eks watch --timeout 10m
"""

import argparse
import base64
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.artifacts.record.run_numbers import number_of_run
from trainyard.artifacts.restore.restore import restore
from trainyard.artifacts.restore.selection import parse_selection
from trainyard.artifacts.store.store_address import open_store
from trainyard.command import arguments, output
from trainyard.command.cluster_options import JOB_KINDS
from trainyard.command.handler import code_of
from trainyard.command.parser import script_parser
from trainyard.commands.cluster import check_cluster, open_query
from trainyard.commands.job_deploy import deploy_job
from trainyard.commands.notify import Notice, needs_in, notify
from trainyard.commands.prove import prove_run
from trainyard.commands.report import write_report
from trainyard.commands.step_action import keep_records
from trainyard.commands.step_plan import SHIPPED, plan_run
from trainyard.commands.store_restore import set_manifest_outputs
from trainyard.config.load import load_config
from trainyard.errors import ConfigError, ExitCode, ServiceError, TrainyardError, VerificationError
from trainyard.gateways.github import (
    Level,
    annotate,
    append_summary,
    refusal_in_summary,
    report_step,
    set_output,
)
from trainyard.gateways.github_api import github_from
from trainyard.gateways.kubernetes.api import Api
from trainyard.gateways.kubernetes.cluster_connection import open_api
from trainyard.github.cluster_job import (
    POLL,
    WORKFLOW,
    JobDeployment,
    is_given_up,
    open_deployment,
    open_jobs,
    read_cluster_job,
    run_end,
    set_status,
)
from trainyard.github.repository import SCHEDULE
from trainyard.github.run_plan import DispatchInputs, overrides_in, resolve
from trainyard.github.target import Target
from trainyard.github.variables import set_variables
from trainyard.jobs.follow.job_retries import RetryLoop
from trainyard.jobs.follow.pod_logs import save_logs
from trainyard.jobs.job_reader import JobReader
from trainyard.jobs.job_spec import JobSpec
from trainyard.report.cluster.verdict_text import verdict_lines
from trainyard.report.jobs.job_actions import plan_outputs, state_error, state_markdown, state_outputs
from trainyard.report.jobs.kubernetes_yaml import kubernetes_yaml
from trainyard.run.segment import first_segment
from trainyard.run.suggested_commands import ClusterTarget
from trainyard.run.untrusted_files import parse_json_object, read_yaml

if TYPE_CHECKING:
    from trainyard.config.schema import Config
    from trainyard.jobs.state.job_state import JobState

COMMANDS = ("plan", "send", "watch", "prove", "report", "poll")
POLL_SECONDS = 30.0
"""How long a poll follows one job: enough to read its state and to carry out a retry that is due."""
REGION = "us-east-1"
_logger = logging.getLogger("trainyard.eks_job")


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="one of: " + ", ".join(COMMANDS))
    limit = "with watch: how long to follow the job; default: 10m"
    parser.add_argument("--timeout", type=arguments.duration, default="10m", metavar="DURATION", help=limit)
    needs = "with report: GitHub's context `needs`, the results of the jobs"
    parser.add_argument("--needs", default="{}", metavar="JSON", help=needs)
    parser.add_argument("--dry-run", action="store_true", help="with send and poll: change nothing")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)

    commands: dict[str, Callable[[], int]] = {
        "plan": plan,
        "send": lambda: send(dry_run=args.dry_run),
        "watch": lambda: watch(args.timeout),
        "prove": prove,
        "report": lambda: report(args.needs),
        "poll": lambda: poll(dry_run=args.dry_run),
    }
    try:
        return commands[args.command]()
    except TrainyardError as error:
        set_output("reason", str(error).split("\n", 1)[0])
        raise


def plan() -> int:
    """Check the configuration, the inputs and the cluster, and plan the job; nothing is sent."""
    if not (text := os.environ.get("INPUTS", "")):
        raise ConfigError("INPUTS is not set. Set it to the JSON of the workflow's inputs.")
    given = {name: str(value or "") for name, value in parse_json_object(text, "INPUTS").items()}
    for name in ("nodes", "instance_type"):  # an input overrides its variable, also in plan_run
        if value := given.get("num_nodes" if name == "nodes" else name):
            os.environ[f"TRAINYARD_EKS_{name.upper()}"] = value
    set_variables(os.environ)
    given["config"] = given.get("config") or os.environ.get("TRAINYARD_CONFIG") or SHIPPED
    only = given.get("dry_run") == "True"
    if code := plan_run(given["config"], overrides=given.get("overrides", ""), target="eks", only_plan=only):
        return code
    job = requested_job(given)
    request, config = request_of(job), job_config(job)
    # The image is looked up later, with the plan.
    found, code = check_cluster(open_query(replace(request, image=""), config.cluster))
    output.print_result(found, lambda data, width: verdict_lines(data, width=width), as_json=False)
    if code:
        return code
    with refusal_in_summary("Nothing was sent"):
        data, code = deploy_job(config, request, accept=job.accept, dry_run=True)
    if data:
        output.print_text(kubernetes_yaml(data["objects"]))
    if code:
        return code
    job = job.model_copy(update=plan_outputs(data["plan"], store=config.artifacts.store or ""))
    set_output("plan", job.to_text())
    return ExitCode.DONE


def requested_job(given: Mapping[str, str]) -> JobDeployment:
    """Return the job of the inputs and variables; the cluster decides the values that they leave open."""
    changes = overrides_in(given.get("overrides", ""))
    inputs = DispatchInputs(given["config"], changes, target=Target.EKS)
    config = load_config(Path(inputs.config), changes).config
    resolved = resolve(inputs, config, first_segment(os.environ), variables=os.environ)
    run_id, name = resolved.segment.run_id, given.get("job_name")
    return JobDeployment(
        job=name or run_id,
        run_id=f"{run_id}-{name}" if name else run_id,
        kind=given.get("kind") or "auto",
        namespace="",
        image=given.get("image", ""),
        store=resolved.store,
        cluster=os.environ.get("TRAINYARD_EKS_CLUSTER", ""),
        region=os.environ.get("TRAINYARD_AWS_REGION") or REGION,
        config=inputs.config,
        changes=changes,
        nodes=os.environ.get("TRAINYARD_EKS_NODES") or "1",
        gpus=given.get("gpu_per_node", ""),
        instance_type=os.environ.get("TRAINYARD_EKS_INSTANCE_TYPE", ""),
        accept=tuple(os.environ.get("TRAINYARD_EKS_ACCEPT", "").split()),
        auto_retry=given.get("auto_retry") or "0",
    )


def job_config(job: JobDeployment) -> "Config":
    return load_config(Path(job.config), [*job.changes, f"artifacts.store={job.store}"]).config


def request_of(job: JobDeployment) -> JobSpec:
    """Return the request for the job. Raises ConfigError for a value that people typed wrong."""
    if job.kind not in ("auto", *JOB_KINDS):
        raise ConfigError(f"kind: {job.kind[:80]!r} is none of auto, {', '.join(JOB_KINDS)}")
    return JobSpec(
        nodes=arguments.parse(arguments.positive, job.nodes, "num_nodes"),
        gpus_per_node=arguments.parse(arguments.natural_number, job.gpus, "gpu_per_node")
        if job.gpus
        else None,
        instance_type=job.instance_type,
        kind=job.kind,
        namespace=job.namespace,
        image=job.image,
        target=replace(target_of(job), kind=job.kind),
        name=job.job,
        run_id=job.run_id,
        auto_retry=arguments.parse(arguments.natural_number, job.auto_retry, "auto_retry"),
    )


def target_of(job: JobDeployment) -> ClusterTarget:
    region = job.region if job.cluster else ""
    return ClusterTarget(cluster=job.cluster, region=region, namespace=job.namespace)


def send(*, dry_run: bool) -> int:
    """Send the job unless it is there already, report it to Slack, and record it as a deployment."""
    job = planned_job()
    with refusal_in_summary("Nothing was sent"):
        data, code = deploy_job(job_config(job), request_of(job), accept=job.accept, dry_run=dry_run)
    if dry_run and data:
        output.print_text(kubernetes_yaml(data["objects"]))
    if code or dry_run:
        return code
    job = job.model_copy(update={"thread": started_thread(job)})
    try:
        job = open_deployment(
            github_from(), job, commit=os.environ.get("GITHUB_SHA", ""), run_url=url_of_run()
        )
    except (ServiceError, ConfigError) as error:  # the job trains, but its end will not be reported
        annotate(
            Level.WARNING,
            f"{error}. No poll watches {job.job} after this run.",
            title="The job is not recorded",
        )
    set_output("plan", job.to_text())
    return ExitCode.DONE


def started_thread(job: JobDeployment) -> str:
    """Report the start to Slack, and return the thread; empty where there is none."""
    return notify(Notice(event="started", run_dir=run_dir(job), lineage=job.job)).thread


def watch(seconds: float) -> int:
    """Follow the job to its end or for `seconds`, and save the logs of its pods once it has ended.

    The logs are saved immediately, because an operator may remove the pods minutes after the end.
    """
    job = planned_job()
    api = api_of(job)
    if (missing := missing_job(api, job)) is not None:
        report_step(
            {"ended": "true", "exit_code": "1", "reason": missing}, error=("The job is gone", missing)
        )
        return ExitCode.NO
    state, has_ended = follow(api, job, seconds)
    data, code = state.record(), state.exit_code
    outputs = state_outputs(data, exit_code=code) | {"ended": "true" if has_ended else "false"}
    report_step(outputs, state_markdown(data, target_of(job)), error=state_error(data, exit_code=code))
    if not has_ended:
        output.announce("job", f"{state.job} has not ended: {state.reason}", "degraded")
        return ExitCode.DONE
    save_pod_logs(api, job, state.job)
    return code


def api_of(job: JobDeployment) -> Api:
    return open_api(target_of(job), read=read_yaml)


def missing_job(api: Api, job: JobDeployment) -> str | None:
    """Return the message for a job that was deleted; None if it exists."""
    try:
        JobReader(api).find_job(job.namespace, job.job, job.kind)
    except ConfigError:
        return f"{job.kind} {job.job} is gone from {job.namespace}: it was deleted before its end was read"
    return None


def follow(api: Api, job: JobDeployment, seconds: float) -> "tuple[JobState, bool]":
    """Return the state of the job, or of the last job that replaced it, and whether it has ended.

    A failure that is retried is not an end, not even while the retry waits for its back-off.
    """
    loop, retries = RetryLoop(api, output.announce, target=target_of(job)), job.auto_retry != "0"
    found = loop.follow_to_end(job.namespace, job.job, job.kind, seconds, retries=retries)
    return found.state, found.state.ended and not found.is_waiting


def save_pod_logs(api: Api, job: JobDeployment, name: str) -> None:
    """Save the logs of the pods of the job `name`; a log that cannot be read is only a warning."""
    reader = JobReader(api)
    try:
        found = reader.find_job(job.namespace, name, job.kind)
        _, missing = save_logs(api, job.namespace, reader.raw_pods(found), folder() / "logs")
    except TrainyardError as error:
        _logger.warning("The logs of the pods were not saved: %s", error)
        return
    for each in missing:
        output.announce("logs", f"not saved: {each}", "degraded")


def prove() -> int:
    """Prove the run from the store, and write report and records; a failure of these two is ignored."""
    job = planned_job()
    run = run_dir(job)
    with refusal_in_summary("Not restored"):
        store = open_store(job.store)
        run_id = job.run_id or job.job
        number = number_of_run(store, run_id)
        if number is None:
            raise VerificationError(
                f"{store.url} holds no run {run_id}. Pods that find an earlier run in their folder "
                "continue it under its own id: trainyard store ls lists it. Give a new run another job_name."
            )
        report = restore(store, parse_selection(store, number, "none"), run)
    set_manifest_outputs(store, number)
    output.announce("restored", report.summary(), "ok")
    code = prove_run(run, store=job.store)
    code_of(lambda: write_report(run))
    code_of(lambda: keep_records(run, folder() / "records"))
    return code


def report(needs: str) -> int:
    """Report the end of this run once: to Slack, and as the status of the deployment.

    A job that was sent and has not ended is not reported as a failure: polls of it are started.
    """
    job = planned_job() if os.environ.get("TRAINYARD_PLAN") else None
    deployment = job.deployment if job else 0
    found = needs_in(needs)
    end = run_end(found, was_sent=deployment > 0)
    polls = end.event == "running" and job is not None and keep_polling(job)
    if polls and job:
        text = (
            f"{job.job} still runs on {job.cluster or 'the cluster'}; its end is reported when a poll sees it"
        )
        append_summary(f"### ⏳ Still running\n\n{text}.\n")
        output.announce("job", text, "degraded")
        set_output("posted", "true")
        if not end.is_cancelled:
            return ExitCode.DONE
    elif deployment:
        state = "success" if end.event == "succeeded" else "failure"
        try:
            set_status(github_from(), deployment, state, end.event, run_url=url_of_run())
        except ServiceError as error:
            _logger.warning("The deployment was not updated: %s", error)
    event = "failed" if end.event == "running" else end.event
    name, thread = (job.job, job.thread) if job else (f"gh-{os.environ.get('GITHUB_RUN_ID', '')}", "")
    notify(Notice(event=event, run_dir=folder() / "records", lineage=name, thread=thread, needs=found))
    return ExitCode.DONE


def keep_polling(job: JobDeployment) -> bool:
    """Hand the job over to the scheduled polls; return False if too many runs have waited for its end.

    If GitHub refuses, a warning names the command.
    """
    try:
        api = github_from()
        if is_given_up(api, job.deployment):
            return False
        set_status(api, job.deployment, "in_progress", "still running", run_url=url_of_run())
        api.put(f"/actions/workflows/{POLL}/enable")
        file = api.get(f"/contents/.github/workflows/{POLL}")  # of the default branch, as schedules are
        if SCHEDULE not in base64.b64decode(file["content"]).decode():
            text = f"Nobody polls {job.job}, because {POLL} has no schedule: trainyard init github adds it"
            annotate(Level.WARNING, f"{text}. To poll once: gh workflow run {POLL}", title="No polls")
    except (ServiceError, ConfigError) as error:
        text = f"{error}. Nobody polls {job.job}; start the polls: gh workflow enable {POLL}"
        annotate(Level.WARNING, text, title="No polls")
    return True


def poll(*, dry_run: bool) -> int:
    """Read every recorded job once, and dispatch a run for each that ended.

    The polls are disabled when no job is open, and enabled again if a job was sent in the meantime.
    """
    api = github_from()
    jobs = list(open_jobs(api, now=time.time()))
    problems = [problem for job in jobs if (problem := poll_job(job, dry_run=dry_run))]
    if not jobs and not dry_run:
        api.put(f"/actions/workflows/{POLL}/disable")
        if any(True for _ in open_jobs(api, now=time.time())):
            api.put(f"/actions/workflows/{POLL}/enable")
    output.announce("poll", f"{len(jobs)} jobs are open", "degraded" if problems else "ok")
    if problems:
        raise ServiceError("; ".join(problems))
    return ExitCode.DONE


def poll_job(job: JobDeployment, *, dry_run: bool) -> str:
    """Dispatch the run that reports the end of the job, if it has ended; return an error, or nothing."""
    try:
        cluster = api_of(job)
        state = "gone"
        if missing_job(cluster, job) is None:
            found, has_ended = follow(cluster, job, POLL_SECONDS)
            state = found.state.value
            if not has_ended:
                append_summary(f"⏳ `{job.job}`: {state}: {' '.join(found.reason.split())}\n\n")
                return ""
        append_summary(f"`{job.job}`: {state}; a run reports its end\n\n")
        if not dry_run:
            api = github_from()
            inputs = {"plan": job.to_text(), "job_name": job.job, "config": job.config}
            url = api.dispatch(WORKFLOW, ref=os.environ.get("GITHUB_REF_NAME", ""), inputs=inputs)
            text = f"{state}: a run reads the end"
            set_status(api, job.deployment, "pending", text, run_url=url or url_of_run())
    except TrainyardError as error:
        return f"{job.job}: {error}"
    return ""


def planned_job() -> JobDeployment:
    text = os.environ.get("TRAINYARD_PLAN", "")
    if not text:
        raise ConfigError("TRAINYARD_PLAN is not set. Set it to the output `plan` of `plan` or `send`.")
    return read_cluster_job(text)


def folder() -> Path:
    return Path(os.environ.get("RUNNER_TEMP") or "runs")


def run_dir(job: JobDeployment) -> Path:
    return folder() / job.job


def url_of_run(environment: Mapping[str, str] = os.environ) -> str:
    server, repository, run = (
        environment.get(f"GITHUB_{name}", "") for name in ("SERVER_URL", "REPOSITORY", "RUN_ID")
    )
    return f"{server or 'https://github.com'}/{repository}/actions/runs/{run}"
