#!/usr/bin/env python3
"""Look at a cluster before money is spent: is it ready for a plan, what is free, which nodes are fit.

    check      yes or no for the plan, with evidence and remedy for each finding
    capacity   what is free now, whether the plan fits, who holds the rest, when Kueue would admit it
    nodes      the nodes that the plan may mean: GPUs, EFA, zone, health
    list       the EKS and HyperPod clusters of the account in a region
    fix        the safe remedies as a plan, the others as commands; --apply carries the safe ones out

Nothing is created but by fix --apply: jobs and pods are only sent as dry runs. The cluster is that of the
kubeconfig ($KUBECONFIG, ~/.kube/config), or --cluster NAME --region R for an EKS cluster, whose tokens are
signed here with the AWS credentials of this process: the aws CLI is not needed.

Reads:      the kubeconfig or AWS, the API of the cluster; --config for the section cluster
Writes:     nothing but with fix --apply; in GitHub Actions the verdict into the job summary
Exit codes: 0 ready; 1 not ready, or fix left something undone; 2 wrong usage or kubeconfig; 4 the cluster,
or AWS, cannot be reached or does not take the credentials
Example:    scripts/manage_cluster.py check --instance-type p5.48xlarge --num-nodes 4 --namespace team-a
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard import command, terminal
from trainyard.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from trainyard.cluster.demand import Demand
    from trainyard.cluster.looking import Looking
    from trainyard.gateways.kubernetes.api import Api

COMMANDS = ("list", "check", "capacity", "nodes", "fix")
KINDS = ("auto", "pytorchjob", "trainjob", "raycluster", "rayjob", "hyperpod")


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = command.parser(__doc__)
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="one of: " + ", ".join(COMMANDS))
    reach = parser.add_argument_group("the cluster")
    reach.add_argument("--kubeconfig", type=Path, metavar="FILE", help="default: $KUBECONFIG, ~/.kube/config")
    reach.add_argument(
        "--context", default="", metavar="NAME", help="of the kubeconfig; default: the current one"
    )
    reach.add_argument(
        "--cluster", default="", metavar="NAME", help="an EKS cluster, instead of a kubeconfig"
    )
    reach.add_argument(
        "--region", default="", metavar="REGION", help="of AWS; default: that of the environment"
    )
    plan = parser.add_argument_group("the plan")
    plan.add_argument(
        "--config", type=Path, metavar="FILE", help="a configuration; its section cluster is read"
    )
    plan.add_argument("--num-nodes", type=command.positive, default=1, metavar="N", help="default: 1")
    plan.add_argument("--gpu-per-node", type=gpus, metavar="N", help="default: all of a node; 0 for none")
    plan.add_argument(
        "--instance-type", default="", metavar="TYPE", help="for example p5.48xlarge; default: any"
    )
    plan.add_argument("--kind", choices=KINDS, help="of the job; default: the first that is served")
    plan.add_argument("--namespace", metavar="NAME", help="default: that of the context, or default")
    plan.add_argument("--queue", metavar="NAME", help="a LocalQueue of Kueue in the namespace")
    plan.add_argument("--image-uri", metavar="URI", help="the image that is to run")
    plan.add_argument("--volume", metavar="CLAIM", help="the PersistentVolumeClaim for checkpoints")
    plan.add_argument("--checkpoint-path", metavar="PATH", help="where checkpoints are written in a pod")
    plan.add_argument("--priority-class", metavar="NAME", help="a PriorityClass")
    plan.add_argument("--secret", metavar="NAME", help="a Secret of the namespace that pods refer to")
    tolerated = "a taint that the job tolerates; may be repeated"
    plan.add_argument("--tolerate", action="append", default=[], metavar="KEY", help=tolerated)
    parser.add_argument("--json", action="store_true", help="print what was found as JSON")
    parser.add_argument("--apply", action="store_true", help="with fix: carry the safe remedies out")
    seconds = "time limit of one call of the API; default: 20"
    parser.add_argument("--call-seconds", type=command.seconds, default=20.0, metavar="S", help=seconds)
    args = parser.parse_args(argv)
    if args.cluster and (args.kubeconfig or args.context):
        parser.error("--cluster names an EKS cluster by itself; leave --kubeconfig and --context out")
    return args


def gpus(text: str) -> int:
    """A number of GPUs; 0 for none."""
    return 0 if text == "0" else command.positive(text)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    command.configure_logging(args.log_level)
    commands = {"check": check, "nodes": show_nodes, "capacity": show_capacity}
    return commands[args.command](args)


def check(args: argparse.Namespace) -> int:
    from trainyard.cluster.record import cluster_record, plan_record
    from trainyard.cluster.snapshot import Unseen
    from trainyard.cluster.verdict import State, judge, verdict_record
    from trainyard.gateways.github import Level, annotate, append_summary, set_output
    from trainyard.report.cluster.verdict_text import refusal, verdict_lines, verdict_markdown

    api, demand, look = opened(args)
    snapshot = look.snapshot(Unseen("not asked"))
    verdict = judge(snapshot, demand)
    data: dict[str, Any] = {
        **verdict_record(verdict),
        "cluster": cluster_record(snapshot, api.access.context),
        "plan": plan_record(demand),
    }
    say(data, verdict_lines(data, width=terminal.width()), as_json=args.json)
    append_summary(verdict_markdown(data))
    if verdict.state is State.READY:
        return ExitCode.DONE
    set_output("reason", refusal(data))
    annotate(Level.ERROR, refusal(data), title="The cluster is not ready")
    lost = verdict.state is State.UNKNOWN and verdict.service_failed
    return ExitCode.REFUSED if lost else ExitCode.NO


def show_nodes(args: argparse.Namespace) -> int:
    from trainyard.cluster.capacity import measure
    from trainyard.cluster.record import cluster_record, plan_record, room_record
    from trainyard.report.cluster.capacity_text import node_lines

    api, demand, look = opened(args)
    snapshot = look.usage()
    capacity = measure(snapshot, demand)
    data: dict[str, Any] = {
        "cluster": cluster_record(snapshot, api.access.context),
        "plan": plan_record(demand),
        "nodes": [room_record(room) for room in capacity.rooms],
        "unknown": capacity.unseen,
    }
    say(data, node_lines(data, width=terminal.width()), as_json=args.json)
    return ExitCode.DONE


def show_capacity(args: argparse.Namespace) -> int:
    from trainyard.cluster.admission import outlook
    from trainyard.cluster.capacity import Fit, measure
    from trainyard.cluster.fitness import assess
    from trainyard.cluster.record import capacity_record, cluster_record, plan_record
    from trainyard.report.cluster.capacity_text import capacity_lines

    api, demand, look = opened(args)
    snapshot = look.usage()
    capacity = measure(snapshot, demand)
    expected = outlook(snapshot, demand, assess(snapshot, demand))
    data: dict[str, Any] = {
        "cluster": cluster_record(snapshot, api.access.context),
        "plan": plan_record(demand),
        "capacity": capacity_record(capacity, expected, snapshot),
    }
    say(data, capacity_lines(data, width=terminal.width()), as_json=args.json)
    return ExitCode.DONE if capacity.fit is Fit.NOW else ExitCode.NO


def opened(args: argparse.Namespace) -> "tuple[Api, Demand, Looking]":
    """The API of the cluster, what it is judged for, and a look at it."""
    from trainyard.cluster.demand import Demand
    from trainyard.cluster.looking import Looking
    from trainyard.gateways.kubernetes.api import Api

    access = find_access(args)
    api = Api(access, call_seconds=args.call_seconds)
    demand = Demand(
        nodes=args.num_nodes,
        gpus_per_node=args.gpu_per_node,
        instance_type=args.instance_type.removeprefix("ml."),
        kind=args.kind or "auto",
        namespace=args.namespace or access.namespace or "default",
        queue=args.queue or "",
        image=args.image_uri or "",
        claim=args.volume or "",
        checkpoint_path=args.checkpoint_path or "",
        priority_class=args.priority_class or "",
        secret=args.secret or "",
        tolerations=tuple(args.tolerate),
    )
    return api, demand, Looking(api, demand, server=access.server, now=time.time())


def find_access(args: argparse.Namespace) -> Any:
    from trainyard.gateways.kubernetes.access import pod_access, read_access
    from trainyard.run.outside import parse_yaml, read_text

    named = args.kubeconfig or next((Path(p) for p in os.environ.get("KUBECONFIG", "").split(":") if p), None)
    path = named or Path.home() / ".kube" / "config"
    try:
        return read_access(parse_yaml(read_text(path), str(path)), path=path, context=args.context)
    except FileNotFoundError:
        if named is None and (access := pod_access()) is not None:
            return access
        raise ConfigError(
            f"{path}: no such kubeconfig; name one with --kubeconfig, or an EKS cluster with --cluster "
            f"and --region"
        ) from None


def say(data: dict[str, Any], lines: list[str], *, as_json: bool) -> None:
    if as_json:
        command.print_json(data)
    else:
        print("\n".join(lines))


if __name__ == "__main__":
    sys.exit(command.exit_code_of(main))
