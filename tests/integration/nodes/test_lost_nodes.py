"""A node under a training pod is lost and comes back: the job recovers, and ends equal to the bit."""

import json
import subprocess
import time
from typing import Any

import pytest
from tests.integration.job_world import NAMESPACE
from tests.integration.nodes.conftest import SPACE, Nodes, planted
from tests.waiting import wait_for

pytestmark = pytest.mark.slow
HEALING = ("--auto-retry=1", "--monitor", "--timeout=15m")
STEP = 4
"""After the checkpoint of step 3."""
SHORT_SECONDS = 8
"""Less than the silence after which a node is NotReady."""


def is_ready(nodes: Nodes, node: str) -> bool:
    conditions = nodes.request("GET", f"/api/v1/nodes/{node}")["status"]["conditions"]
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


@pytest.mark.parametrize("trouble", ["network", "kubelet"])
def test_a_node_that_is_away_for_a_moment_costs_nothing(trouble: str, nodes: Nodes, reference: Any) -> None:
    job = f"moment-{trouble}"
    slow = planted(job, "slow")
    nodes.deploy(job, "pytorchjob", *slow)
    nodes.wait_for_step(job, STEP)
    node = nodes.plane.nodes[nodes.node_of(f"{job}-worker-0")]
    if trouble == "network":
        node.cut()
    else:
        node.kill("kubelet")
    time.sleep(SHORT_SECONDS)
    if trouble == "network":
        node.join()
    else:
        node.start_component("kubelet")
    told = nodes.deploy(job, "pytorchjob", *slow, "--wait", "--timeout=12m")
    assert "Succeeded" in told
    assert nodes.jobs(job) == [job]
    assert nodes.digest(job) == reference
    assert nodes.prove(job)["proven"] is True


def read_until_end(watcher: "subprocess.Popen[str]", words: str) -> tuple[str, float]:
    """Return a watcher's output to its end, and the seconds until it first printed these words."""
    started, seconds, lines = time.monotonic(), float("inf"), []
    assert watcher.stdout is not None
    for line in watcher.stdout:
        lines.append(line)
        if words in line:
            seconds = min(seconds, time.monotonic() - started)
    watcher.wait(60)
    return "".join(lines), seconds


def test_a_paused_pod_ends_the_job_as_hung_and_the_stacks_are_kept(nodes: Nodes) -> None:
    job = "paused"
    settings: dict[str, Any] = {"cluster__pod__restarts": 0, "monitoring__hang_seconds": 10}
    line = nodes.line(job, "pytorchjob", *planted(job, "slow"), "--wait", "--timeout=12m", **settings)
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as watcher:
        nodes.wait_for_step(job, STEP)
        raw = nodes.request("GET", f"{SPACE}/pods/{job}-worker-0")
        container = raw["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
        nodes.plane.nodes[raw["spec"]["nodeName"]].ctr("--namespace", "k8s.io", "tasks", "pause", container)
        told, seconds = read_until_end(watcher, f"{job}: Failed")
    assert watcher.returncode == 1, told
    assert seconds < 120, told
    assert "logs/hang-rank-" in " ".join(told.split()), "the fix names the stacks"
    failure = json.loads(nodes.manage("status", job, "--json", code=None))["failure"]
    assert (failure["class"], failure["rank"]) == ("hang", 0), failure
    assert "Thread" in (nodes.folder / NAMESPACE / job / "logs" / "hang-rank-0.txt").read_text()


@pytest.mark.parametrize(("trouble", "pod"), [("cut", "master"), ("crash", "worker")])
def test_a_job_goes_on_without_a_node_that_is_lost_and_the_node_comes_back(
    trouble: str, pod: str, nodes: Nodes, reference: Any
) -> None:
    job = f"lost-{trouble}"
    line = nodes.line(job, "pytorchjob", *planted(job, "slow"), *HEALING)
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as watcher:
        nodes.wait_for_step(job, STEP)
        name = nodes.node_of(f"{job}-{pod}-0")
        node = nodes.plane.nodes[name]
        getattr(node, trouble)()
        told, seconds = read_until_end(watcher, f"its node {name} does not answer")
    assert watcher.returncode == 0, told
    assert seconds < 60, "the node was reported before Kubernetes removed its pods"
    assert nodes.jobs(job) == [job, f"{job}-2"]
    [attempt] = json.loads(nodes.notes(f"{job}-2")["trainyard.dev/retry-record"])["attempts"]
    assert (attempt["failure_class"], attempt["node"]) == ("node-lost", name)
    assert attempt["step"] >= 3
    assert name not in {nodes.node_of(pod) for pod in nodes.pods(f"{job}-2")}
    assert nodes.digest(job) == reference
    assert nodes.prove(job)["proven"] is True

    assert not is_ready(nodes, name)
    if trouble == "cut":
        node.join()
    else:
        node.boot()
        node.boot_kubelet()
    wait_for(lambda: is_ready(nodes, name), "the node to come back")
    left = f"{SPACE}/pods?fieldSelector=spec.nodeName={name}"
    wait_for(lambda: not nodes.request("GET", left)["items"], "the lost node's pods to go")
    assert nodes.digest(job) == reference, "what came back wrote nothing"
