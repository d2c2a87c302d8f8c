"""Jobs that EFA joins stay in one zone on a real scheduler with the released operators; pods are simulated.

There are three nodes in each of two zones. Two jobs of two nodes fit, and a third one waits.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.integration.control_plane import operator, started
from tests.waiting import wait_for

from trainyard.jobs.kinds import KINDS, find_kind

ROOT = Path(__file__).resolve().parents[2]
ZONE = "topology.kubernetes.io/zone"
TEAM = "/api/v1/namespaces/team"
P5 = {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "32"}
OPERATORS = ("training-operator", "jobset", "trainer", "kuberay", "kueue")
pytestmark = pytest.mark.slow
Json = dict[str, Any]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with started(tmp_path_factory.mktemp("plane")) as plane, ExitStack() as operators:
        for zone in "ab":
            plane.add_nodes(3, prefix=f"zone-{zone}", labels={ZONE: f"us-west-2{zone}"})
        plane.kubectl("create", "namespace", "team")
        for name in OPERATORS:
            operators.enter_context(operator(name, plane, tmp_path_factory.mktemp(name)))
        yield plane


def command(plane: Any, name: str, *options: str) -> list[str]:
    target = ("--kubeconfig", str(plane.kubeconfig), "--namespace", "team")
    return [sys.executable, "-m", "trainyard", *name.split(), *options[:2], *target, *options[2:]]


def deployment(plane: Any, job: str, kind: str, *options: str) -> list[str]:
    # A preflight that already sees the other jobs would refuse the third one.
    accepted = ("--accept", "capacity", "--accept", "placement", "--accept", "queue")
    image = ("--image-uri", "registry.invalid/a@sha256:" + "a" * 64, "--instance-type", "p5.48xlarge")
    config = ("--config", str(ROOT / "configs" / "smoke.yaml"), "--set", "compute.strategy=ddp")
    line = command(plane, "job deploy", *config, "--kind", kind, "--job-name", job, *image)
    return [*line, "--num-nodes", "2", *accepted, *options, "--", "python", "train.py"]


def run_all(*lines: list[str]) -> None:
    """Run commands at the same time."""
    running = [subprocess.Popen(line, stderr=subprocess.PIPE, text=True) for line in lines]
    for process in running:
        _, error = process.communicate(timeout=300)
        assert process.returncode == 0, error


def pods_of(plane: Any, job: str) -> list[Json]:
    """The pods of a job that train."""
    path = f"{TEAM}/pods?labelSelector=trainyard.dev%2Fjob%3D{job},trainyard.dev%2Fefa"
    found: list[Json] = plane.request("GET", path)["items"]
    return found


def is_judged(pod: Json) -> bool:
    """Return whether the scheduler has seen the pod: it has a node, or the reason why not."""
    conditions = pod["status"].get("conditions") or ()
    return bool(pod["spec"].get("nodeName")) or any(c["type"] == "PodScheduled" for c in conditions)


def zones_of(plane: Any, job: str) -> set[str]:
    nodes = {n["metadata"]["name"]: n for n in plane.request("GET", "/api/v1/nodes")["items"]}
    placed = [pod["spec"]["nodeName"] for pod in pods_of(plane, job) if pod["spec"].get("nodeName")]
    return {nodes[name]["metadata"]["labels"][ZONE] for name in placed}


def remove(plane: Any, *kinds: str) -> None:
    for kind in dict.fromkeys(find_kind(KINDS[kind].followed) for kind in kinds):
        for job in plane.request("GET", kind.path("team"))["items"]:
            options = {"propagationPolicy": "Background"}
            plane.request("DELETE", kind.path("team", job["metadata"]["name"]), options)
    label = "trainyard.dev/job"
    wait_for(lambda: not plane.kubectl("get", "pods", "-n", "team", "-l", label, "-o", "name"), "the end")


ROUNDS = (
    ("pytorchjob", "pytorchjob", "pytorchjob"),
    ("trainjob", "rayjob", "raycluster"),
    ("raycluster", "pytorchjob", "trainjob"),
)


def test_no_job_of_three_that_are_sent_at_once_is_in_both_zones(plane: Any) -> None:
    wrongs = []
    for number, kinds in enumerate(ROUNDS):
        jobs = [f"round-{number}-{place}" for place in range(3)]
        run_all(*(deployment(plane, job, kind) for job, kind in zip(jobs, kinds, strict=True)))

        def are_judged(jobs: list[str] = jobs) -> bool:
            pods = [pods_of(plane, job) for job in jobs]
            return all(len(own) == 2 and all(map(is_judged, own)) for own in pods)

        wait_for(are_judged, f"the pods of round {number}")
        found = {job: zones_of(plane, job) for job in jobs}
        wrongs += [f"round {number}: {found}"] if any(len(zones) > 1 for zones in found.values()) else []
        assert any(found.values()), "no pod has a node: the guard keeps all of them off"
        remove(plane, *kinds)
    assert not wrongs, "\n".join(wrongs)


def test_a_strangers_job_in_both_zones_is_an_alert_of_status_and_watch(plane: Any) -> None:
    def role(zone: str) -> Json:
        container = {"name": "pytorch", "image": "registry.invalid/b", "resources": {"limits": P5}}
        spec = {"nodeSelector": {ZONE: zone}, "containers": [container]}
        return {"replicas": 1, "template": {"spec": spec}}

    roles = {"Master": role("us-west-2a"), "Worker": role("us-west-2b")}
    body = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "theirs"}}
    kind = find_kind("pytorchjob")
    plane.request("POST", kind.path("team"), {**body, "spec": {"pytorchReplicaSpecs": roles}})

    def shown(script: str, *options: str) -> Json:
        line = command(plane, script, *options, "--json")
        found: Json = json.loads(subprocess.run(line, capture_output=True, text=True, timeout=120).stdout)
        return found

    def is_running() -> bool:
        return bool(shown("job", "status", "theirs", "--kind", "pytorchjob")["status"] == "Running")

    wait_for(is_running, "the job to run")
    (alert,) = shown("job", "status", "theirs", "--kind", "pytorchjob")["alerts"]
    assert "in 2 zones, which EFA does not cross" in alert
    watched = shown("watch", "--job", "theirs", "--kind", "pytorchjob", "--once")
    assert (watched["health"], watched["network"]["verdict"]) == ("unhealthy", "degraded")
    assert [each["rule"] for each in watched["alerts"]] == ["two-zones"]
    remove(plane, "pytorchjob")


def test_kueues_topology_keeps_each_kind_in_one_zone_without_our_affinity(plane: Any) -> None:
    root = "/apis/kueue.x-k8s.io/v1beta2"
    levels = [{"nodeLabel": ZONE}, {"nodeLabel": "kubernetes.io/hostname"}]
    selector = {"node.kubernetes.io/instance-type": "p5.48xlarge"}
    names = ("cpu", "memory", "nvidia.com/gpu", "vpc.amazonaws.com/efa", "hugepages-2Mi")
    quotas = [{"name": name, "nominalQuota": "9000Ti" if name in names[1::3] else "9000"} for name in names]
    flavor = {"name": "p5", "resources": quotas}
    queue = {
        "namespaceSelector": {},
        "resourceGroups": [{"coveredResources": list(names), "flavors": [flavor]}],
    }
    for resource, kind, name, spec in (
        ("topologies", "Topology", "zones", {"levels": levels}),
        ("resourceflavors", "ResourceFlavor", "p5", {"nodeLabels": selector, "topologyName": "zones"}),
        ("clusterqueues", "ClusterQueue", "gpus", queue),
        ("namespaces/team/localqueues", "LocalQueue", "research", {"clusterQueue": "gpus"}),
    ):
        body = {"apiVersion": root.removeprefix("/apis/"), "kind": kind, "metadata": {"name": name}}
        plane.request("POST", f"{root}/{resource}", {**body, "spec": spec})

    def is_active() -> bool:
        status = plane.request("GET", f"{root}/clusterqueues/gpus").get("status", {})
        return any(c["type"] == "Active" and c["status"] == "True" for c in status.get("conditions", ()))

    wait_for(is_active, "the queue")
    wrongs = []
    for kind in ("pytorchjob", "trainjob", "rayjob", "raycluster"):
        options = ("--queue", "research", "--set", f"cluster.pod.topology={ZONE}")
        jobs = [f"{kind}-{number}" for number in range(2)]
        run_all(*(deployment(plane, job, kind, *options) for job in jobs))

        def trains(job: str) -> list[Json]:
            path = f"{TEAM}/pods?labelSelector=trainyard.dev%2Fjob%3D{job}"
            pods = plane.request("GET", path)["items"]
            limits = (pod["spec"]["containers"][0].get("resources", {}).get("limits", {}) for pod in pods)
            return [pod for pod, given in zip(pods, limits, strict=True) if "vpc.amazonaws.com/efa" in given]

        def are_placed(jobs: list[str] = jobs) -> bool:
            pods = [trains(job) for job in jobs]
            return all(len(own) == 2 and all(p["spec"].get("nodeName") for p in own) for own in pods)

        wait_for(are_placed, f"Kueue to place the jobs of kind {kind}")
        for job in jobs:
            zones = {pod["spec"]["nodeName"].rpartition("-")[0] for pod in trains(job)}
            wrongs += [f"{job}: {zones}"] if len(zones) > 1 else []
        remove(plane, kind)
    assert not wrongs, "\n".join(wrongs)
