"""The room of a pod: the minimum over all healthy nodes, minus the pods that run on each of them anyway."""

import itertools
from dataclasses import replace
from typing import Any

import pytest

from trainyard.cluster.capacity import choose_zone
from trainyard.cluster.checks.image import pin_digest
from trainyard.cluster.job_preflight import room_for
from trainyard.cluster.snapshot import Condition, Image, MissingData, Node, Pod, Snapshot, Volume
from trainyard.jobs.job_spec import JobSpec

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
    return Node(
        name=name,
        labels={"node.kubernetes.io/instance-type": "p5.48xlarge", **(labels or {})},
        annotations={},
        taints=(),
        cordoned=False,
        capacity=amounts,
        allocatable=amounts,
        conditions=(Condition("Ready", "True"),),
        os_image="",
    )


def pod(where: str, **requests: int) -> Pod:
    return Pod("kube-system", "p", where, requests, "p", 0, "", ())


def snapshot_of(*nodes: Node, pods: tuple[Pod, ...] | MissingData = ()) -> Snapshot:
    none: Any = MissingData("not looked at")
    fields = dict.fromkeys(Snapshot.__dataclass_fields__, none)
    return Snapshot(**{**fields, "nodes": nodes, "pods": pods, "resources": {}})


def test_the_least_of_all_nodes_counts_without_what_runs_there_anyway() -> None:
    daemon, training = (
        pod("a", cpu=2000, memory=1000 * MIB),
        pod("b", **{"nvidia.com/gpu": 8000, "cpu": 99_000}),
    )
    snapshot = snapshot_of(node("a"), node("b", memory=1_900_000, efa=31), pods=(daemon, training))
    room = room_for(snapshot, JobSpec(nodes=2, instance_type="p5.48xlarge"))
    assert room is not None
    assert (room.gpus, room.efa, room.cpu_millis, room.memory_mib) == (8, 31, 188_000, 1_900_000)
    assert room.hugepages_mib == 42_242
    assert (room.instance_type, room.on_hyperpod) == ("p5.48xlarge", False)


def test_nodes_that_are_not_meant_or_not_fit_do_not_count() -> None:
    tainted = replace(node("b", cpu=1), cordoned=True)
    room = room_for(snapshot_of(node("a"), tainted), JobSpec(instance_type="p5.48xlarge"))
    assert room is not None
    assert room.cpu_millis == 190_000
    assert room_for(snapshot_of(tainted), JobSpec()) is None
    assert room_for(snapshot_of(node("a")), JobSpec(instance_type="p4d.24xlarge")) is None


def test_only_nodes_with_the_labels_of_the_configuration_count() -> None:
    group = "sagemaker.amazonaws.com/instance-group-name"
    kind = {"node.kubernetes.io/instance-type": "ml.p5.48xlarge"}
    several = [
        node("a", labels={**kind, group: "workers"}),
        node("b", labels={**kind, group: "small"}, cpu=1000),
    ]
    for names, found in (({group: "workers"}, 190_000), ({group: "small"}, 1_000), ({group: "x"}, None)):
        room = room_for(snapshot_of(*several), JobSpec(node_selector=names))
        assert (room and room.cpu_millis) == found


def test_nodes_of_hyperpod_are_known_by_their_label() -> None:
    labels = {
        "node.kubernetes.io/instance-type": "ml.p5.48xlarge",
        "sagemaker.amazonaws.com/compute-type": "hyperpod",
    }
    room = room_for(
        snapshot_of(node("a", labels=labels), pods=MissingData("no")), JobSpec(instance_type="p5.48xlarge")
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


@pytest.mark.slow
def test_the_zone_is_one_that_fits_all_pods_by_rule() -> None:
    """Each number of free and used nodes in each zone, each size, claim and broken node; a node in none."""
    wrongs = []
    amounts = (0, 1, 2)
    for wanted, free_a, used_a, free_b, used_b, bare in itertools.product((2, 3), *[amounts] * 4, (0, 1)):
        counts = (("a", free_a, used_a), ("b", free_b, used_b), ("", bare, 0))
        nodes, pods = [], []
        for zone, free, used in counts:
            for number in range(free + used):
                labels = {"topology.kubernetes.io/zone": zone} if zone else {}
                nodes.append(node(f"{zone}{number}", labels=labels))
                if number >= free:
                    pods.append(pod(f"{zone}{number}", **{"nvidia.com/gpu": 8000}))
        for reached, avoided in itertools.product((("a", "b"), ("b",)), ((), ("b0",))):
            volume = Volume("fsx", "Bound", ("ReadWriteMany",), "fsx", 1, zones=reached)
            snapshot = replace(snapshot_of(*nodes, pods=tuple(pods)), volume=volume)
            found = choose_zone(snapshot, JobSpec("llama", nodes=wanted), avoided=avoided)
            free_b_now = free_b - (avoided == ("b0",) and free_b > 0)
            all_b = free_b + used_b - (avoided == ("b0",) and free_b + used_b > 0)
            now = {"a": free_a if "a" in reached else 0, "b": free_b_now}
            empty = {"a": free_a + used_a if "a" in reached else 0, "b": all_b}
            fits, later = [z for z in now if now[z] >= wanted], [z for z in empty if empty[z] >= wanted]
            if fits:
                good = found in fits and now[str(found)] == max(now.values())
            elif len(later) == 1:
                good = found == later[0]
            else:
                good = found == ("" if later or not bare else None)
            if not good:
                wrongs.append(f"{wanted} of {counts}, claim in {reached}, without {avoided}: {found!r}")
    assert not wrongs, "\n".join(wrongs[:20])


def test_equal_zones_are_shared_among_jobs_that_are_sent_at_once() -> None:
    there = [node(f"{z}{n}", labels={"topology.kubernetes.io/zone": z}) for z in "ab" for n in range(3)]
    chosen = {choose_zone(snapshot_of(*there), JobSpec(f"job-{n}", nodes=2)) for n in range(8)}
    assert chosen == {"a", "b"}
