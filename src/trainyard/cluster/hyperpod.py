"""HyperPod: what SageMaker says of a cluster, whether jobs resume by themselves, and queries for its metrics.

    DescribeCluster, ListClusterNodes ──> HyperPodCluster
    nodes of a job ──> queries for Prometheus ──answers──> Use, one for each node

Auto-resume exists for PyTorchJobs only, and is documented for releases 1.7.0 to 1.8.1 of the training
operator and for namespaces that are `kubeflow` or start with `hyperpod`.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainyard.cluster.snapshot import Workload

RESUMING_OPERATORS = ("1.7.0", "1.8.0", "1.8.1")
_RUNNING = "Running"
Json = Mapping[str, Any]


@dataclass(frozen=True)
class InstanceGroup:
    name: str
    instance_type: str
    count: int
    target: int


@dataclass(frozen=True)
class PodNode:
    """One node of a HyperPod cluster."""

    instance_id: str
    group: str
    instance_type: str
    status: str
    message: str

    @property
    def healthy(self) -> bool:
        return self.status == _RUNNING


@dataclass(frozen=True)
class HyperPodCluster:
    name: str
    status: str
    recovery: str
    """Automatic or None: whether faulty nodes are replaced."""
    eks_cluster: str
    """The name of the EKS cluster that it runs on; empty with Slurm."""
    groups: tuple[InstanceGroup, ...]
    nodes: tuple[PodNode, ...]

    @property
    def unhealthy(self) -> tuple[PodNode, ...]:
        return tuple(node for node in self.nodes if not node.healthy)


def hyperpod_cluster(described: Json, nodes: Iterable[Json] = ()) -> HyperPodCluster:
    """A cluster as SageMaker describes it."""
    arn = str(((described.get("Orchestrator") or {}).get("Eks") or {}).get("ClusterArn") or "")
    return HyperPodCluster(
        name=str(described.get("ClusterName", "")),
        status=str(described.get("ClusterStatus", "")),
        recovery=str(described.get("NodeRecovery") or "None"),
        eks_cluster=arn.rpartition("/")[2],
        groups=tuple(_group(group) for group in described.get("InstanceGroups") or ()),
        nodes=tuple(_node(node) for node in nodes),
    )


def _group(raw: Json) -> InstanceGroup:
    return InstanceGroup(
        str(raw.get("InstanceGroupName", "")),
        str(raw.get("InstanceType", "")),
        count=int(raw.get("CurrentCount") or 0),
        target=int(raw.get("TargetCount") or 0),
    )


def _node(raw: Json) -> PodNode:
    status = raw.get("InstanceStatus") or {}
    return PodNode(
        str(raw.get("InstanceId", "")),
        str(raw.get("InstanceGroupName", "")),
        str(raw.get("InstanceType", "")),
        status=str(status.get("Status", "")),
        message=str(status.get("Message") or ""),
    )


@dataclass(frozen=True)
class AutoResume:
    """Whether a job would be resumed by HyperPod after a node was replaced."""

    eligible: bool
    reasons: tuple[str, ...]
    """The reason if it is not; else empty."""


def predict_auto_resume(*, kind: str, namespace: str, operators: Sequence[Workload]) -> AutoResume:
    """Whether HyperPod would resume a job of this kind in this namespace."""
    reasons = []
    if kind != "pytorchjob":
        reasons.append(f"auto-resume exists for PyTorchJobs only, and this is a {kind}")
    elif not operators:
        reasons.append("no training operator was found")
    else:
        version = operator_version(operators[0])
        if version is None:
            reasons.append(f"the image of {operators[0].name} does not show its release")
        elif version not in RESUMING_OPERATORS:
            known = ", ".join(RESUMING_OPERATORS)
            reasons.append(f"the training operator is {version}; it is documented for {known}")
    if namespace != "kubeflow" and not namespace.startswith("hyperpod"):
        reasons.append(f"the namespace {namespace} is neither kubeflow nor starts with hyperpod")
    return AutoResume(not reasons, tuple(reasons))


def operator_version(workload: Workload) -> str | None:
    """The release of an image: `1.8.1` from the tag `v1.8.1` or the version label; None if neither has it."""
    label = workload.labels.get("app.kubernetes.io/version", "")
    tags = [image.partition("@")[0].rpartition("/")[2].rpartition(":")[2] for image in workload.images]
    for text in (*tags, label):
        match = re.fullmatch(r"v?(\d+\.\d+\.\d+)([-+].*)?", text)
        if match:
            return match[1]
    return None


QUERIES: Mapping[str, str] = {
    "gpu_utilization_percent": "avg by (NODE) (DCGM_FI_DEV_GPU_UTIL{NODE=~MATCH})",
    "gpu_memory_bytes": "sum by (NODE) (DCGM_FI_DEV_FB_USED{NODE=~MATCH}) * 1048576",
    "gpu_temperature_celsius": "max by (NODE) (DCGM_FI_DEV_GPU_TEMP{NODE=~MATCH})",
    "efa_received_bytes_per_second": "sum by (NODE) (rate(node_amazonefa_rx_bytes{NODE=~MATCH}[5m]))",
    "efa_sent_bytes_per_second": "sum by (NODE) (rate(node_amazonefa_tx_bytes{NODE=~MATCH}[5m]))",
    "efa_dropped_per_second": "sum by (NODE) (rate(node_amazonefa_rx_drops{NODE=~MATCH}[5m]))",
}
"""Figure -> query, for the DCGM exporter and the EFA collector of the HyperPod observability add-on."""


@dataclass(frozen=True)
class Use:
    """The figures of one node; figures that Prometheus does not know are absent."""

    node: str
    figures: Mapping[str, float]


def queries(nodes: Iterable[str], *, label: str = "Hostname") -> Mapping[str, str]:
    """The queries for these nodes. `label` is the label of a series that holds the node's name."""
    match = "|".join(re.escape(node).replace("\\-", "-") for node in sorted(nodes))
    quoted = '"' + match.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return {name: text.replace("NODE", label).replace("MATCH", quoted) for name, text in QUERIES.items()}


def measured_use(nodes: Sequence[str], ask: Callable[[str], Iterable[Json]]) -> tuple[Use, ...]:
    """The figures of these nodes; `ask` returns the series of a query."""
    asked = queries(nodes) if nodes else {}
    return use_of({figure: ask(text) for figure, text in asked.items()})


def use_of(answers: Mapping[str, Iterable[Json]], *, label: str = "Hostname") -> tuple[Use, ...]:
    """Convert figure -> series to the figures of each node."""
    found: dict[str, dict[str, float]] = {}
    for figure, series in answers.items():
        for item in series:
            node = str((item.get("metric") or {}).get(label, ""))
            value = _number(item.get("value"))
            if node and value is not None:
                found.setdefault(node, {})[figure] = value
    return tuple(Use(node, figures) for node, figures in sorted(found.items()))


def _number(sample: Any) -> float | None:
    """The value of a sample `[time, "1.5"]`; None for NaN and for anything that is not a number."""
    try:
        value = float(sample[1])
    except (TypeError, ValueError, IndexError, KeyError):
        return None
    return value if value == value else None


def cluster_list_record(cluster: HyperPodCluster, region: str) -> dict[str, Any]:
    """A HyperPod cluster as plain data."""
    return {
        "name": cluster.name,
        "type": "hyperpod",
        "status": cluster.status,
        "region": region,
        "eks_cluster": cluster.eks_cluster,
        "node_recovery": cluster.recovery,
        "instance_groups": [
            {"name": g.name, "instance_type": g.instance_type, "count": g.count, "target": g.target}
            for g in cluster.groups
        ],
        "nodes": len(cluster.nodes),
        "unhealthy": [
            {"id": node.instance_id, "group": node.group, "status": node.status, "message": node.message}
            for node in cluster.unhealthy
        ],
    }
