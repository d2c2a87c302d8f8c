"""The text about fixes, and about the clusters of an account."""

from typing import Any

import pytest
from tests.cases import each_case

from trainyard.report.cluster.verdict_text import cluster_lines, fix_lines

AUTOMATIC = {
    "check": "device-plugin",
    "automatic": True,
    "result": "",
    "what": "install the device plugin of NVIDIA",
    "command": "",
    "objects": ["DaemonSet kube-system/nvidia-device-plugin"],
}
MANUAL = AUTOMATIC | {
    "check": "node-health",
    "automatic": False,
    "what": "replace the node gpu-2",
    "command": "kubectl get node gpu-2",
    "objects": [],
}
GROUP = {"name": "workers", "count": 3, "target": 4, "instance_type": "ml.p5.48xlarge"}
HYPERPOD = {
    "name": "pod",
    "type": "hyperpod",
    "status": "InService",
    "eks_cluster": "eks-1",
    "node_recovery": "Automatic",
    "instance_groups": [GROUP],
    "nodes": 3,
    "unhealthy": [],
}


def test_the_safe_steps_come_first_and_those_of_people_after_them() -> None:
    assert fix_lines({"applied": False, "steps": [MANUAL, AUTOMATIC]}, width=80) == [
        "Would be applied with --apply:",
        "         check          step",
        "planned  device-plugin  install the device plugin of NVIDIA (DaemonSet",
        "                        kube-system/nvidia-device-plugin)",
        "",
        "To be done by people:",
        "  check        step",
        "  node-health  replace the node gpu-2 → kubectl get node gpu-2",
    ]


@each_case("applied", [False, True])
@each_case("result", ["", "applied", "refused"])
@each_case("steps", [(), (AUTOMATIC,), (MANUAL,), (AUTOMATIC, MANUAL)])
def test_every_step_is_shown_under_its_heading_with_its_result(
    applied: bool, result: str, steps: tuple[dict[str, Any], ...]
) -> None:
    given = [step | {"result": result if step["automatic"] else ""} for step in steps]
    text = fix_lines({"applied": applied, "steps": given}, width=200)
    if not steps:
        assert text == ["Nothing needs to be done."]
        return
    heading = "Applied:" if applied else "Would be applied with --apply:"
    assert (heading in text) == (AUTOMATIC in steps)
    assert ("To be done by people:" in text) == (MANUAL in steps)
    assert text[0] != ""
    shown = [line.split()[0] for line in text if "device-plugin " in line]
    assert shown == ([result or "planned"] if AUTOMATIC in steps else [])


@pytest.mark.parametrize(("count", "more"), [(1, ""), (3, ""), (4, " and 1 more"), (9, " and 6 more")])
def test_three_objects_of_a_step_are_named_and_the_others_counted(count: int, more: str) -> None:
    step = AUTOMATIC | {"objects": [f"o{number}" for number in range(count)]}
    (line,) = fix_lines({"applied": True, "steps": [step]}, width=200)[2:]
    named = ", ".join(f"o{number}" for number in range(min(count, 3)))
    assert line.endswith(f"install the device plugin of NVIDIA ({named}{more})")


def test_an_account_without_clusters_says_so() -> None:
    assert cluster_lines({"clusters": []}, width=80) == [
        "There are no EKS and no HyperPod clusters in this region."
    ]


def test_clusters_are_listed_with_what_they_are() -> None:
    eks = {"name": "eks-1", "type": "eks", "status": "ACTIVE", "version": "1.31"}
    assert cluster_lines({"clusters": [eks, HYPERPOD]}, width=80) == [
        "cluster  type      status",
        "eks-1    eks       ACTIVE     Kubernetes 1.31",
        "pod      hyperpod  InService  EKS eks-1; recovery Automatic; workers 3 of 4 ×",
        "                              ml.p5.48xlarge",
    ]


@each_case(("behind", "shown"), [("eks-1", "EKS eks-1"), ("", "Slurm")])
@each_case(("groups", "listed"), [([], "no groups"), ([GROUP], "workers 3 of 4 × ml.p5.48xlarge")])
@each_case(("sick", "told"), [([], ""), (["i-1"], "; 1 of 3 nodes not running")])
def test_a_hyperpod_cluster_says_what_is_behind_it_and_what_is_sick(
    behind: str, shown: str, groups: list[Any], listed: str, sick: list[str], told: str
) -> None:
    cluster = HYPERPOD | {"eks_cluster": behind, "instance_groups": groups, "unhealthy": sick}
    line = cluster_lines({"clusters": [cluster]}, width=200)[1]
    assert line == f"pod      hyperpod  InService  {shown}; recovery Automatic; {listed}{told}"
