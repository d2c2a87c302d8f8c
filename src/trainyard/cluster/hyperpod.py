"""HyperPod: the record of a cluster, and queries for its metrics.

DescribeCluster, ListClusterNodes ──> record
nodes of a job ──> queries for Prometheus ──answers──> figures of each node
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

_RUNNING = "Running"
Json = Mapping[str, Any]
Figures = Mapping[str, float]


def hyperpod_record(described: Json, nodes: Sequence[Json], region: str) -> dict[str, Any]:
    """A cluster and its nodes, as SageMaker describes them, as plain data."""
    arn = str(((described.get("Orchestrator") or {}).get("Eks") or {}).get("ClusterArn") or "")
    return {
        "name": str(described.get("ClusterName", "")),
        "type": "hyperpod",
        "status": str(described.get("ClusterStatus", "")),
        "region": region,
        "eks_cluster": arn.rpartition("/")[2],  # empty with Slurm
        "node_recovery": str(described.get("NodeRecovery") or "None"),
        "instance_groups": [_group_record(group) for group in described.get("InstanceGroups") or ()],
        "nodes": len(nodes),
        "unhealthy": [record for record in map(_node_record, nodes) if record["status"] != _RUNNING],
    }


def _group_record(raw: Json) -> dict[str, Any]:
    return {
        "name": str(raw.get("InstanceGroupName", "")),
        "instance_type": str(raw.get("InstanceType", "")),
        "count": int(raw.get("CurrentCount") or 0),
        "target": int(raw.get("TargetCount") or 0),
    }


def _node_record(raw: Json) -> dict[str, str]:
    status = raw.get("InstanceStatus") or {}
    return {
        "id": str(raw.get("InstanceId", "")),
        "group": str(raw.get("InstanceGroupName", "")),
        "status": str(status.get("Status", "")),
        "message": str(status.get("Message") or ""),
    }


QUERIES: Mapping[str, str] = {
    "gpu_utilization_percent": "avg by (Hostname) (DCGM_FI_DEV_GPU_UTIL{Hostname=~NODES})",
    "gpu_memory_bytes": "sum by (Hostname) (DCGM_FI_DEV_FB_USED{Hostname=~NODES}) * 1048576",
    "gpu_temperature_celsius": "max by (Hostname) (DCGM_FI_DEV_GPU_TEMP{Hostname=~NODES})",
    "efa_received_bytes_per_second": "sum by (Hostname) (rate(node_amazonefa_rx_bytes{Hostname=~NODES}[5m]))",
    "efa_sent_bytes_per_second": "sum by (Hostname) (rate(node_amazonefa_tx_bytes{Hostname=~NODES}[5m]))",
    "efa_dropped_per_second": "sum by (Hostname) (rate(node_amazonefa_rx_drops{Hostname=~NODES}[5m]))",
}
"""Figure -> query, for the DCGM exporter and the EFA collector of the HyperPod observability add-on."""


def queries(nodes: Iterable[str]) -> Mapping[str, str]:
    """The queries for these nodes."""
    match = "|".join(re.escape(node).replace("\\-", "-") for node in sorted(nodes))
    quoted = '"' + match.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return {name: text.replace("NODES", quoted) for name, text in QUERIES.items()}


def measured_use(nodes: Sequence[str], ask: Callable[[str], Iterable[Json]]) -> Mapping[str, Figures]:
    """The figures of each of these nodes; `ask` returns the series of a query.

    Figures that Prometheus does not know are absent.
    """
    found: dict[str, dict[str, float]] = {}
    for figure, query in (queries(nodes) if nodes else {}).items():
        for series in ask(query):
            node = str((series.get("metric") or {}).get("Hostname", ""))
            value = _number(series.get("value"))
            if node and value is not None:
                found.setdefault(node, {})[figure] = value
    return found


def _number(sample: Any) -> float | None:
    """The value of a sample `[time, "1.5"]`; None for NaN and for anything that is not a number."""
    try:
        value = float(sample[1])
    except (TypeError, ValueError, IndexError, KeyError):
        return None
    return value if value == value else None
