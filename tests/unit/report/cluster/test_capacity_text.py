"""The text about a cluster's free capacity: the answer, then each node, then the users of the rest."""

import itertools
from typing import Any

from trainyard.report.cluster.capacity_text import capacity_lines, heading, node_lines

FREE: dict[str, Any] = {"name": "gpu-1", "instance_type": "p5.48xlarge", "zone": "us-west-2a"}
FREE |= {"gpus": 8, "gpus_free": 8, "efa": 32, "efa_free": 32, "problems": [], "doubts": []}
SICK = FREE | {"name": "gpu-2", "instance_type": "", "zone": "", "gpus": None, "efa": None, "efa_free": 0}
SICK |= {"problems": ["it is not ready (KubeletNotReady)"], "doubts": ["its GPUs cannot be counted"]}
HOLDER = {"namespace": "team", "owner": "PyTorchJob/llama", "gpus": 8, "nodes": 1, "priority": 0}
HEADS = "node   type         zone        GPUs free  EFA free  status"


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
        "queue": {"when": "admitted now", "evidence": "16 of 32 GPUs are used"},
        "may_grow": False,
        "unknown": "pods cannot be listed",
    } | changed


def test_the_whole_text_is_the_answer_then_the_nodes_then_who_holds_the_rest() -> None:
    lines = capacity_lines(data(holders=[HOLDER], waiting=[HOLDER | {"owner": "Job/other"}]), width=80)
    assert lines == [
        "train · Kubernetes 1.31 · 2 nodes × 8 GPUs",
        "",
        "It does not fit now: 1 place for 2 nodes, 8 of 16 GPUs free; 2 places once other jobs end.",
        "",
        HEADS,
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


def test_each_answer_has_its_sentence_and_more_nodes_are_mentioned_only_where_they_help() -> None:
    answers = {
        "now": "It fits now: 1 place for 2 nodes, 8 of 16 GPUs free, 1 node completely free.",
        "later": "It does not fit now: 1 place for 2 nodes, 8 of 16 GPUs free; 2 places once other jobs end.",
        "never": "It cannot fit, even without other jobs: 2 places for 2 nodes (8 of 16 GPUs free).",
        "unknown": "It is not known whether it fits: pods cannot be listed.",
    }
    more = "Karpenter may add nodes, but it is not known whether the cloud has them."
    queued = "Queue research: admitted now. 16 of 32 GPUs are used."
    for fits, grows, queue in itertools.product(answers, (False, True), ("", "research")):
        plan = {"shape": "2 × 8", "nodes": 2, "queue": queue}
        lines = capacity_lines(data(fits=fits, may_grow=grows, plan=plan), width=80)
        expected = [answers[fits], *[more] * (grows and fits != "now"), *[queued] * bool(queue)]
        assert lines[2 : lines.index("", 2)] == expected, (fits, grows, queue)


def test_forty_nodes_and_ten_holders_are_shown_and_the_others_counted() -> None:
    for count, more in ((40, []), (41, ["… and 1 more nodes; --json lists them all"])):
        nodes = [FREE | {"name": f"node-{number:04}"} for number in range(count)]
        lines = capacity_lines(data(nodes=nodes), width=80)
        assert sum("node-0" in line for line in lines) == 40
        assert [line for line in lines if line.startswith("…")] == more
        listed = node_lines(data(nodes=nodes), width=80)
        assert sum("node-" in line for line in listed) == count
        assert listed[0] == f"train · Kubernetes 1.31 · {count:,} nodes"
    for part, (count, last) in itertools.product(
        ("holders", "waiting"), ((10, "8     1      0         team/Job/09"), (11, "… and 1 more"))
    ):
        holders = [HOLDER | {"owner": f"Job/{number:02}"} for number in range(count)]
        lines = capacity_lines(data(**{part: holders}), width=80)
        assert (sum("team/Job/" in line for line in lines), lines[-1]) == (10, last)


def test_a_cluster_without_a_context_or_nodes_says_so() -> None:
    cluster = {"context": "", "server": "https://1.2.3.4", "version": "1.31"}
    assert heading(data(cluster=cluster)).startswith("https://1.2.3.4 · ")
    assert node_lines(data(nodes=[]), width=80)[2:] == ["No node of this kind was found."]
    row = "gpu-1  p5.48xlarge  us-west-2a  8 of 8     32 of 32  fit"
    assert node_lines(data(nodes=[FREE]), width=80)[2:] == [HEADS, row]


def test_what_all_nodes_share_is_shown_once() -> None:
    for zones, shared, shown in (
        (("us-west-2a", "us-west-2a"), ", zone us-west-2a", ""),
        (("us-west-2a", "us-west-2b"), "", "us-west-2a  "),
    ):
        names = [f"ip-10-12-134-{number}.us-west-2.compute.internal" for number in range(2)]
        nodes = [FREE | {"name": name, "zone": zone} for name, zone in zip(names, zones, strict=True)]
        lines = node_lines(data(nodes=nodes), width=80)[2:]
        assert lines[0] == f"All nodes: type p5.48xlarge{shared}"
        assert lines[2] == f"{names[0]:41}  {shown}8 of 8     32 of 32  fit"
        assert max(map(len, lines)) <= 80 or shown
