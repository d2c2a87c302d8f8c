"""The texts about a cluster, the answer first: the verdict, the fixes, the free capacity."""

import itertools
from typing import Any

from trainyard.cluster.verdict import Readiness
from trainyard.report.cluster.capacity_text import capacity_lines, heading, node_lines
from trainyard.report.cluster.verdict_text import (
    cluster_lines,
    fix_lines,
    summarize_verdict,
    verdict_lines,
    verdict_markdown,
    verdict_refusal,
)

MARKS = ("error", "warning", "skipped", "passed")
ANSWERS = {"ready": "Ready", "not ready": "Not ready", "not known": "Not known"}


def entry(severity: str, number: int = 1, fix: str | None = None) -> dict[str, str]:
    fixes = severity in ("error", "warning")
    return {
        "check": f"{severity}-{number}",
        "severity": severity,
        "evidence": f"evidence of {severity} {number}",
        "fix": (f"mend {severity} {number}" if fixes else "") if fix is None else fix,
    }


def data(*checks: dict[str, str], verdict: str = "not ready") -> dict[str, Any]:
    return {
        "cluster": {"context": "train", "server": "https://1.2.3.4", "version": "1.31"},
        "plan": {"shape": "2 nodes × 8 GPUs"},
        "ready": verdict == "ready",
        "verdict": verdict,
        "checks": list(checks),
        "findings": [one for one in checks if one["severity"] != "passed"],
    }


EVERY = [entry(severity) for severity in ("passed", "skipped", "warning", "error")]


def test_the_whole_text_is_the_answer_then_the_checks_then_what_to_do_worst_first() -> None:
    assert verdict_lines(data(*EVERY), width=80) == [
        "train · Kubernetes 1.31 · 2 nodes × 8 GPUs",
        "",
        "Not ready: 1 error, 1 warning, 1 skipped.",
        "",
        "         check      evidence",
        "ok       passed-1   evidence of passed 1",
        "skipped  skipped-1  evidence of skipped 1",
        "warning  warning-1  evidence of warning 1",
        "error    error-1    evidence of error 1",
        "",
        "check      what to do",
        "error-1    mend error 1",
        "warning-1  mend warning 1",
    ]


def test_the_whole_summary_has_what_is_wrong_first_and_all_checks_folded() -> None:
    assert verdict_markdown(data(EVERY[0], EVERY[3])).splitlines() == [
        "### ❌ Not ready · train · Kubernetes 1.31 · 2 nodes × 8 GPUs",
        "",
        "Not ready: 1 error.",
        "",
        "| | check | evidence | what to do |",
        "|---|---|---|---|",
        "| ❌ | error-1 | evidence of error 1 | mend error 1 |",
        "",
        "<details><summary>All checks</summary>",
        "",
        "| | check | evidence |",
        "|---|---|---|",
        "| ✅ | passed-1 | evidence of passed 1 |",
        "| ❌ | error-1 | evidence of error 1 |",
        "",
        "</details>",
    ]


def test_each_state_and_severity_is_said_and_counted() -> None:
    for state, severity, count in itertools.product(Readiness, MARKS, range(3)):
        given = data(*(entry(severity, n) for n in range(count)), verdict=state.value)
        many = f"{severity}s" if count == 2 and severity != "skipped" else severity
        counted = f"{count} {many}" if count and severity != "passed" else "every check passed"
        assert summarize_verdict(given) == f"{ANSWERS[state.value]}: {counted}."
        mark = "✅" if state is Readiness.READY else "❌"
        assert verdict_markdown(given).startswith(f"### {mark} {ANSWERS[state.value]} · ")


def test_what_to_do_is_in_the_order_of_severity_and_a_finding_without_a_fix_is_no_task() -> None:
    for order in itertools.permutations(("error", "warning")):
        text = verdict_lines(data(*map(entry, order)), width=80)
        assert [line.split()[0] for line in text[-2:]] == ["error-1", "warning-1"]
    given = data(entry("error", fix=""))
    assert "what to do" not in "\n".join([*verdict_lines(given, width=80), verdict_markdown(given)])


def test_no_text_of_a_cluster_ends_a_cell_or_becomes_markup() -> None:
    hostile = entry("error") | {
        "evidence": "a | b\n| c `x` <script> [l](u) *b* _i_ \\ @team &",
        "fix": "<b>|</b>",
    }
    rows = [line for line in verdict_markdown(data(hostile)).splitlines() if "error-1" in line]
    evidence = r"a \| b \| c \`x\` \<script\> \[l\](u) \*b\* \_i\_ \\ \@team \&"
    assert rows == [f"| ❌ | error-1 | {evidence} | \\<b\\>\\|\\</b\\> |", f"| ❌ | error-1 | {evidence} |"]


def test_an_annotation_names_the_first_error_only() -> None:
    given = data(entry("warning"), entry("error", 1), entry("error", 2))
    assert verdict_refusal(given) == "Not ready: 2 errors, 1 warning. error-1: evidence of error 1"
    blind = data(entry("skipped"), verdict="not known")
    assert verdict_refusal(blind) == "Not known: 1 skipped."


FREE: dict[str, Any] = {"name": "gpu-1", "instance_type": "p5.48xlarge", "zone": "us-west-2a"}
FREE |= {"gpus": 8, "gpus_free": 8, "efa": 32, "efa_free": 32, "problems": [], "doubts": []}
SICK = FREE | {"name": "gpu-2", "instance_type": "", "zone": "", "gpus": None, "efa": None, "efa_free": 0}
SICK |= {"problems": ["it is not ready (KubeletNotReady)"], "doubts": ["its GPUs cannot be counted"]}
HOLDER = {"namespace": "team", "owner": "PyTorchJob/llama", "gpus": 8, "nodes": 1, "priority": 0}
HEADS = "node   type         zone        GPUs free  EFA free  status"


def capacity(**changed: Any) -> dict[str, Any]:
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
    lines = capacity_lines(capacity(holders=[HOLDER], waiting=[HOLDER | {"owner": "Job/other"}]), width=80)
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
        lines = capacity_lines(capacity(fits=fits, may_grow=grows, plan=plan), width=80)
        expected = [answers[fits], *[more] * (grows and fits != "now"), *[queued] * bool(queue)]
        assert lines[2 : lines.index("", 2)] == expected, (fits, grows, queue)


def test_forty_nodes_and_ten_holders_are_shown_and_the_others_counted() -> None:
    for count, more in ((40, []), (41, ["… and 1 more nodes; --json lists them all"])):
        nodes = [FREE | {"name": f"node-{number:04}"} for number in range(count)]
        lines = capacity_lines(capacity(nodes=nodes), width=80)
        assert sum("node-0" in line for line in lines) == 40
        assert [line for line in lines if line.startswith("…")] == more
        listed = node_lines(capacity(nodes=nodes), width=80)
        assert sum("node-" in line for line in listed) == count
        assert listed[0] == f"train · Kubernetes 1.31 · {count:,} nodes"
    for part, (count, last) in itertools.product(
        ("holders", "waiting"), ((10, "8     1      0         team/Job/09"), (11, "… and 1 more"))
    ):
        holders = [HOLDER | {"owner": f"Job/{number:02}"} for number in range(count)]
        lines = capacity_lines(capacity(**{part: holders}), width=80)
        assert (sum("team/Job/" in line for line in lines), lines[-1]) == (10, last)


def test_a_cluster_without_a_context_or_nodes_says_so() -> None:
    cluster = {"context": "", "server": "https://1.2.3.4", "version": "1.31"}
    assert heading(capacity(cluster=cluster)).startswith("https://1.2.3.4 · ")
    assert node_lines(capacity(nodes=[]), width=80)[2:] == ["No node of this kind was found."]
    row = "gpu-1  p5.48xlarge  us-west-2a  8 of 8     32 of 32  fit"
    assert node_lines(capacity(nodes=[FREE]), width=80)[2:] == [HEADS, row]


def test_what_all_nodes_share_is_shown_once() -> None:
    for zones, shared, shown in (
        (("us-west-2a", "us-west-2a"), ", zone us-west-2a", ""),
        (("us-west-2a", "us-west-2b"), "", "us-west-2a  "),
    ):
        names = [f"ip-10-12-134-{number}.us-west-2.compute.internal" for number in range(2)]
        nodes = [FREE | {"name": name, "zone": zone} for name, zone in zip(names, zones, strict=True)]
        lines = node_lines(capacity(nodes=nodes), width=80)[2:]
        assert lines[0] == f"All nodes: type p5.48xlarge{shared}"
        assert lines[2] == f"{names[0]:41}  {shown}8 of 8     32 of 32  fit"
        assert max(map(len, lines)) <= 80 or shown


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
