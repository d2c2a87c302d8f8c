#!/usr/bin/env python3
"""Send a training job to a cluster: check the cluster, plan, apply, and wait for its end if asked to.

    preflight ──> storage and queue, if the configuration says how ──> plan ──> apply ──> watch

Everything is checked before anything is sent, and all problems are named at once. A job of the same name and
plan that is there already is taken up, so the same command goes on after a lost connection. Without a cluster
(--kubeconfig, --context or --cluster), --dry-run prints the objects and asks nobody; with one, the API server
is asked too. What follows -- is a command of your own in place of the trainer. More is in docs/jobs.md.

Reads:      --config; the kubeconfig, or AWS for --cluster; the API of the cluster; ECR for the image's
            digest, or for the newest image of $ECR_REPOSITORY where none is named
Writes:     the objects of the job into the cluster; --json prints the plan, the objects and the job's state
Exit codes: 0 sent, or with --wait succeeded; 1 the cluster is not ready, or the job failed; 2 wrong usage,
            configuration or plan; 4 the cluster or AWS refused; 5 not ended in time; 75 stopped, send it
again Example:    scripts/deploy_training_job.py --config configs/training_configuration.yaml --num-nodes 4
            --instance-type p5.48xlarge --queue research --set compute.strategy=fsdp --monitor
"""

import argparse
import logging
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.command import arguments, handler, output
from trainyard.command.parser import script_parser
from trainyard.errors import ExitCode

if TYPE_CHECKING:
    from trainyard.jobs.state.job_state import JobState

    from trainyard.cluster.looking import Looking
    from trainyard.cluster.snapshot import Snapshot
    from trainyard.config.schema import Config
    from trainyard.gateways.kubernetes.api import Api
    from trainyard.gateways.kubernetes.cluster_access import Access
    from trainyard.jobs.job_plan import JobPlan
    from trainyard.jobs.planning import JobRequest

KINDS = ("auto", "pytorchjob", "trainjob", "raycluster", "rayjob", "hyperpod")
HOUSE = Path(__file__).resolve().parent.parent
LOG = logging.getLogger(__name__)
TEXTS = (
    ("--instance-type", "TYPE", "such as p5.48xlarge; default: as the nodes of the cluster are"),
    ("--job-name", "NAME", "default: made from model.name"),
    ("--image-uri", "URI", "default: cluster.image, else the newest image of $ECR_REPOSITORY"),
    ("--namespace", "NAME", "default: that of the context, or default"),
    ("--queue", "NAME", "a LocalQueue of Kueue in the namespace"),
    ("--priority-class", "NAME", "a PriorityClass"),
    ("--volume", "CLAIM", "the PersistentVolumeClaim for checkpoints"),
    ("--checkpoint-path", "PATH", "where it is mounted in a pod; default: /checkpoints"),
    ("--secret", "NAME", "a Secret whose keys become variables"),
    ("--hf-token-secret", "NAME[:KEY]", "a Secret with a token for the Hugging Face Hub; default key: token"),
    ("--ray-cluster", "NAME", "with raycluster: one that several jobs share"),
    ("--context", "NAME", "of the kubeconfig; default: the current one"),
    ("--cluster", "NAME", "an EKS or HyperPod cluster instead of a kubeconfig"),
    ("--region", "REGION", "of AWS; default: as the environment says"),
)
WHOLE = (
    ("--num-nodes", arguments.positive, 1, "default: 1"),
    ("--gpu-per-node", arguments.whole, None, "default: all of a node; 0 for none"),
    ("--nproc-per-node", arguments.processes, None, "processes of a pod; default: one a GPU"),
    (
        "--auto-retry",
        arguments.whole,
        0,
        "how often the job may be sent again where that can heal; default: 0",
    ),
)


REPEATED = (
    ("--tolerate", "KEY", "a taint"),
    ("--env", "NAME=VALUE", "a variable"),
    ("--accept", "CHECK", "a check of the cluster whose errors do not stop the job"),
)


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__, reads_config=True)
    for flag, kind, default, meaning in WHOLE:
        parser.add_argument(flag, type=kind, default=default, metavar="N", help=meaning)
    for flag, metavar, meaning in TEXTS:
        parser.add_argument(flag, default="", metavar=metavar, help=meaning)
    parser.add_argument("--kind", choices=KINDS, help="default: cluster.kind, the first that is served")
    parser.add_argument("--kubeconfig", type=arguments.path, metavar="FILE", help="default: ~/.kube/config")
    for flag, metavar, meaning in REPEATED:
        parser.add_argument(
            flag, action="append", default=[], metavar=metavar, help=f"{meaning}; may be repeated"
        )
    parser.add_argument("--wait", action="store_true", help="wait for the end of the job")
    parser.add_argument("--monitor", action="store_true", help="the same, and tell how the job goes")
    parser.add_argument(
        "--timeout", type=arguments.duration, default="7d", metavar="DURATION", help="of --wait"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the objects, send nothing")
    parser.add_argument("--json", action="store_true", help="print plan, objects and state as JSON")
    parser.add_argument("own", nargs="*", metavar="COMMAND", help="after --: a program of your own")
    args = parser.parse_args(argv)
    if args.cluster and (args.kubeconfig or args.context):
        parser.error("--cluster names a cluster by itself; leave --kubeconfig and --context out")
    if wrong := next((entry for entry in args.env if "=" not in entry), None):
        parser.error(f"--env {wrong[:60]!r}: write NAME=VALUE")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)
    from trainyard.config.load import load_config

    config = load_config(args.config, args.set).config
    named = args.kubeconfig or args.context or args.cluster
    if args.dry_run and not named:
        return show(args, planned(config, asked(args, config)), api=None)
    from trainyard.gateways.kubernetes.api import Api

    access = reached(args)
    api = Api(access)
    look = looking(args, config, access, api)
    snapshot, refused = checked(args, config, look)
    plan = planned(config, seen(asked(args, config), look, snapshot))
    if args.dry_run:
        return refused or show(args, plan, api=api)
    return refused or deploy(args, plan, access, api)


def asked(args: argparse.Namespace, config: "Config") -> "JobRequest":
    """What the command line asks for, over what the configuration says."""
    from trainyard.gateways.git import git_facts
    from trainyard.jobs.planning import JobRequest, provenance_of

    cluster = config.cluster
    return JobRequest(
        name=args.job_name,
        namespace=args.namespace or cluster.namespace or "default",
        kind=(args.kind or cluster.kind).replace("auto", "pytorchjob"),
        image=image_of(args, config),
        nodes=args.num_nodes,
        gpus_per_node=args.gpu_per_node,
        processes_per_node=args.nproc_per_node,
        instance_type=args.instance_type,
        queue=args.queue or cluster.queue or "",
        priority_class=args.priority_class,
        secret=args.secret,
        token_secret=args.hf_token_secret,
        claim=args.volume,
        mount_path=args.checkpoint_path,
        tolerations=tuple(args.tolerate),
        environment=dict(entry.split("=", 1) for entry in args.env),
        command=tuple(args.own),
        ray_cluster=args.ray_cluster,
        auto_retry=args.auto_retry,
        provenance=provenance_of(git_facts(HOUSE), HOUSE / "requirements-training.txt"),
    )


def image_of(args: argparse.Namespace, config: "Config") -> str:
    found: str = args.image_uri or config.cluster.image or ""
    repository = os.environ.get("ECR_REPOSITORY", "")
    if found or not repository:
        return found
    from trainyard.gateways.ecr_images import newest_image

    return newest_image(repository, region=args.region)


def reached(args: argparse.Namespace) -> "Access":
    """The cluster that is named."""
    from trainyard.gateways.kubernetes.opening import access_by_kubeconfig, access_by_name
    from trainyard.run.outside import read_yaml

    named = access_by_name(args.cluster, args.region) if args.cluster else None
    return named or access_by_kubeconfig(args.kubeconfig, args.context, read=read_yaml)


def looking(args: argparse.Namespace, config: "Config", access: "Access", api: "Api") -> "Looking":
    from trainyard.cluster.demand import demand_of
    from trainyard.cluster.looking import Looking

    given = {**vars(args), "image_uri": image_of(args, config)}
    demand = demand_of(given, config.cluster, namespace=access.namespace)
    return Looking(api, demand, server=access.server, context=access.context, now=time.time())


def checked(args: argparse.Namespace, config: "Config", look: "Looking") -> "tuple[Snapshot, int]":
    """The cluster as it is, and the exit code with which it refuses the job; storage and queue are made
    first."""
    from trainyard.cluster.fix import plan_fix, supplies_of
    from trainyard.cluster.verdict import judge, verdict_record
    from trainyard.command import terminal
    from trainyard.gateways.ecr import find_digest
    from trainyard.gateways.kubernetes.applying import apply_all
    from trainyard.report.cluster.verdict_text import answer, verdict_lines
    from trainyard.run.outside import read_yaml_documents

    snapshot = look.snapshot(find_digest)
    verdict = judge(snapshot, look.demand)
    steps = plan_fix(verdict, supplies_of(config.cluster, read_yaml_documents))
    lacking = [step for step in steps if step.automatic and step.check in ("storage", "queue")]
    if lacking and not args.dry_run:
        for step in lacking:
            output.announce(step.check, step.what)
            apply_all(look.api, step.objects)
        snapshot = look.snapshot(find_digest)
        verdict = judge(snapshot, look.demand)
    data = {**verdict_record(verdict), **look.record(snapshot)}
    refused = verdict.exit_code_without(args.accept)
    if verdict.exit_code:
        print("\n".join(verdict_lines(data, width=terminal.width())), file=sys.stderr)
    status = "failed" if refused else "degraded" if verdict.exit_code else "ok"
    output.announce("preflight", answer(data), status)
    return snapshot, int(refused)


def seen(request: "JobRequest", look: "Looking", snapshot: "Snapshot") -> "JobRequest":
    """`request` with what the cluster says: kind, namespace, room on the nodes, digest of the image."""
    from dataclasses import replace

    from trainyard.cluster.images import pinned
    from trainyard.cluster.kinds import chosen_kind
    from trainyard.cluster.pod_room import room_for

    return replace(
        request,
        kind=chosen_kind(look.demand, snapshot.resources).name,
        namespace=look.demand.namespace,
        room=room_for(snapshot, look.demand),
        image=pinned(request.image, snapshot.image),
    )


def planned(config: "Config", request: "JobRequest") -> "JobPlan":
    from trainyard.jobs.planning import plan_job, warnings_of

    plan = plan_job(config, request)
    for warning in warnings_of(plan):
        LOG.warning("%s", warning)
    return plan


def show(args: argparse.Namespace, plan: "JobPlan", *, api: "Api | None") -> int:
    """The objects as YAML, or with the plan as JSON; and what the API server would refuse of them."""
    from trainyard.gateways.kubernetes.submitting import refusals
    from trainyard.jobs.kinds import KINDS as RENDERERS

    manifests = RENDERERS[plan.kind].rendered(plan)
    if args.json:
        output.print_json({"plan": plan.to_json(), "objects": list(manifests.all)})
    else:
        import yaml

        dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
        print(yaml.dump_all(manifests.all, Dumper=dumper, sort_keys=False, width=110), end="")
    problems = refusals(api, manifests.before_job or [manifests.job]) if api else []
    for problem in problems:
        LOG.error("%s", problem)
    return ExitCode.NO if problems else ExitCode.DONE


def deploy(args: argparse.Namespace, plan: "JobPlan", access: "Access", api: "Api") -> int:
    """Send the job unless it is there already, and wait for it if asked to."""
    from trainyard.gateways.kubernetes.submitting import find, submit
    from trainyard.jobs.existing_job import is_same_cluster, require_same_plan
    from trainyard.jobs.kinds import KINDS as RENDERERS

    kind = RENDERERS[plan.kind]
    manifests = kind.rendered(plan)
    before = find(api, manifests.job)
    if before is not None:
        require_same_plan(before, plan)
        output.announce("job", f"{plan.name} is there already, with the same plan")
    else:
        for cluster in manifests.clusters:
            if (there := find(api, cluster)) is not None and is_same_cluster(there, cluster):
                output.announce("cluster", f"RayCluster {cluster['metadata']['name']} is used again")
        submit(api, manifests.job, parts=manifests.parts, shared=manifests.shared)
        output.announce("job", f"{manifests.job['kind']} {plan.name} sent to {plan.namespace}", "ok")
    follow = f"scripts/manage_training_job.py status {plan.name} --namespace {plan.namespace}"
    data: dict[str, Any] = {"job": plan.name, "namespace": plan.namespace, "kind": plan.kind}
    code: int = ExitCode.DONE
    if args.wait or args.monitor:
        state = followed(args, plan, access, kind=kind.FOLLOWED)
        code = state.exit_code
        data |= state.record()
        status = "ok" if code == ExitCode.DONE else "failed"
        output.announce("job", f"{plan.name}: {state.state.value}: {state.reason}", status)
    else:
        output.announce("follow", follow, copied=True)
    if args.json:
        output.print_json({**data, "plan": plan.to_json()})
    return code


def followed(args: argparse.Namespace, plan: "JobPlan", access: "Access", *, kind: str) -> "JobState":
    """The state in which the job ended, or in which it is when the time is over."""
    from trainyard.gateways.kubernetes.following import follow_job

    return follow_job(
        access,
        namespace=plan.namespace,
        name=plan.name,
        kind=kind,
        seconds=args.timeout,
        tell=lambda state: output.announce("job", f"{state.state.value}: {state.reason}"),
    )


if __name__ == "__main__":
    sys.exit(handler.exit_code_of(main))
