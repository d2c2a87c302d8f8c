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
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trainyard
from trainyard.cluster.cluster_query import ClusterQuery
from trainyard.cluster.demand import demand_of
from trainyard.cluster.job_preflight import preflight
from trainyard.cluster.server_side_apply import apply_all
from trainyard.cluster.verdict import require_checks
from trainyard.command import arguments, output, terminal
from trainyard.command.checkout import REPOSITORY_ROOT
from trainyard.command.cluster_options import JOB_KINDS, add_cluster_options, check_cluster_options
from trainyard.command.parser import script_parser
from trainyard.config.registries import COMMAND
from trainyard.errors import ConfigError, ExitCode
from trainyard.gateways.git import git_facts
from trainyard.gateways.github import refusal_in_summary, report_step
from trainyard.gateways.images.ecr import find_digest, image_or_newest
from trainyard.gateways.images.image_record import runs_code_of
from trainyard.gateways.kubernetes.api import Api
from trainyard.gateways.kubernetes.cluster_connection import requested_access
from trainyard.jobs.existing_job import is_deployed, is_of_others
from trainyard.jobs.follow.job_retries import follow_and_announce
from trainyard.jobs.job_environment import job_findings
from trainyard.jobs.job_planning import decides_the_end, plan_job, warnings_of
from trainyard.jobs.job_reader import JobReader
from trainyard.jobs.job_request import load_job_config, make_job_request, provenance_of
from trainyard.jobs.job_submission import creator, find, refusals, submit
from trainyard.jobs.kinds import KINDS
from trainyard.jobs.recipes import any_program, own_command, trainyard_trainer
from trainyard.proof import PARTS
from trainyard.proof.reachable_parts import PlannedRun, unreachable_parts
from trainyard.report.cluster.verdict_text import summarize_verdict, verdict_lines
from trainyard.report.jobs.job_actions import plan_markdown, plan_outputs
from trainyard.report.jobs.kubernetes_yaml import kubernetes_yaml
from trainyard.report.plan.plan_text import unproven_lines
from trainyard.run.atomic_files import write_json_atomically
from trainyard.run.launch_environment import nccl_log_variables
from trainyard.run.suggested_commands import cluster_target
from trainyard.run.untrusted_files import read_yaml

if TYPE_CHECKING:
    from trainyard.cluster.fix import Step
    from trainyard.cluster.job_preflight import Preflight
    from trainyard.config.schema import Config
    from trainyard.gateways.kubernetes.cluster_access import Access
    from trainyard.jobs.job_kind import Manifests
    from trainyard.jobs.job_plan import JobPlan
    from trainyard.jobs.job_request import JobRequest
    from trainyard.proof.reachable_parts import UnreachablePart

_logger = logging.getLogger("trainyard.deploy_training_job")
TEXTS = (
    ("--instance-type", "TYPE", "such as p5.48xlarge; default: the type of the cluster's nodes"),
    ("--recipe", "NAME", "the program of the pods, such as megatron; default: the configuration's"),
    ("--job-name", "NAME", "default: made from model.name"),
    ("--image-uri", "URI", "default: cluster.image, else the newest image of $ECR_REPOSITORY"),
    ("--namespace", "NAME", "default: the context's, else `default`"),
    ("--queue", "NAME", "a LocalQueue of Kueue in the namespace"),
    ("--priority-class", "NAME", "PriorityClass of the pods"),
    ("--volume", "CLAIM", "the PersistentVolumeClaim for checkpoints"),
    ("--checkpoint-path", "PATH", "where the volume is mounted in a pod; default: /checkpoints"),
    ("--secret", "NAME", "a Secret whose keys become environment variables"),
    ("--hf-token-secret", "NAME[:KEY]", "a Secret with a token for the Hugging Face Hub; default key: token"),
    ("--ray-cluster", "NAME", "with raycluster: a cluster that several jobs share, or your own"),
)
NUMBERS = (
    ("--num-nodes", arguments.positive, 1, "default: 1"),
    ("--gpu-per-node", arguments.natural_number, None, "default: all GPUs of a node; 0 for none"),
    ("--nproc-per-node", arguments.processes, None, "processes per pod; default: one per GPU"),
    ("--auto-retry", arguments.natural_number, 0, "how often the job may be sent again; default: 0"),
)
REPEATED: tuple[tuple[str, Callable[[str], object], str, str], ...] = (
    ("--tolerate", arguments.text, "KEY", "a taint to tolerate; may be repeated"),
    ("--env", arguments.variable, "NAME=VALUE", "an environment variable; may be repeated"),
    ("--program-set", arguments.text, "KEY=VALUE", "a setting of the program; may be repeated"),
    (
        "--accept",
        arguments.text,
        "NAME",
        "ignore this check of the cluster or part of the proof; may be repeated",
    ),
)
SWITCHES = (
    ("--wait", "wait for the end of the job"),
    ("--monitor", "the same as --wait; trainyard watch --job JOB shows the steps"),
    ("--dry-run", "print the objects, send nothing"),
    ("--json", "print plan, objects and state as JSON"),
)


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__, reads_config=True)
    for flag, kind, default, meaning in NUMBERS:
        parser.add_argument(flag, type=kind, default=default, metavar="N", help=meaning)
    for flag, metavar, meaning in TEXTS:
        parser.add_argument(flag, default="", metavar=metavar, help=meaning)
    parser.add_argument("--kind", choices=("auto", *JOB_KINDS), help="kind of the job; default: cluster.kind")
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
    parser.add_argument("own", nargs="*", metavar="COMMAND", help="after --: a program of your own")
    args = parser.parse_args(argv)
    check_cluster_options(parser, args)
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)

    with refusal_in_summary("Nothing was sent"):
        config, args.kind = load_job_config(vars(args))
        return check_and_deploy(args, config)


def check_and_deploy(args: argparse.Namespace, config: "Config") -> int:
    """Check and plan the job; then send it, or print it with --dry-run."""
    accepted = [name for name in args.accept if name not in PARTS]  # the others name parts of the proof
    require_checks(accepted, others=PARTS)
    if args.dry_run and not (args.kubeconfig or args.context or args.cluster):
        return show(args, make_plan(args, config, job_request(args, config)), api=None)

    access = requested_access(vars(args), read=read_yaml)
    api = Api(access, call_seconds=args.call_seconds)
    found = check_cluster(args, config, access, api, accepted=accepted)
    request = job_request(args, config)
    seen = replace(
        request,
        kind=found.kind,
        namespace=found.query.demand.namespace,
        image=found.image,
        room=found.room,
        zone=found.zone_for(request.name),
        shared_claim=found.shared_claim,
        creator=creator(api),
    )
    plan = make_plan(args, config, seen)
    data, store = plan.to_json(), config.artifacts.store or ""
    report_step(plan_outputs(data, store=store), plan_markdown(data, store=store) if args.dry_run else "")
    if args.output:
        write_json_atomically(args.output, plan_outputs(data, store=store))
    # If the job exists already, the cluster may be full with its own pods.
    if found.exit_code and (args.dry_run or not is_deployed(partial(find, api), plan)):
        return found.exit_code
    return show(args, plan, api=api) if args.dry_run else deploy(args, plan, api)


def job_request(args: argparse.Namespace, config: "Config") -> "JobRequest":
    ours = runs_code_of(REPOSITORY_ROOT, Path(trainyard.__file__).parent)
    origin = provenance_of(
        git_facts(REPOSITORY_ROOT) if ours else {}, REPOSITORY_ROOT / "requirements-training.txt"
    )
    return make_job_request(vars(args), config, image=image_of(args, config), origin=origin)


def image_of(args: argparse.Namespace, config: "Config") -> str:
    return image_or_newest(args.image_uri or config.cluster.image or "", os.environ, region=args.region)


def check_cluster(
    args: argparse.Namespace, config: "Config", access: "Access", api: Api, *, accepted: Sequence[str]
) -> "Preflight":
    def apply(step: "Step") -> None:
        output.announce(step.check, step.what)
        apply_all(api, step.objects)

    given = {**vars(args), "image_uri": image_of(args, config)}
    demand = demand_of(given, config.cluster, KINDS.values(), namespace=access.namespace)
    query = ClusterQuery(api, demand, server=access.server, context=access.context, now=time.time())
    change = None if args.dry_run else apply
    found = preflight(query, config.cluster, accepted, find_digest=find_digest, apply=change)
    if found.exit_code:
        print("\n".join(verdict_lines(found.record, width=terminal.width())), file=sys.stderr)
    status = "failed" if found.exit_code else "degraded" if found.verdict.exit_code else "ok"
    note = f" Accepted: {', '.join(accepted)}." if status == "degraded" and accepted else ""
    output.announce("preflight", summarize_verdict(found.record) + note, status)
    return found


def make_plan(args: argparse.Namespace, config: "Config", request: "JobRequest") -> "JobPlan":
    plan = plan_job(config, request)
    check_provable(args, config, plan)
    for warning in warnings_of(plan):
        _logger.warning("%s", warning)
    for found in job_findings(plan):
        value = f"={found.value}" if found.value else ""
        level = logging.INFO if found.severity == "info" else logging.WARNING
        _logger.log(level, "%s%s: %s; %s", found.subject, value, found.reason, found.remedy)
    return plan


def check_provable(args: argparse.Namespace, config: "Config", plan: "JobPlan") -> None:
    """Warn of parts of the proof that cannot hold. Raises ConfigError for those that would fail the job."""
    store = config.artifacts.store or ""
    parts = unproven_parts(config, plan)
    refused = [
        part
        for part in parts
        if decides_the_end(part.name, plan, store=store) and part.name not in args.accept
    ]
    for line in unproven_lines([part.to_json() for part in parts if part not in refused]):
        _logger.warning("%s", line)
    if refused:
        lines = unproven_lines([part.to_json() for part in refused])
        flags = " ".join(f"--accept {part.name}" for part in refused)
        end = f"The job would train to its end and then fail. To train without this proof, add {flags}."
        raise ConfigError("\n".join([*lines, f"{end} Nothing was sent."]))


def unproven_parts(config: "Config", plan: "JobPlan") -> "tuple[UnreachablePart, ...]":
    name = plan.program.name
    return unreachable_parts(
        PlannedRun(
            recipe={trainyard_trainer.NAME: config.recipe, any_program.NAME: COMMAND}.get(name, name),
            nodes=plan.nodes,
            processes=plan.processes_per_node,
            network=trainyard_trainer.settled_config(config, efa=plan.resources.efa > 0).compute.network,
            store=config.artifacts.store or "",
            is_recorded=name != own_command.NAME,
            keeps_network_log=keeps_network_log(plan),
        )
    )


def keeps_network_log(plan: "JobPlan") -> bool:
    """Return whether every process of the job writes a log of NCCL that shows its channels."""
    is_kept = not plan.program.once or bool(plan.program.nccl_log)
    return plan.resources.gpus > 0 and is_kept and bool(nccl_log_variables("log", plan.environment))


def show(args: argparse.Namespace, plan: "JobPlan", *, api: Api | None) -> int:
    """Print the objects as YAML or, with the plan, as JSON; report what the API server would refuse."""
    kind = KINDS[plan.kind]
    manifests = job_objects(plan, api)
    if args.json:
        output.print_json({"plan": plan.to_json(), "objects": list(manifests.all)})
    else:
        print(kubernetes_yaml(manifests.all), end="")
    checked = manifests.before_job if kind.needs_runtime else manifests.all
    problems = refusals(api, checked) if api else []
    for problem in problems:
        _logger.error("%s", problem)
    return ExitCode.NO if problems else ExitCode.DONE


def job_objects(plan: "JobPlan", api: Api | None) -> "Manifests":
    """Return the objects of the job, without a RayCluster of others, which is used unchanged."""
    manifests = KINDS[plan.kind].render(plan)
    shared = tuple(body for body in manifests.shared if api is None or not is_of_others(find(api, body)))
    return replace(manifests, shared=shared)


def deploy(args: argparse.Namespace, plan: "JobPlan", api: Api) -> int:
    """Send the job unless it exists already, and wait for its end if requested."""
    target = replace(cluster_target(vars(args)), kind="")  # a RayJob is followed, not its RayCluster
    manifests, kind = job_objects(plan, api), KINDS[plan.kind].followed
    if there := is_deployed(partial(find, api), plan):
        output.announce("job", f"{plan.name} exists already, with the same plan")
    else:
        submit(api, manifests.job, parts=manifests.parts, shared=manifests.shared)
        output.announce("job", f"{manifests.job['kind']} {plan.name} sent to {plan.namespace}", "ok")
    data: dict[str, Any] = {"job": plan.name, "namespace": plan.namespace, "kind": plan.kind}
    code: int = ExitCode.DONE
    waits, is_running = args.wait or args.monitor, True
    if waits or (there and JobReader(api).state(plan.namespace, plan.name, kind).ended):
        retries = waits and args.auto_retry > 0
        job = {"namespace": plan.namespace, "name": plan.name, "kind": kind, "seconds": args.timeout}
        state = follow_and_announce(api, **job, retries=retries, announce=output.announce, target=target)
        code, data, is_running = state.exit_code, data | state.record(), not state.ended
        late = "; not ended within --timeout, still running" if is_running else ""
        output.announce("job", f"{state.state.value}: {state.reason}{late}", "failed" if code else "ok")
        if state.failure is not None and state.failure.fix:
            output.announce("fix", state.failure.fix, copied=True)
    if is_running:
        what = "retry" if args.auto_retry else "status"
        words = ("job", what, plan.name)
        output.announce("follow", target.command(*words, namespace=plan.namespace), copied=True)
    if args.json:
        output.print_json({**data, "plan": plan.to_json()})
    return code
