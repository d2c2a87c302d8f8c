"""The room of a pod: the minimum over all healthy nodes, minus the pods that run on each of them anyway."""

from dataclasses import replace
from typing import Any

import pytest

from trainyard.cluster.demand import Demand
from trainyard.cluster.image_digest import pin_digest
from trainyard.cluster.job_preflight import room_for
from trainyard.cluster.snapshot import Condition, Image, MissingData, Node, Pod, Snapshot

DIGEST = "sha256:" + "a" * 64
MIB = 2**20 * 1000


def node(
    name: str,
    *,
    cpu: int = 190_000,
    memory: int = 2_000_000,
    efa: int = 32,
    labels: dict[str, str] | None = None,
) -> Node:
    amounts = {
        "cpu": cpu,
        "memory": memory * MIB,
        "hugepages-2Mi": 42_242 * MIB,
        "nvidia.com/gpu": 8000,
        "vpc.amazonaws.com/efa": efa * 1000,
    }
    given: dict[str, Any] = dict.fromkeys(("kubelet", "os_image"), "")
    return Node(
        name=name,
        labels={"node.kubernetes.io/instance-type": "p5.48xlarge", **(labels or {})},
        annotations={},
        taints=(),
        cordoned=False,
        capacity=amounts,
        allocatable=amounts,
        conditions=(Condition("Ready", "True"),),
        created=0.0,
        **given,
    )


def pod(where: str, **requests: int) -> Pod:
    return Pod("kube-system", "p", where, requests, "p", 0, "", (), raw_infiniband=False)


def snapshot_of(*nodes: Node, pods: tuple[Pod, ...] | MissingData = ()) -> Snapshot:
    none: Any = MissingData("not looked at")
    fields = dict.fromkeys(Snapshot.__dataclass_fields__, none)
    return Snapshot(**{**fields, "nodes": nodes, "pods": pods, "now": 0.0, "resources": {}})


def test_the_least_of_all_nodes_counts_without_what_runs_there_anyway() -> None:
    daemon, training = (
        pod("a", cpu=2000, memory=1000 * MIB),
        pod("b", **{"nvidia.com/gpu": 8000, "cpu": 99_000}),
    )
    snapshot = snapshot_of(node("a"), node("b", memory=1_900_000, efa=31), pods=(daemon, training))
    room = room_for(snapshot, Demand(nodes=2, instance_type="p5.48xlarge"))
    assert room is not None
    assert (room.gpus, room.efa, room.cpu_millis, room.memory_mib) == (8, 31, 188_000, 1_900_000)
    assert room.hugepages_mib == 42_242
    assert (room.instance_type, room.on_hyperpod) == ("p5.48xlarge", False)


def test_nodes_that_are_not_meant_or_not_fit_do_not_count() -> None:
    tainted = replace(node("b", cpu=1), cordoned=True)
    room = room_for(snapshot_of(node("a"), tainted), Demand(instance_type="p5.48xlarge"))
    assert room is not None
    assert room.cpu_millis == 190_000
    assert room_for(snapshot_of(tainted), Demand()) is None
    assert room_for(snapshot_of(node("a")), Demand(instance_type="p4d.24xlarge")) is None


def test_only_nodes_with_the_labels_of_the_configuration_count() -> None:
    group = "sagemaker.amazonaws.com/instance-group-name"
    kind = {"node.kubernetes.io/instance-type": "ml.p5.48xlarge"}
    several = [
        node("a", labels={**kind, group: "workers"}),
        node("b", labels={**kind, group: "small"}, cpu=1000),
    ]
    for names, found in (({group: "workers"}, 190_000), ({group: "small"}, 1_000), ({group: "x"}, None)):
        room = room_for(snapshot_of(*several), Demand(node_selector=names))
        assert (room and room.cpu_millis) == found


def test_nodes_of_hyperpod_are_known_by_their_label() -> None:
    labels = {
        "node.kubernetes.io/instance-type": "ml.p5.48xlarge",
        "sagemaker.amazonaws.com/compute-type": "hyperpod",
    }
    room = room_for(
        snapshot_of(node("a", labels=labels), pods=MissingData("no")), Demand(instance_type="p5.48xlarge")
    )
    assert room is not None
    assert (room.instance_type, room.on_hyperpod) == ("ml.p5.48xlarge", True)


@pytest.mark.parametrize(
    ("uri", "named"),
    [
        ("r.io/a/b:1", f"r.io/a/b@{DIGEST}"),
        ("r.io:5000/b", f"r.io:5000/b@{DIGEST}"),
        (f"r.io/b@{DIGEST}", f"r.io/b@{DIGEST}"),
    ],
)
def test_an_image_is_named_by_its_digest(uri: str, named: str) -> None:
    assert pin_digest(uri, Image(uri, "ECR", "", found=True, digest=DIGEST)) == named
    assert pin_digest(uri, MissingData("not in ECR")) == uri
