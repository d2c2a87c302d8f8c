"""Check a cluster before a job is sent: is it ready for the plan, what is free, which nodes are healthy.

`check` answers yes or no, with evidence and a fix for each finding. `capacity` shows what is free, whether
the plan fits, who uses the rest, and when Kueue would admit the job. `nodes` lists the nodes that the plan
can use. `list` lists the EKS and HyperPod clusters of the account. `fix` plans the fixes; with --apply it
carries out those that only add something missing, and prints the others as commands. Nothing else changes a
cluster: jobs and pods are sent as dry runs. The aws CLI is not needed. See docs/clusters.md.

Reads:      the kubeconfig, or AWS for --cluster; the API of the cluster; ECR for --image-uri; the section
            cluster of --config
Writes:     with fix --apply the missing objects; in GitHub Actions the verdict in the job summary
Exit codes: 0 ready; 1 not ready, or not all is fixed; 2 wrong usage or kubeconfig; 4 the cluster or AWS
            cannot be reached or refuses the credentials; 5 the objects of fix are not served in time
Example:    trainyard cluster check --instance-type p5.48xlarge --num-nodes 4 --namespace team-a
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainyard.cluster.capacity import measure
from trainyard.cluster.cluster_query import ClusterQuery
from trainyard.cluster.fix import plan_fix, steps_record
from trainyard.cluster.hyperpod import hyperpod_record, measured_use
from trainyard.cluster.server_side_apply import apply_all
from trainyard.cluster.verdict import usage_record, verdict_record
from trainyard.command import output
from trainyard.command.cluster_options import (
    add_cluster_options,
    add_plan_options,
    check_cluster_options,
    job_values,
)
from trainyard.command.parser import CommandParser, add_flag, add_option, script_parser
from trainyard.config.cluster import ClusterConfig
from trainyard.config.load import load_config
from trainyard.errors import ExitCode
from trainyard.gateways.github import Level, annotate, append_summary, set_output
from trainyard.gateways.images.ecr import find_digest
from trainyard.gateways.kubernetes.cluster_connection import open_api
from trainyard.gateways.kubernetes.eks import HyperPod, list_clusters
from trainyard.gateways.prometheus import Prometheus
from trainyard.jobs.job_spec import JobSpec
from trainyard.jobs.kinds import kinds_of_cluster
from trainyard.report.cluster.capacity_text import capacity_lines, node_lines
from trainyard.report.cluster.verdict_text import (
    cluster_lines,
    fix_lines,
    verdict_lines,
    verdict_markdown,
    verdict_refusal,
)
from trainyard.run.untrusted_files import read_yaml

if TYPE_CHECKING:
    from trainyard.cluster.hyperpod import Figures

Json = dict[str, Any]
COMMANDS = ("list", "check", "capacity", "nodes", "fix")


def make_parser() -> CommandParser:
    parser = script_parser(
        __doc__, reads_config=True, needs_config=False, dry_run="with fix: the default", json="what was found"
    )
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="one of: " + ", ".join(COMMANDS))
    add_cluster_options(parser)
    add_plan_options(parser)
    prometheus = "with nodes: Prometheus workspace that has the GPUs' utilisation"
    add_option(parser, "--prometheus", "URL", prometheus)
    add_flag(parser, "--apply", "with fix: carry out the safe fixes")
    parser.check = check_options
    return parser


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    return make_parser().parse_args(argv)


def check_options(parser: CommandParser, args: argparse.Namespace) -> None:
    check_cluster_options(parser, args)
    if args.apply and (args.command != "fix" or args.dry_run):
        parser.error("--apply is for fix, without --dry-run")
    if args.set and not args.config:
        parser.error("--set is for a configuration (--config)")
    if args.prometheus and args.command != "nodes":
        parser.error("--prometheus is for nodes")


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    lines: dict[str, Callable[..., list[str]]] = {
        "list": cluster_lines,
        "check": verdict_lines,
        "capacity": capacity_lines,
        "nodes": node_lines,
        "fix": fix_lines,
    }
    data, code = answer(args)
    output.print_result(data, lambda data, width: lines[args.command](data, width=width), as_json=args.json)
    return code


def answer(args: argparse.Namespace) -> tuple[Json, int]:
    """Return what the command that the options name finds, and its exit code."""
    if args.command == "list":
        return find_clusters(args.region)
    settings = load_config(args.config, args.set).config.cluster if args.config else ClusterConfig()
    query = open_query(JobSpec(**job_values(args)), settings)
    if args.command == "check":
        return check_cluster(query)
    if args.command == "fix":
        return fix_cluster(query, settings, apply=args.apply)
    found, code = measure_usage(query, prometheus=args.prometheus)
    return found, ExitCode.DONE if args.command == "nodes" else code


def open_query(job: JobSpec, settings: ClusterConfig) -> ClusterQuery:
    """Return a query of the cluster that the job names, for the job and the configuration."""
    api = open_api(job.target, read=read_yaml)
    job = job.with_settings(settings, namespace=api.access.namespace)
    return ClusterQuery(api, job, kinds_of_cluster(job.kind))


def find_clusters(region: str) -> tuple[Json, int]:
    """Return the record of the EKS and HyperPod clusters of the account, and the exit code."""
    eks = [cluster.record() for cluster in list_clusters(region)]
    pods = HyperPod(region)
    described = [(found, pods.nodes(found["ClusterName"])) for found in pods.clusters()]
    data = [*eks, *(hyperpod_record(found, nodes, pods.region) for found, nodes in described)]
    return {"clusters": data}, ExitCode.DONE


def check_cluster(query: ClusterQuery) -> tuple[Json, int]:
    """Return the record of the verdict and the exit code; the verdict is also in GitHub's job summary."""
    verdict = query.judge(find_digest)
    data = {**verdict_record(verdict), **query.record(verdict.facts.snapshot)}
    append_summary(verdict_markdown(data))
    if verdict.exit_code:
        set_output("reason", verdict_refusal(data))
        annotate(Level.ERROR, verdict_refusal(data), title="The cluster is not ready")
    return data, verdict.exit_code


def measure_usage(query: ClusterQuery, *, prometheus: str | None = None) -> tuple[Json, int]:
    """Return the record of nodes and free capacity, and the exit code: whether the job fits.

    `prometheus` is the URL of a workspace with the utilisation of the GPUs.
    """
    snapshot = query.usage()
    capacity = measure(snapshot, query.job)
    use: Mapping[str, Figures] = {}
    if prometheus:
        workspace = Prometheus(prometheus, region=query.job.target.region or snapshot.region)
        use = measured_use([room.fitness.node.name for room in capacity.rooms], workspace.query)
    data = {**query.record(snapshot), **usage_record(capacity, query.job, snapshot, use=use)}
    return data, capacity.exit_code


def fix_cluster(query: ClusterQuery, settings: ClusterConfig, *, apply: bool) -> tuple[Json, int]:
    """Return the record of the fixes and the exit code; `apply` carries the safe ones out."""
    verdict = query.judge(find_digest)
    steps = plan_fix(verdict, settings)
    if apply:
        for step in steps:
            apply_all(query.api, step.objects)
    data = {
        **query.record(verdict.facts.snapshot),
        "applied": apply,
        "steps": steps_record(steps, applied=apply),
    }
    return data, ExitCode.DONE if all(step.automatic and apply for step in steps) else ExitCode.NO
