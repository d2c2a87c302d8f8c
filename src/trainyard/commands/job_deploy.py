"""Send a training job to a cluster: check the cluster, plan, apply, and wait for its end if requested.

    preflight ──> storage and queue, if the configuration says how ──> plan ──> apply ──> watch

All problems are reported at once, before anything is sent. A job that would train to its end and fail its
proof (no artifacts.store, for example) is one of them, unless --accept names the part, such as
network. A job that exists already with the same name and plan is not sent again. --dry-run queries a cluster
only if one is named. A command of your own can follow after --.

Reads:      --config; the kubeconfig, or AWS for --cluster; the API of the cluster; ECR for the image
Writes:     the objects of the job into the cluster; --json prints the plan and the job's state; in GitHub
            Actions the outputs job, kind, namespace, image, store (--output writes them into a file), and
            for a dry run the job summary
Exit codes: 0 sent, or with --wait succeeded; 1 the cluster is not ready, or the job failed; 2 wrong plan;
            4 the cluster or AWS refused; 5 not ended in time; 75 stopped with a good checkpoint
Example:    trainyard job deploy --config configs/training_configuration.yaml --num-nodes 4
            --instance-type p5.48xlarge --volume fsx-claim --queue research --set compute.strategy=fsdp
            --image-uri 123456789012.dkr.ecr.us-west-2.amazonaws.com/trainyard:1.4.0 --monitor
"""

import argparse
import logging
import os
import secrets
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trainyard
from trainyard.cluster.cluster_query import ClusterQuery
from trainyard.cluster.job_preflight import preflight
from trainyard.cluster.server_side_apply import apply_all
from trainyard.cluster.verdict import require_checks, verdict_record
from trainyard.command import arguments, output, terminal
from trainyard.command.checkout import REPOSITORY_ROOT
from trainyard.command.cluster_options import (
    add_cluster_options,
    add_plan_options,
    check_cluster_options,
    job_values,
)
from trainyard.command.parser import CommandParser, script_parser
from trainyard.config.kind import kind_in_job
from trainyard.errors import ConfigError, ExitCode
from trainyard.gateways.git import git_facts
from trainyard.gateways.github import refusal_in_summary, report_step
from trainyard.gateways.images.ecr import find_digest, image_or_newest
from trainyard.gateways.images.image_record import runs_code_of
from trainyard.gateways.kubernetes.api import Api
from trainyard.gateways.kubernetes.cluster_connection import open_api
from trainyard.jobs.existing_job import is_deployed, is_of_others
from trainyard.jobs.follow.job_retries import RetryLoop
from trainyard.jobs.job_planning import (
    decides_the_end,
    load_job_config,
    observe_cluster,
    plan_job,
    provenance_of,
    settle_job,
    warnings_of,
)
from trainyard.jobs.job_reader import JobReader
from trainyard.jobs.job_spec import JobSpec, Program, token_variable
from trainyard.jobs.job_submission import creator, find, refusals, submit
from trainyard.jobs.kinds import KINDS
from trainyard.jobs.plan_problems import job_findings
from trainyard.jobs.recipes import any_program, trainyard_trainer
from trainyard.plan.finding import Severity
from trainyard.programs.inputs import find_lock
from trainyard.proof import PARTS
from trainyard.proof.reachable_parts import PlannedRun, unreachable_parts
from trainyard.report.cluster.verdict_text import summarize_verdict, verdict_lines
from trainyard.report.jobs.job_actions import plan_markdown, plan_outputs
from trainyard.report.jobs.job_text import kubernetes_yaml
from trainyard.report.plan.plan_text import unproven_lines
from trainyard.run.atomic_files import write_json_atomically
from trainyard.run.launch_environment import nccl_log_variables
from trainyard.run.suggested_commands import ClusterTarget
from trainyard.run.untrusted_files import read_yaml

if TYPE_CHECKING:
    from trainyard.cluster.fix import Step
    from trainyard.cluster.verdict import Verdict
    from trainyard.config.schema import Config
    from trainyard.jobs.job_kind import Manifests
    from trainyard.proof.reachable_parts import UnreachablePart

Json = dict[str, Any]
_logger = logging.getLogger("trainyard.deploy_training_job")
TEXTS = (
    ("--recipe", "NAME", "the program of the pods, such as megatron; default: the configuration's"),
    ("--job-name", "NAME", "default: made from model.name"),
    ("--hf-token-secret", "NAME[:KEY]", "a Secret with a token for the Hugging Face Hub; default key: token"),
    ("--ray-cluster", "NAME", "with raycluster: a cluster that several jobs share, or your own"),
)
REPEATED: tuple[tuple[str, Callable[[str], object], str, str], ...] = (
    ("--env", arguments.variable, "NAME=VALUE", "an environment variable; may be repeated"),
    ("--program-set", arguments.text, "KEY=VALUE", "a setting of the program; may be repeated"),
    ("--accept", arguments.text, "NAME", "ignore this check or part of the proof; may be repeated"),
)
SWITCHES = (
    ("--wait", "wait for the end of the job"),
    ("--monitor", "the same as --wait; trainyard watch --job JOB shows the steps"),
    ("--dry-run", "print the objects, send nothing"),
    ("--json", "print plan, objects and state as JSON"),
)


def make_parser() -> CommandParser:
    parser = script_parser(__doc__, reads_config=True)
    add_plan_options(parser)
    for flag, metavar, meaning in TEXTS:
        parser.add_argument(flag, default="", metavar=metavar, help=meaning)
    processes = "processes per pod; default: one per GPU"
    parser.add_argument("--nproc-per-node", type=arguments.processes, metavar="N", help=processes)
    again = "how often the job may be sent again; default: 0"
    parser.add_argument("--auto-retry", type=arguments.natural_number, default=0, metavar="N", help=again)
    add_cluster_options(parser)
    for flag, read, metavar, meaning in REPEATED:
        parser.add_argument(flag, action="append", type=read, default=[], metavar=metavar, help=meaning)
    for flag, meaning in SWITCHES:
        parser.add_argument(flag, action="store_true", help=meaning)
    parser.add_argument(
        "--timeout", type=arguments.duration, default="7d", metavar="DURATION", help="time limit of --wait"
    )
    parser.add_argument(
        "--output", type=arguments.path, metavar="FILE", help="write the planned values as JSON"
    )
    parser.add_argument(
        "own", nargs="*", default=[], metavar="COMMAND", help="after --: a program of your own"
    )
    parser.check = check_cluster_options
    return parser


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    return make_parser().parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)

    data, code = answer(args)
    if args.json and data:
        output.print_json(data)
    elif args.dry_run and data:
        print(kubernetes_yaml(data["objects"]), end="")
    return code


def answer(args: argparse.Namespace) -> tuple[Json, int]:
    """Plan and send the job that the options describe; see `deploy_job`."""
    with refusal_in_summary("Nothing was sent"):
        config = load_job_config(args.config, args.set, recipe=args.recipe, program_settings=args.program_set)
        data, code = deploy_job(
            config,
            requested_job(args),
            accept=args.accept,
            dry_run=args.dry_run,
            wait_seconds=args.timeout if args.wait or args.monitor else None,
            call_seconds=args.call_seconds,
        )
    if args.output and data:
        write_json_atomically(args.output, plan_outputs(data["plan"], store=config.artifacts.store or ""))
    return data, code


def requested_job(args: argparse.Namespace) -> JobSpec:
    return JobSpec(
        **job_values(args),
        secrets=token_variable(args.hf_token_secret),
        name=args.job_name,
        processes_per_node=args.nproc_per_node or 0,
        environment=dict(args.env),
        program=Program("", tuple(args.own)),
        ray_cluster=args.ray_cluster,
        auto_retry=args.auto_retry,
    )


def deploy_job(
    config: "Config",
    job: JobSpec,
    *,
    accept: Sequence[str] = (),
    dry_run: bool = False,
    wait_seconds: float | None = None,
    call_seconds: float = 20.0,
) -> tuple[Json, int]:
    """Check the cluster and plan the job, then send it; return its record and the exit code.

    The record has the plan, with `dry_run` the objects, else the job's state; it is empty if the cluster is
    not ready. `accept` names checks of the cluster and parts of the proof to ignore. `wait_seconds` is how
    long the end of the job is waited for; None: not at all.
    """
    accepted = [name for name in accept if name not in PARTS]  # the others name parts of the proof
    require_checks(accepted, others=PARTS)
    image = image_or_newest(job.image or config.cluster.image or "", os.environ, region=job.target.region)
    job = replace(job, image=image)
    target, api, code = job.target, None, ExitCode.DONE
    if dry_run and not (target.kubeconfig or target.context or target.cluster):
        job = settle_job(job, config)
    else:
        api = open_api(target, read=read_yaml, call_seconds=call_seconds)
        job = settle_job(job, config, namespace=api.access.namespace)
        verdict = check_cluster(config, job, api, accepted=accepted, dry_run=dry_run)
        code = verdict.exit_code_without(accepted)
        job = observe_cluster(job, verdict, creator=creator(api))
    # The longest id has 128 characters.
    run_id = job.run_id or f"{job.namespace}-{job.name}"[:119] + f"-{secrets.token_hex(4)}"
    plan = make_plan(config, replace(job, run_id=run_id, provenance=code_origin()), accept)
    data, store = plan.to_json(), config.artifacts.store or ""
    report_step(plan_outputs(data, store=store), plan_markdown(data, store=store) if dry_run else "")
    if api is None or dry_run:
        return ({}, code) if code else show(plan, api=api)
    # If the job exists already, the cluster may be full with its own pods.
    if code and not is_deployed(partial(find, api), plan):
        return {}, code
    # A RayJob is followed, not its RayCluster.
    return deploy(plan, api, replace(target, kind=""), wait_seconds=wait_seconds)


def code_origin() -> dict[str, str]:
    ours = runs_code_of(REPOSITORY_ROOT, Path(trainyard.__file__).parent)
    return provenance_of(
        git_facts(REPOSITORY_ROOT) if ours else {}, REPOSITORY_ROOT / "requirements-training.txt"
    )


def check_cluster(
    config: "Config", job: JobSpec, api: Api, *, accepted: Sequence[str], dry_run: bool
) -> "Verdict":
    def apply(step: "Step") -> None:
        output.announce(step.check, step.what)
        apply_all(api, step.objects)

    query = ClusterQuery(api, job, tuple(KINDS.values()))
    change = None if dry_run else apply
    verdict = preflight(query, config.cluster, find_digest=find_digest, apply=change)
    record = {**verdict_record(verdict), **query.record(verdict.facts.snapshot)}
    is_refused = verdict.exit_code_without(accepted)
    if is_refused:
        print("\n".join(verdict_lines(record, width=terminal.width())), file=sys.stderr)
    status = "failed" if is_refused else "degraded" if verdict.exit_code else "ok"
    note = f" Accepted: {', '.join(accepted)}." if status == "degraded" and accepted else ""
    output.announce("preflight", summarize_verdict(record) + note, status)
    return verdict


def make_plan(config: "Config", job: JobSpec, accept: Sequence[str]) -> JobSpec:
    plan = plan_job(config, job)
    check_provable(config, plan, accept)
    for warning in (*warnings_of(plan), *lock_warnings(config, plan)):
        _logger.warning("%s", warning)
    for found in job_findings(plan):
        value = f"={found.value}" if found.value else ""
        level = logging.INFO if found.severity is Severity.INFO else logging.WARNING
        _logger.log(level, "%s%s: %s; %s", found.subject, value, found.evidence, found.fix)
    return plan


def lock_warnings(config: "Config", plan: JobSpec) -> list[str]:
    """Warn of a program without a lock; the image may have one beside the program, which is not seen here."""
    folder = Path(config.program.directory).resolve()
    if plan.program.name != any_program.NAME or config.program.lock or find_lock(folder) is not None:
        return []
    return [
        f"program.lock: not set, and {folder} has no uv.lock, requirements.txt or the like. If the image has "
        "none either, the job trains to its end and is not proven (repeatable: not on record: lock)"
    ]


def check_provable(config: "Config", plan: JobSpec, accept: Sequence[str]) -> None:
    """Warn of parts of the proof that cannot hold. Raises ConfigError for those that would fail the job."""
    store = config.artifacts.store or ""
    parts = unproven_parts(config, plan)
    refused = [
        part for part in parts if decides_the_end(part.name, plan, store=store) and part.name not in accept
    ]
    for line in unproven_lines([part.to_json() for part in parts if part not in refused]):
        _logger.warning("%s", line)
    if refused:
        lines = unproven_lines([part.to_json() for part in refused])
        flags = " ".join(f"--accept {part.name}" for part in refused)
        end = f"The job would train to its end and then fail. To train without this proof, add {flags}."
        raise ConfigError("\n".join([*lines, f"{end} Nothing was sent."]))


def unproven_parts(config: "Config", plan: JobSpec) -> "tuple[UnreachablePart, ...]":
    # Every process must write a log of NCCL that shows its channels.
    is_kept = not plan.program.once or bool(plan.program.nccl_log)
    is_logged = bool(nccl_log_variables("log", plan.environment))
    return unreachable_parts(
        PlannedRun(
            kind=kind_in_job(config.recipe),
            nodes=plan.nodes,
            processes=plan.processes_per_node,
            network=trainyard_trainer.config_in_pods(config, efa=plan.resources.efa > 0).compute.network,
            store=config.artifacts.store or "",
            is_recorded=plan.program.keeps_run,
            keeps_network_log=plan.resources.gpus > 0 and is_kept and is_logged,
        )
    )


def show(plan: JobSpec, *, api: Api | None) -> tuple[Json, int]:
    """Return plan and objects; report what the API server would refuse."""
    kind = KINDS[plan.kind]
    manifests = job_objects(plan, api)
    checked = manifests.before_job if kind.needs_runtime else manifests.all
    problems = refusals(api, checked) if api else []
    for problem in problems:
        _logger.error("%s", problem)
    data = {"plan": plan.to_json(), "objects": list(manifests.all)}
    return data, ExitCode.NO if problems else ExitCode.DONE


def job_objects(plan: JobSpec, api: Api | None) -> "Manifests":
    """Return the objects of the job, without a RayCluster of others, which is used unchanged."""
    manifests = KINDS[plan.kind].render(plan)
    shared = tuple(body for body in manifests.shared if api is None or not is_of_others(find(api, body)))
    return replace(manifests, shared=shared)


def deploy(plan: JobSpec, api: Api, target: ClusterTarget, *, wait_seconds: float | None) -> tuple[Json, int]:
    """Send the job unless it exists already, and wait for its end if requested."""
    manifests, kind = job_objects(plan, api), KINDS[plan.kind].followed
    if there := is_deployed(partial(find, api), plan):
        output.announce("job", f"{plan.name} exists already, with the same plan")
    else:
        submit(api, manifests.job, parts=manifests.parts, shared=manifests.shared)
        output.announce("job", f"{manifests.job['kind']} {plan.name} sent to {plan.namespace}", "ok")
    data: Json = {"job": plan.name, "namespace": plan.namespace, "kind": plan.kind}
    code: int = ExitCode.DONE
    is_running = True
    if wait_seconds is not None or (there and JobReader(api).state(plan.namespace, plan.name, kind).ended):
        loop, seconds = RetryLoop(api, output.announce, target=target), wait_seconds or 60.0
        retries = wait_seconds is not None and plan.auto_retry > 0
        state = loop.follow_to_end(plan.namespace, plan.name, kind, seconds, retries=retries).state
        code, data, is_running = state.exit_code, data | state.record(), not state.ended
        if is_running:
            late = f"{state.state.value}: not ended within --timeout, still running"
            output.announce("job", late, "failed" if code else "ok")
        if state.failure is not None:
            if state.failure.cause:
                output.announce("error", state.failure.cause)
            output.announce("fix", state.failure.fix, copied=True)
    if is_running:
        what = "retry" if plan.auto_retry else "status"
        words = ("job", what, plan.name)
        output.announce("follow", target.command(*words, namespace=plan.namespace), copied=True)
    return {**data, "plan": plan.to_json()}, code
