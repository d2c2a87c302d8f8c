"""The text about a cluster's free capacity: the answer, then each node, then the users of the rest."""

from typing import Any

import pytest
from tests.cases import each_case

from trainyard.report.cluster.capacity_text import capacity_lines, heading, node_lines

FREE = {
    "name": "gpu-1",
    "instance_type": "p5.48xlarge",
    "zone": "us-west-2a",
    "gpus": 8,
    "gpus_free": 8,
    "efa": 32,
    "efa_free": 32,
    "problems": [],
    "doubts": [],
}
SICK = FREE | {
    "name": "gpu-2",
    "instance_type": "",
    "zone": "",
    "gpus": None,
    "gpus_free": 0,
    "efa": None,
    "efa_free": 0,
    "problems": ["it is not ready (KubeletNotReady)"],
    "doubts": ["its GPUs cannot be counted"],
}
HOLDER = {"namespace": "team", "owner": "PyTorchJob/llama", "gpus": 8, "nodes": 1, "priority": 0}


def data(**changed: Any) -> dict[str, Any]:
    return {
        "cluster": {"context": "train", "server": "https://1.2.3.4", "version": "1.31"},
        "plan": {"shape": "2 nodes × 8 GPUs", "nodes": 2, "queue": ""},
        "nodes": [FREE, SICK],
        "fits": "later",
        "places_free": 1,
        "places": 2,
        "gpus": 16,
        "gpus_free": 8,
        "whole_nodes_free": ["gpu-1"],
        "holders": [],
        "waiting": [],
        "queue": {"when": "", "evidence": ""},
        "may_grow": False,
        "unknown": "",
    } | changed


def test_the_whole_text_is_the_answer_then_the_nodes_then_who_holds_the_rest() -> None:
    lines = capacity_lines(data(holders=[HOLDER], waiting=[HOLDER | {"owner": "Job/other"}]), width=80)
    assert lines == [
        "train · Kubernetes 1.31 · 2 nodes × 8 GPUs",
        "",
        "It does not fit now: 1 place for 2 nodes, 8 of 16 GPUs free; 2 places once other jobs end.",
        "",
        "node   type         zone        GPUs free  EFA free  status",
        "gpu-1  p5.48xlarge  us-west-2a  8 of 8     32 of 32  fit",
        "gpu-2  -            -           -          -         it is not ready",
        "                                                     (KubeletNotReady); its GPUs",
        "                                                     cannot be counted",
        "",
        "GPUs  nodes  priority  held by",
        "8     1      0         team/PyTorchJob/llama",
        "",
        "GPUs  nodes  priority  waiting",
        "8     1      0         team/Job/other",
    ]


@each_case(
    ("fits", "answer"),
    [
        ("now", "It fits now: 1 place for 2 nodes, 8 of 16 GPUs free, 1 node completely free."),
        (
            "later",
            "It does not fit now: 1 place for 2 nodes, 8 of 16 GPUs free; 2 places once other jobs end.",
        ),
        ("never", "It cannot fit, even without other jobs: 2 places for 2 nodes (8 of 16 GPUs free)."),
        ("unknown", "It is not known whether it fits: pods cannot be listed."),
    ],
)
@each_case("grows", [False, True])
@each_case("queue", ["", "research"])
def test_each_answer_has_its_sentence_and_more_nodes_are_mentioned_only_where_they_help(
    fits: str, answer: str, grows: bool, queue: str
) -> None:
    lines = capacity_lines(
        data(
            fits=fits,
            may_grow=grows,
            plan={"shape": "2 × 8", "nodes": 2, "queue": queue},
            queue={"when": "admitted now", "evidence": "16 of 32 GPUs are used"},
            unknown="pods cannot be listed",
        ),
        width=80,
    )
    expected = [answer]
    if grows and fits != "now":
        expected.append("Karpenter may add nodes, but it is not known whether the cloud has them.")
    if queue:
        expected.append("Queue research: admitted now. 16 of 32 GPUs are used.")
    assert lines[2 : lines.index("", 2)] == expected


@pytest.mark.parametrize(("count", "more"), [(40, None), (41, 1), (1000, 960)])
def test_forty_nodes_are_shown_and_the_others_counted(count: int, more: int | None) -> None:
    nodes = [FREE | {"name": f"node-{number:04}"} for number in range(count)]
    lines = capacity_lines(data(nodes=nodes), width=80)
    assert sum("node-0" in line for line in lines) == 40
    told = [f"… and {more} more nodes; --json lists them all"] if more else []
    assert [line for line in lines if line.startswith("…")] == told
    listed = node_lines(data(nodes=nodes), width=80)
    assert sum("node-" in line for line in listed) == count
    assert listed[0] == f"train · Kubernetes 1.31 · {count:,} nodes"


@pytest.mark.parametrize("part", ["holders", "waiting"])
@pytest.mark.parametrize(("count", "more"), [(10, None), (11, 1), (25, 15)])
def test_ten_holders_are_shown_and_the_others_counted(part: str, count: int, more: int | None) -> None:
    holders = [HOLDER | {"owner": f"Job/{number:02}"} for number in range(count)]
    lines = capacity_lines(data(**{part: holders}), width=80)
    assert sum("team/Job/" in line for line in lines) == 10
    assert lines[-1] == (f"… and {more} more" if more else "8     1      0         team/Job/09")


def test_a_cluster_without_a_context_is_named_by_its_server() -> None:
    cluster = {"context": "", "server": "https://1.2.3.4", "version": "1.31"}
    assert heading(data(cluster=cluster)).startswith("https://1.2.3.4 · ")


def test_a_cluster_without_nodes_of_the_kind_says_so() -> None:
    assert node_lines(data(nodes=[]), width=80)[2:] == ["No node of this kind was found."]
    assert node_lines(data(nodes=[FREE]), width=80)[2:] == [
        "node   type         zone        GPUs free  EFA free  status",
        "gpu-1  p5.48xlarge  us-west-2a  8 of 8     32 of 32  fit",
    ]


EKS_NAME = "ip-10-12-134-{}.us-west-2.compute.internal"


@pytest.mark.parametrize("zones", [("us-west-2a", "us-west-2a"), ("us-west-2a", "us-west-2b")])
def test_what_all_nodes_share_is_shown_once(zones: tuple[str, str]) -> None:
    nodes = [FREE | {"name": EKS_NAME.format(number), "zone": zone} for number, zone in enumerate(zones)]
    narrow = node_lines(data(nodes=nodes), width=80)[2:]
    if zones[0] == zones[1]:
        assert narrow[0] == "All nodes: type p5.48xlarge, zone us-west-2a"
        assert narrow[2] == f"{nodes[0]['name']:41}  8 of 8     32 of 32  fit"
        assert max(len(line) for line in narrow) <= 80
    else:
        assert narrow[0] == "All nodes: type p5.48xlarge"
        assert narrow[2] == f"{nodes[0]['name']:41}  us-west-2a  8 of 8     32 of 32  fit"
