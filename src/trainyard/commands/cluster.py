"""Check a cluster before a job is sent: is it ready for the plan, what is free, which nodes are healthy.

`check` answers yes or no, with evidence and a remedy for each finding. `capacity` shows what is free, whether
the plan fits, who uses the rest, and when Kueue would admit the job. `nodes` lists the nodes that the plan
can use. `list` lists the EKS and HyperPod clusters of the account. `fix` plans the remedies; with --apply it
carries out those that only add something missing, and prints the others as commands. Nothing else changes a
cluster: jobs and pods are sent as dry runs. The aws CLI is not needed. See docs/clusters.md.

Reads:      the kubeconfig, or AWS for --cluster; the API of the cluster; ECR for --image-uri; --config
Writes:     with fix --apply the missing objects; in GitHub Actions the verdict in the job summary
Exit codes: 0 ready; 1 not ready, or not all is fixed; 2 wrong usage or kubeconfig; 4 the cluster or AWS
            cannot be reached or refuses the credentials; 5 the objects of fix are not served in time
Example:    trainyard cluster check --instance-type p5.48xlarge --num-nodes 4 --namespace team-a
"""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainyard.cluster.capacity import measure
from trainyard.cluster.cluster_query import ClusterQuery
from trainyard.cluster.demand import demand_of
from trainyard.cluster.fix import plan_fix, steps_record
from trainyard.cluster.hyperpod import hyperpod_record, measured_use
from trainyard.cluster.record import usage_record
from trainyard.cluster.server_side_apply import apply_all
from trainyard.cluster.verdict import judge_cluster, verdict_record
from trainyard.command import arguments, output
from trainyard.command.cluster_options import JOB_KINDS, add_cluster_options, check_cluster_options
from trainyard.command.parser import script_parser
from trainyard.config.cluster import ClusterConfig
from trainyard.config.load import load_config
from trainyard.errors import ExitCode
from trainyard.gateways.github import Level, annotate, append_summary, set_output
from trainyard.gateways.images.ecr import find_digest
from trainyard.gateways.kubernetes.api import Api
from trainyard.gateways.kubernetes.cluster_connection import requested_access
from trainyard.gateways.kubernetes.eks import list_clusters
from trainyard.gateways.kubernetes.sagemaker import HyperPod
from trainyard.gateways.prometheus import Prometheus
from trainyard.jobs.kinds import KINDS
from trainyard.report.cluster.capacity_text import capacity_lines, node_lines
from trainyard.report.cluster.fix_text import cluster_lines, fix_lines
from trainyard.report.cluster.verdict_text import verdict_lines, verdict_markdown, verdict_refusal
from trainyard.run.untrusted_files import read_yaml

if TYPE_CHECKING:
    from trainyard.cluster.hyperpod import Figures

COMMANDS = ("list", "check", "capacity", "nodes", "fix")
TEXTS = (
    ("--instance-type", "TYPE", "such as p5.48xlarge; default: any"),
    ("--image-uri", "URI", "the image of the job"),
    ("--checkpoint-path", "PATH", "where checkpoints are written in a pod"),
)
OBJECTS = (
    ("--namespace", "NAME", "default: the context's, else `default`"),
    ("--queue", "NAME", "a LocalQueue of Kueue in the namespace"),
    ("--volume", "CLAIM", "the PersistentVolumeClaim for checkpoints"),
    ("--priority-class", "NAME", "PriorityClass of the pods"),
    ("--secret", "NAME", "a Secret whose keys become environment variables"),
)


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="one of: " + ", ".join(COMMANDS))
    add_cluster_options(parser)
    plan = parser.add_argument_group("the plan")
    plan.add_argument(
        "--config", type=arguments.path, metavar="FILE", help="a configuration; its section cluster is read"
    )
    plan.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change one value; may be repeated"
    )
    plan.add_argument("--num-nodes", type=arguments.positive, default=1, metavar="N", help="default: 1")
    gpus = "default: all GPUs of a node; 0 for none"
    plan.add_argument("--gpu-per-node", type=arguments.natural_number, metavar="N", help=gpus)
    kinds = "kind of the job; default: the first kind that the cluster serves"
    plan.add_argument("--kind", choices=("auto", *JOB_KINDS), help=kinds)
    plan.add_argument(
        "--tolerate", action="append", default=[], metavar="KEY", help="a taint to tolerate; may be repeated"
    )
    for flag, metavar, meaning in TEXTS:
        plan.add_argument(flag, default="", metavar=metavar, help=meaning)
    for flag, metavar, meaning in OBJECTS:
        plan.add_argument(
            flag, type=arguments.object_name_if_given, default="", metavar=metavar, help=meaning
        )
    parser.add_argument(
        "--prometheus", metavar="URL", help="with nodes: Prometheus workspace that has the GPUs' utilisation"
    )
    parser.add_argument("--json", action="store_true", help="print what was found as JSON")
    parser.add_argument("--apply", action="store_true", help="with fix: carry out the safe remedies")
    parser.add_argument("--dry-run", action="store_true", help="with fix: only print the plan, the default")
    args = parser.parse_args(argv)
    check_cluster_options(parser, args)
    if args.apply and (args.command != "fix" or args.dry_run):
        parser.error("--apply is for fix, without --dry-run")
    if args.set and not args.config:
        parser.error("--set is for a configuration (--config)")
    if args.prometheus and args.command != "nodes":
        parser.error("--prometheus is for nodes")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)

    if args.command == "list":
        return show_clusters(args)
    settings = load_config(args.config, args.set).config.cluster if args.config else ClusterConfig()
    query = make_query(args, settings)
    if args.command == "fix":
        return fix(args, settings, query)
    return check(args, query) if args.command == "check" else show_usage(args, query)


def show_clusters(args: argparse.Namespace) -> int:
    eks = [cluster.record() for cluster in list_clusters(args.region)]
    pods = HyperPod(args.region)
    described = [(found, pods.nodes(found["ClusterName"])) for found in pods.clusters()]
    data = [*eks, *(hyperpod_record(found, nodes, pods.region) for found, nodes in described)]
    return print_data(args, {"clusters": data}, cluster_lines)


def check(args: argparse.Namespace, query: ClusterQuery) -> int:
    snapshot = query.snapshot(find_digest)
    verdict = judge_cluster(snapshot, query.demand)
    data = {**verdict_record(verdict), **query.record(snapshot)}
    print_data(args, data, verdict_lines)
    append_summary(verdict_markdown(data))
    if verdict.exit_code:
        set_output("reason", verdict_refusal(data))
        annotate(Level.ERROR, verdict_refusal(data), title="The cluster is not ready")
    return verdict.exit_code


def show_usage(args: argparse.Namespace, query: ClusterQuery) -> int:
    """Show free capacity, for the whole plan (`capacity`) or per node (`nodes`)."""
    snapshot = query.usage()
    capacity = measure(snapshot, query.demand)
    use: Mapping[str, Figures] = {}
    if args.prometheus:
        workspace = Prometheus(args.prometheus, region=args.region or snapshot.region)
        use = measured_use(capacity.node_names, workspace.query)
    data = {**query.record(snapshot), **usage_record(capacity, query.demand, snapshot, use=use)}
    if args.command == "nodes":
        return print_data(args, data, node_lines)
    print_data(args, data, capacity_lines)
    return capacity.exit_code


def fix(args: argparse.Namespace, settings: ClusterConfig, query: ClusterQuery) -> int:
    snapshot = query.snapshot(find_digest)
    steps = plan_fix(judge_cluster(snapshot, query.demand), settings)
    if args.apply:
        for step in steps:
            apply_all(query.api, step.objects)
    data = {**query.record(snapshot), "applied": args.apply, "steps": steps_record(steps, applied=args.apply)}
    print_data(args, data, fix_lines)
    return ExitCode.DONE if all(step.automatic and args.apply for step in steps) else ExitCode.NO


def make_query(args: argparse.Namespace, settings: ClusterConfig) -> ClusterQuery:
    access = requested_access(vars(args), read=read_yaml)
    api = Api(access, call_seconds=args.call_seconds)
    demand = demand_of(vars(args), settings, KINDS.values(), namespace=access.namespace)
    return ClusterQuery(api, demand, server=access.server, context=access.context, now=time.time())


def print_data(args: argparse.Namespace, data: dict[str, Any], lines: Callable[..., list[str]]) -> int:
    output.print_result(data, lambda data, width: lines(data, width=width), as_json=args.json)
    return ExitCode.DONE
