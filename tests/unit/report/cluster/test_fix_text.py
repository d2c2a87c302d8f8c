"""The text about fixes, and about the clusters of an account."""

from typing import Any

from trainyard.report.cluster.verdict_text import cluster_lines, fix_lines

AUTOMATIC: dict[str, Any] = {"check": "device-plugin", "automatic": True, "result": "", "command": ""}
AUTOMATIC |= {"what": "install the device plugin of NVIDIA"}
AUTOMATIC |= {"objects": ["DaemonSet kube-system/nvidia-device-plugin"]}
MANUAL = AUTOMATIC | {"check": "node-health", "automatic": False, "what": "replace the node gpu-2"}
MANUAL |= {"command": "kubectl get node gpu-2", "objects": []}
GROUP = {"name": "workers", "count": 3, "target": 4, "instance_type": "ml.p5.48xlarge"}
HYPERPOD = {"name": "pod", "type": "hyperpod", "status": "InService", "eks_cluster": "eks-1", "nodes": 3}
HYPERPOD |= {"node_recovery": "Automatic", "instance_groups": [GROUP], "unhealthy": []}


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
    done = fix_lines({"applied": True, "steps": [AUTOMATIC | {"result": "refused"}]}, width=200)
    assert done[0] == "Applied:" and done[2].startswith("refused  device-plugin")
    assert fix_lines({"applied": True, "steps": []}, width=80) == ["Nothing needs to be done."]


def test_three_objects_of_a_step_are_named_and_the_others_counted() -> None:
    for count, named in ((1, "o0"), (3, "o0, o1, o2"), (4, "o0, o1, o2 and 1 more")):
        step = AUTOMATIC | {"objects": [f"o{number}" for number in range(count)]}
        (line,) = fix_lines({"applied": True, "steps": [step]}, width=200)[2:]
        assert line.endswith(f"install the device plugin of NVIDIA ({named})")


def test_clusters_are_listed_with_what_they_are() -> None:
    eks = {"name": "eks-1", "type": "eks", "status": "ACTIVE", "version": "1.31"}
    assert cluster_lines({"clusters": [eks, HYPERPOD]}, width=80) == [
        "cluster  type      status",
        "eks-1    eks       ACTIVE     Kubernetes 1.31",
        "pod      hyperpod  InService  EKS eks-1; recovery Automatic; workers 3 of 4 ×",
        "                              ml.p5.48xlarge",
    ]
    sick = HYPERPOD | {"eks_cluster": "", "instance_groups": [], "unhealthy": ["i-1"]}
    assert cluster_lines({"clusters": [sick]}, width=200)[1] == (
        "pod      hyperpod  InService  Slurm; recovery Automatic; no groups; 1 of 3 nodes not running"
    )
    none = "There are no EKS and no HyperPod clusters in this region."
    assert cluster_lines({"clusters": []}, width=80) == [none]
