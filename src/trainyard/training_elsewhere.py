"""Train on a cluster or in CodeBuild from a job of GitHub: start, follow, restore the records, prove.

    plan ──> start the job or the build ──> follow ──> restore ──> prove ──> report ──> notify

The pods, or the build, train and store by themselves; here another machine reads the store. A job on a
cluster that outlives this one is followed by the next segment, and continues when the workflow run is
cancelled; a build ends with it.
"""

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainyard.artifacts.record.run_numbers import number_of_run
from trainyard.artifacts.restore.restore import restore
from trainyard.artifacts.restore.selection import parse_selection
from trainyard.artifacts.store.store_address import open_store
from trainyard.command import arguments, output
from trainyard.command.time_limits import job_seconds
from trainyard.commands.cluster import check_cluster, open_query
from trainyard.commands.job_deploy import deploy_job
from trainyard.commands.notify import notice_of_plan, notify
from trainyard.commands.prove import prove_run
from trainyard.commands.report import write_report
from trainyard.commands.store_restore import set_manifest_outputs
from trainyard.config.load import load_config
from trainyard.errors import ConfigError, ExitCode, TrainyardError, VerificationError
from trainyard.gateways.aws_refusals import AwsAccount
from trainyard.gateways.github import refusal_in_summary, report_step, set_output
from trainyard.gateways.images.codebuild import CodeBuild, CodeBuildPhase
from trainyard.gateways.kubernetes.cluster_connection import open_api
from trainyard.image.building.build_poll import describe_build_end
from trainyard.jobs.follow.job_retries import RetryLoop
from trainyard.jobs.follow.pod_logs import save_logs
from trainyard.jobs.job_reader import JobReader
from trainyard.jobs.job_spec import JobSpec
from trainyard.pipeline import Step, StepRunner
from trainyard.report.cluster.verdict_text import verdict_lines
from trainyard.report.jobs.job_actions import state_error, state_markdown, state_outputs
from trainyard.run.suggested_commands import ClusterTarget
from trainyard.run.untrusted_files import read_yaml

Json = Mapping[str, Any]
HANDOVER_SECONDS = 600.0
"""Seconds before the limit of the job at which a job on a cluster is left to the next segment."""
POLL_SECONDS = 30.0


@dataclass(frozen=True)
class TrainingElsewhere:
    """A training that a job of GitHub starts and follows, from the plan of its workflow run."""

    plan: Json
    starts_job: Callable[["TrainingElsewhere"], int]
    """Starts it, unless it was started before."""
    follows_job: Callable[["TrainingElsewhere"], int]
    """Follows it; returns its exit code, or 75 where the next segment has to follow it."""

    @property
    def run_dir(self) -> Path:
        return Path(os.environ.get("RUNNER_TEMP") or tempfile.gettempdir()) / str(self.plan["run_id"])

    @property
    def changes(self) -> list[str]:
        return [*str(self.plan["overrides"]).splitlines(), f"artifacts.store={self.plan['store']}"]

    def notice(self, event: str, *, reason: str = "", plan: str = "") -> Step:
        notice = notice_of_plan(self.plan, event, self.run_dir, reason=reason, plan=plan)
        return Step("notify", notify, {"notice": notice})

    def seconds_left(self) -> float:
        """Return how long this job may follow the training."""
        return max(1.0, 60.0 * int(self.plan["job_minutes"]) - job_seconds() - HANDOVER_SECONDS)

    def run(self, steps: StepRunner) -> int:
        """Run all steps; return the exit code of the training, or of the first step that failed."""
        with steps:
            code = steps.run(Step("start", self.starts_job, {"training": self}))
            if code:
                steps.run(self.notice("failed", reason=steps.reason))
                return code
            if self.plan["segment"] == "1":
                steps.run(self.notice("started", plan=str(self.plan["expected"])))
            code = steps.run(Step("train", self.follows_job, {"training": self}))
            if code == ExitCode.STOPPED and (self.run_dir / "running").exists():
                return code  # the next segment follows it
            failure = steps.run(Step("restore", self.restore_records, {}))
            if not code:
                failure = failure or steps.run(
                    Step("prove", prove_run, {"run_dir": self.run_dir, "store": self.plan["store"]})
                )
            if (self.run_dir / "run.json").is_file():
                steps.run(Step("report", write_report, {"run_dir": self.run_dir}))
            is_stopped, has_failed = code == ExitCode.STOPPED, bool(code or failure)
            event = "stopped" if is_stopped else "failed" if has_failed else "succeeded"
            steps.run(self.notice(event, reason=steps.reason if event == "failed" else ""))
            return code or failure

    def restore_records(self) -> int:
        """Restore the records of the run from the store."""
        with refusal_in_summary("Not restored"):
            store = open_store(self.plan["store"])
            number = number_of_run(store, str(self.plan["run_id"]))
            if number is None:
                raise VerificationError(
                    f"{store.url} holds no run {self.plan['run_id']}. Pods that find an earlier run in their "
                    "folder continue it under its own id: trainyard store ls lists it"
                )
            found = restore(store, parse_selection(store, number, "none"), self.run_dir)
        set_manifest_outputs(store, number)
        output.announce("restored", found.summary(), "ok")
        return ExitCode.DONE


def training_elsewhere(plan: Json) -> TrainingElsewhere | None:
    """Return the training that the plan wants on other machines; None for this one."""
    kinds = {"eks": (send_job, follow_pods), "codebuild": (start_build, follow_build)}
    found = kinds.get(str(plan.get("target")))
    return TrainingElsewhere(plan, *found) if found else None


def requested_job(training: TrainingElsewhere) -> JobSpec:
    """Return the request for the job. Raises ConfigError for a variable that people typed wrong."""
    plan, cluster = training.plan, os.environ.get("TRAINYARD_EKS_CLUSTER", "")
    region = str(plan.get("region") or "us-east-1") if cluster else ""
    return JobSpec(
        nodes=arguments.parse(
            arguments.positive, os.environ.get("TRAINYARD_EKS_NODES") or "1", "TRAINYARD_EKS_NODES"
        ),
        instance_type=os.environ.get("TRAINYARD_EKS_INSTANCE_TYPE", ""),
        kind="auto",
        target=ClusterTarget(cluster=cluster, region=region),
        name=str(plan["run_id"]),
        run_id=str(plan["run_id"]),
    )


def send_job(training: TrainingElsewhere) -> int:
    """Check the cluster and send the job; a job of the same plan that exists is taken as it is."""
    config = load_config(Path(training.plan["config"]), training.changes).config
    request = requested_job(training)
    # The image is looked up later, with the plan.
    found, code = check_cluster(open_query(replace(request, image=""), config.cluster))
    output.print_result(found, lambda data, width: verdict_lines(data, width=width), as_json=False)
    if code:
        return code
    accept = tuple(os.environ.get("TRAINYARD_EKS_ACCEPT", "").split())
    with refusal_in_summary("Nothing was sent"):
        data, code = deploy_job(config, request, accept=accept)
    if data:
        training.run_dir.mkdir(parents=True, exist_ok=True)
        (training.run_dir / "job").write_text(f"{data['plan']['namespace']} {data['plan']['kind']}")
    return code


def follow_pods(training: TrainingElsewhere) -> int:
    """Follow the job to its end, or as long as this job may; save the logs of its pods once it has ended."""
    request = requested_job(training)
    namespace, kind = (training.run_dir / "job").read_text().split()
    target = replace(request.target, namespace=namespace, kind=kind)
    api, name = open_api(target, read=read_yaml), str(training.plan["run_id"])
    try:
        JobReader(api).find_job(namespace, name, kind)
    except ConfigError:
        raise VerificationError(
            f"{kind} {name} is gone from {namespace}: it was deleted before its end was read"
        ) from None
    loop = RetryLoop(api, output.announce, target=target)
    state = loop.follow_to_end(namespace, name, kind, training.seconds_left(), retries=False)
    data, code = state.record(), state.exit_code
    report_step(
        state_outputs(data, exit_code=code),
        state_markdown(data, target),
        error=state_error(data, exit_code=code),
    )
    if not state.ended:
        set_output("running", "true")
        (training.run_dir / "running").touch()
        output.announce("job", f"{name} still trains: the next segment follows it", "ok")
        return ExitCode.STOPPED
    (training.run_dir / "running").unlink(missing_ok=True)
    try:
        reader = JobReader(api)
        pods = reader.raw_pods(reader.find_job(namespace, state.job, kind))
        save_logs(api, namespace, pods, training.run_dir.parent / "records" / "logs")
    except TrainyardError as error:
        output.announce("logs", f"not saved: {error}", "degraded")
    return code


def start_build(training: TrainingElsewhere) -> int:
    """Start the build of this segment; a second call with the same plan starts none."""
    plan, number = training.plan, os.environ.get("GITHUB_RUN_ATTEMPT", "1")
    variables = {
        "TASK": "train",
        "CONFIG": str(plan["config"]),
        "OVERRIDES": " ".join(str(plan["overrides"]).split("\n")),
        "RESUME": str(plan["resume"]),
        "RUN_ID": str(plan["run_id"]),
        "RUN_NUMBER": str(plan["run_number"]),
        "ALLOW_MISSING_CHECKPOINT": "true" if plan["segment"] == "1" else "false",
        "DEADLINE": str(plan["deadline"]),
        "TRAINYARD_STORE": str(plan["store"]),
    }
    token = f"{plan['run_id']}-{plan['segment']}-{number}"
    project = os.environ["TRAINYARD_CODEBUILD_PROJECT"]
    build = codebuild(plan).start(
        project, source={"sourceVersion": str(plan["commit"])}, variables=variables, token=token
    )
    training.run_dir.mkdir(parents=True, exist_ok=True)
    (training.run_dir / "build").write_text(build)
    output.announce("build", build, "ok")
    return ExitCode.DONE


def codebuild(plan: Json) -> CodeBuild:
    return CodeBuild(AwsAccount(str(plan.get("region") or "")))


def follow_build(training: TrainingElsewhere) -> int:
    """Follow the build to its end, and return the exit code of its training. An interrupt stops the build."""
    builds, build = codebuild(training.plan), (training.run_dir / "build").read_text()

    def report(phase: CodeBuildPhase) -> None:
        output.announce("build", f"phase {phase.name} {phase.status.lower()}")

    try:
        state = builds.follow(build, report, poll_seconds=POLL_SECONDS)
    except KeyboardInterrupt:
        builds.stop(build)
        raise
    code = state.exported.get("TRAIN_CODE", "")
    for line in builds.log_tail(state, lines=200):
        output.print_text(line)
    if state.status != "SUCCEEDED" and not code.isdigit():
        raise VerificationError(
            f"the build {build} {describe_build_end(state)}. Its log: {state.log_address}"
        )
    return int(code or 0)
