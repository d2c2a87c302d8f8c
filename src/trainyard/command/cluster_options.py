"""The options with which scripts name a cluster: a kubeconfig and its context, or the name of a cluster."""

import argparse
from typing import Any

from trainyard.command import arguments
from trainyard.config import registries
from trainyard.run.suggested_commands import ClusterTarget

JOB_KINDS = tuple(registries.JOB_KINDS)
_TEXTS = (
    ("--context", "NAME", "context of the kubeconfig; default: the current one"),
    ("--cluster", "NAME", "an EKS or HyperPod cluster instead of a kubeconfig"),
    ("--region", "REGION", "AWS region; default: from the environment"),
)
_PLAN = (
    ("--instance-type", str, "TYPE", "such as p5.48xlarge; default: any that the cluster has"),
    ("--image-uri", str, "URI", "default: cluster.image; to send a job also the newest of $ECR_REPOSITORY"),
    ("--checkpoint-path", str, "PATH", "where the volume is mounted in a pod; default: /checkpoints"),
    ("--namespace", arguments.object_name_if_given, "NAME", "default: the context's, else `default`"),
    ("--queue", arguments.object_name_if_given, "NAME", "a LocalQueue of Kueue in the namespace"),
    ("--volume", arguments.object_name_if_given, "CLAIM", "the PersistentVolumeClaim for checkpoints"),
    ("--priority-class", arguments.object_name_if_given, "NAME", "PriorityClass of the pods"),
    ("--secret", arguments.object_name_if_given, "NAME", "a Secret whose keys become environment variables"),
)


def add_cluster_options(parser: argparse.ArgumentParser, *, kind: bool = False) -> None:
    """Add --kubeconfig, --context, --cluster, --region, and --kind of a job."""
    if kind:
        kinds = (*JOB_KINDS, *registries.FOREIGN_JOB_KINDS)
        parser.add_argument("--kind", choices=kinds, help="default: that of the job which Trainyard made")
    group = parser.add_argument_group("the cluster")
    default = "default: $KUBECONFIG, ~/.kube/config"
    group.add_argument("--kubeconfig", type=arguments.path, metavar="FILE", help=default)
    for flag, metavar, meaning in _TEXTS:
        group.add_argument(flag, default="", metavar=metavar, help=meaning)
    # The spelling of the documents that people follow.
    unseen = argparse.SUPPRESS
    group.add_argument("--cluster-name", dest="cluster", default=unseen, help=unseen)


def check_cluster_options(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Refuse a command line that names two clusters."""
    if args.cluster and (args.kubeconfig or args.context):
        parser.error("--cluster names a cluster by itself; leave --kubeconfig and --context out")


def add_plan_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that describe a job, for `job_values`."""
    plan = parser.add_argument_group("the job")
    plan.add_argument("--num-nodes", type=arguments.positive, default=1, metavar="N", help="default: 1")
    gpus = "default: all GPUs of a node; 0 for none"
    plan.add_argument("--gpu-per-node", type=arguments.natural_number, metavar="N", help=gpus)
    kinds = "default: cluster.kind, else the first kind that the cluster serves"
    plan.add_argument("--kind", choices=("auto", *JOB_KINDS), help=kinds)
    tainted = "a taint to tolerate; may be repeated"
    plan.add_argument("--tolerate", action="append", default=[], metavar="KEY", help=tainted)
    for flag, kind, metavar, meaning in _PLAN:
        plan.add_argument(flag, type=kind, default="", metavar=metavar, help=meaning)


def cluster_target(args: argparse.Namespace) -> ClusterTarget:
    """Return the cluster that the options name, with the namespace and the kind of the job, if given."""
    names = ("kubeconfig", "context", "cluster", "region", "namespace", "kind")
    return ClusterTarget(*(str(getattr(args, name, None) or "") for name in names))


def job_values(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options that describe a job as the fields of a `JobSpec`."""
    return {
        "nodes": args.num_nodes,
        "gpus_per_node": args.gpu_per_node,
        "instance_type": args.instance_type,
        "kind": args.kind or "",
        "namespace": args.namespace,
        "queue": args.queue,
        "image": args.image_uri,
        "claim": args.volume,
        "mount_path": args.checkpoint_path,
        "priority_class": args.priority_class,
        "secret_environment": args.secret,
        "tolerations": tuple(args.tolerate),
        "target": cluster_target(args),
    }
