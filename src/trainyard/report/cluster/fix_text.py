"""Show the planned remedies and their results on a terminal."""

from collections.abc import Mapping
from typing import Any

from trainyard.report.cluster.table import wrap_table


def fix_lines(data: Mapping[str, Any], *, width: int) -> list[str]:
    """The safe steps first, then those that a person has to do."""
    steps = data["steps"]
    if not steps:
        return ["Nothing needs to be done."]
    automatic = [step for step in steps if step["automatic"]]
    manual = [step for step in steps if not step["automatic"]]
    lines: list[str] = []
    if automatic:
        lines.append("Applied:" if data["applied"] else "Would be applied with --apply:")
        rows = [(step["result"] or "planned", step["check"], _with_objects(step)) for step in automatic]
        lines += wrap_table(("", "check", "step"), rows, width=width)
    if manual:
        lines += ["", "To be done by people:"] if lines else ["To be done by people:"]
        rows = [("", step["check"], f"{step['what']} → {step['command']}") for step in manual]
        lines += wrap_table(("", "check", "step"), rows, width=width)
    return lines


def cluster_lines(data: Mapping[str, Any], *, width: int) -> list[str]:
    """The clusters of an account and region."""
    clusters = data["clusters"]
    if not clusters:
        return ["There are no EKS and no HyperPod clusters in this region."]
    rows = [(c["name"], c["type"], c["status"], _about(c)) for c in clusters]
    return wrap_table(("cluster", "type", "status", ""), rows, width=width)


def _with_objects(step: Mapping[str, Any]) -> str:
    objects = step["objects"]
    shown = ", ".join(objects[:3]) + (f" and {len(objects) - 3} more" if len(objects) > 3 else "")
    return f"{step['what']} ({shown})"


def _about(cluster: Mapping[str, Any]) -> str:
    if cluster["type"] == "eks":
        return f"Kubernetes {cluster['version']}"
    groups = ", ".join(
        f"{g['name']} {g['count']} of {g['target']} × {g['instance_type']}"
        for g in cluster["instance_groups"]
    )
    unhealthy = len(cluster["unhealthy"])
    sick = f"; {unhealthy} of {cluster['nodes']} nodes not running" if unhealthy else ""
    behind = f"EKS {cluster['eks_cluster']}" if cluster["eks_cluster"] else "Slurm"
    return f"{behind}; recovery {cluster['node_recovery']}; {groups or 'no groups'}{sick}"
