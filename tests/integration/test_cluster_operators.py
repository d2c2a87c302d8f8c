"""The released operators, quotas of Kueue, rights, and applied fixes, in a real API server."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.control_plane import operator, started, wait_for_operator
from tests.unit.cluster.generated import node
from tests.unit.cluster.judging import SCRIPT, findings_of, look_at

pytestmark = pytest.mark.slow
KUEUE = "/apis/kueue.x-k8s.io/v1beta2"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with started(tmp_path_factory.mktemp("plane")) as plane:
        plane.create_many("/api/v1/nodes", [node(f"gpu-{n}", "p5.48xlarge") for n in range(4)])
        plane.kubectl("wait", "--for=condition=Ready", "node", "--all", "--timeout=60s")
        plane.kubectl("create", "namespace", "team")
        yield plane


@pytest.fixture(scope="module")
def training(plane: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with operator("training-operator", plane, tmp_path_factory.mktemp("training")) as running:
        yield running


@pytest.fixture(scope="module")
def kueue(plane: Any, training: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with operator("kueue", plane, tmp_path_factory.mktemp("kueue")) as running:
        plane.request("POST", f"{KUEUE}/resourceflavors", kueue_object("ResourceFlavor", "p5", spec=FLAVOR))
        for name, gpus in (("big", 32), ("small", 8)):
            plane.request("POST", f"{KUEUE}/clusterqueues", cluster_queue(name, gpus))
            body = kueue_object("LocalQueue", name, spec={"clusterQueue": name})
            body["metadata"]["namespace"] = "team"
            plane.request("POST", f"{KUEUE}/namespaces/team/localqueues", body)
        for kind in ("clusterqueue", "localqueue"):
            for name in ("big", "small"):
                wait = ("wait", "--for=condition=Active", f"{kind}/{name}", "-n", "team", "--timeout=60s")
                plane.kubectl(*wait)
        yield running


FLAVOR = {"nodeLabels": {"node.kubernetes.io/instance-type": "p5.48xlarge"}}


def kueue_object(kind: str, name: str, *, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, "spec": spec}


def cluster_queue(name: str, gpus: int) -> dict[str, Any]:
    amounts = {"cpu": 10000, "memory": "100Ti", "nvidia.com/gpu": gpus, "vpc.amazonaws.com/efa": 4 * gpus}
    resources = [{"name": resource, "nominalQuota": amount} for resource, amount in amounts.items()]
    group = {"coveredResources": list(amounts), "flavors": [{"name": "p5", "resources": resources}]}
    return kueue_object("ClusterQueue", name, spec={"namespaceSelector": {}, "resourceGroups": [group]})


def checked(plane: Any, *options: str) -> dict[str, list[dict[str, str]]]:
    plan = ("--num-nodes", "4", "--instance-type", "p5.48xlarge", "--namespace", "team", *options)
    found: dict[str, list[dict[str, str]]] = {}
    for entry in findings_of(Path(plane.kubeconfig), *plan):
        found.setdefault(entry["check"], []).append(entry)
    return found


def test_an_operator_without_a_deployment_is_known_by_its_webhook(plane: Any, training: Any) -> None:
    assert checked(plane) == {}


def test_a_secret_is_looked_for_without_its_content(plane: Any, training: Any) -> None:
    plane.kubectl("create", "secret", "generic", "hf", "-n", "team", "--from-literal=token=do-not-send")
    assert checked(plane, "--secret", "hf") == {}
    assert "no secret other" in checked(plane, "--secret", "other")["namespace"][0]["evidence"]
    api = look_at(Path(plane.kubeconfig)).api
    found = api.get("/api/v1/namespaces/team/secrets/hf", metadata_of="object")
    assert found["metadata"]["name"] == "hf"
    assert "data" not in found
    listed = api.get("/api/v1/namespaces/team/secrets", metadata_of="list")
    assert all("data" not in item for item in listed["items"])


def test_a_service_account_that_is_not_there_is_refused_by_the_trial_pod(plane: Any, training: Any) -> None:
    line = [sys.executable, SCRIPT, "check", "--kubeconfig", plane.kubeconfig, "--namespace", "team"]
    line += ["--config", SCRIPT.parents[1] / "configs" / "smoke.yaml", "--instance-type", "p5.48xlarge"]
    line += ["--set", "cluster.pod.service_account=runner", "--json"]
    for code in (1, 0):
        done = subprocess.run([*map(str, line)], capture_output=True, text=True, timeout=60)
        assert done.returncode == code, done.stderr
        refused = "create serviceaccount runner" in done.stdout
        assert refused == bool(code)
        if refused:
            plane.kubectl("create", "serviceaccount", "runner", "-n", "team")


def test_who_is_impersonated_is_what_counts(plane: Any, training: Any, tmp_path: Path) -> None:
    document = json.loads(Path(plane.kubeconfig).read_text())
    document["users"][0]["user"] |= {"as": "someone", "as-groups": ["readers", "system:masters"]}
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(document))
    assert findings_of(path, "--num-nodes", "4", "--namespace", "team") == []
    document["users"][0]["user"]["as-groups"] = ["readers"]
    path.write_text(json.dumps(document))
    found = findings_of(path, "--num-nodes", "4", "--namespace", "team")
    assert "permissions" in {entry["check"] for entry in found}


def test_a_webhook_that_does_not_answer_is_found(plane: Any, training: Any) -> None:
    training.stop(keep_webhooks=True)
    try:
        found = checked(plane)
    finally:
        training.start()
        wait_for_operator("training-operator", plane)
    assert "validator.pytorchjob.training-operator.kubeflow.org" in found["webhook"][0]["evidence"]
    assert found["operator"][0]["severity"] == "error"
    assert checked(plane) == {}


def test_the_controllers_of_a_trainjob_are_known_by_their_webhooks(plane: Any, tmp_path: Path) -> None:
    with operator("jobset", plane, tmp_path / "jobset"), operator("trainer", plane, tmp_path / "trainer"):
        assert checked(plane, "--kind", "trainjob") == {}
    assert "operator" in checked(plane, "--kind", "trainjob"), "they are gone"


@pytest.mark.parametrize("kind", ["rayjob", "raycluster"])
def test_ray_is_accepted_as_a_dry_run(kind: str, plane: Any, tmp_path: Path) -> None:
    with operator("kuberay", plane, tmp_path / "kuberay"):
        found = checked(plane, "--kind", kind)
    assert "webhook" not in found
    assert {entry["severity"] for entry in found.get("operator", [])} <= {"warning"}


@pytest.mark.parametrize(
    ("queue", "nodes", "severity", "words"),
    [
        ("big", "4", None, ()),
        ("small", "4", "error", ("32 GPUs are wanted", "8 in flavor p5 at most")),
        ("small", "1", None, ()),
        ("none", "4", "error", ("no LocalQueue none", "big, small")),
    ],
)
def test_the_quota_of_a_queue_is_judged(
    queue: str, nodes: str, severity: str | None, words: tuple[str, ...], plane: Any, kueue: Any
) -> None:
    found = checked(plane, "--queue", queue, "--num-nodes", nodes).get("queue", [])
    assert [entry["severity"] for entry in found] == ([severity] if severity else [])
    assert all(word in found[0]["evidence"] for word in words)


def test_a_busy_queue_says_how_much_must_be_given_back(plane: Any, kueue: Any) -> None:
    job = pytorch_job("busy", nodes=2, queue="big")
    jobs = "/apis/kubeflow.org/v1/namespaces/team/pytorchjobs"
    plane.request("POST", jobs, job)
    try:
        plane.kubectl("wait", "--for=condition=Running", "pytorchjob/busy", "-n", "team", "--timeout=60s")
        usage = "{.status.flavorsReservation[0].resources[?(@.name=='nvidia.com/gpu')].total}"
        plane.kubectl("wait", f"--for=jsonpath={usage}=16", "clusterqueue/big", "--timeout=60s")
        found = checked(plane, "--queue", "big")
        assert found["queue"][0]["severity"] == "warning"
        assert "16 of 32 GPUs free" in found["queue"][0]["evidence"]
        assert found["capacity"][0]["severity"] == "warning"
        assert "team/busy holds 16" in found["capacity"][0]["evidence"]
        shown = run("capacity", plane, "--num-nodes", "4", "--queue", "big", "--namespace", "team", "--json")
        data = json.loads(shown.stdout)
        assert (shown.returncode, data["fits"], data["places_free"]) == (1, "later", 2)
        assert data["holders"][0] | {"priority": 0} == {
            "namespace": "team", "owner": "busy", "gpus": 16, "nodes": 2, "pods": 2, "priority": 0,
        }  # fmt: skip
    finally:
        plane.request("DELETE", f"{jobs}/busy")


def pytorch_job(name: str, *, nodes: int, queue: str) -> dict[str, Any]:
    resources = {"cpu": 1, "memory": "1Gi", "nvidia.com/gpu": 8}
    container = {"name": "pytorch", "image": "a/b:1", "resources": {"limits": resources}}
    template = {"spec": {"containers": [container]}}
    worker = {"replicas": nodes - 1, "template": template}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name, "labels": {"kueue.x-k8s.io/queue-name": queue}},
        "spec": {"pytorchReplicaSpecs": {"Master": {"replicas": 1, "template": template}, "Worker": worker}},
    }


def test_rights_are_judged_by_the_api_server_itself(plane: Any, training: Any, tmp_path: Path) -> None:
    """A service account that may only read nodes, pods, daemon sets and deployments."""
    plane.kubectl("create", "serviceaccount", "reader", "-n", "team")
    rule = ("--verb=list,get", "--resource=nodes,pods,daemonsets.apps,deployments.apps")
    plane.kubectl("create", "clusterrole", "reader", *rule)
    plane.kubectl(
        "create", "clusterrolebinding", "reader", "--clusterrole=reader", "--serviceaccount=team:reader"
    )
    token = plane.kubectl("create", "token", "reader", "-n", "team").strip()
    document = json.loads(Path(plane.kubeconfig).read_text())
    document["users"][0]["user"] = {"token": token}
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(document))
    found = findings_of(path, "--num-nodes", "4", "--namespace", "team")
    said = {entry["check"]: entry for entry in found}
    assert said["permissions"]["severity"] == "error"
    assert "create pytorchjobs.kubeflow.org in team" in said["permissions"]["evidence"]
    assert "list pods in team" not in said["permissions"]["evidence"]
    assert "role trainyard" in said["permissions"]["fix"]
    assert {entry["check"] for entry in found if entry["severity"] == "error"} <= {"permissions", "operator"}


def test_safe_remedies_are_carried_out_and_nothing_else(plane: Any, kueue: Any, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        "model: {name: test}\n"
        "training: {max_steps: 1}\n"
        "cluster:\n"
        "  namespace: fresh\n"
        "  queue: fresh-queue\n"
        "  cluster_queue: big\n"
        "  volume: {claim: checkpoints, storage_class: fsx, size: 1200Gi}\n"
    )
    plane.request("POST", "/api/v1/nodes", node("bare-0", "p4d.24xlarge", devices=False))
    plane.kubectl("wait", "--for=condition=Ready", "node/bare-0", "--timeout=60s")
    options = ("--config", str(tmp_path / "config.yaml"), "--instance-type", "p4d.24xlarge", "--json")
    planned = run("fix", plane, *options)
    steps = json.loads(planned.stdout)["steps"]
    assert planned.returncode == 1, planned.stderr
    assert {s["check"] for s in steps if s["automatic"]} == {"namespace", "queue", "storage"}
    assert names(plane, "/api/v1/namespaces") & {"fresh"} == set()
    applied = run("fix", plane, *options, "--apply")
    assert json.loads(applied.stdout)["applied"] is True, applied.stderr
    assert "fresh" in names(plane, "/api/v1/namespaces")
    assert names(plane, f"{KUEUE}/namespaces/fresh/localqueues") == {"fresh-queue"}
    claim = plane.request("GET", "/api/v1/namespaces/fresh/persistentvolumeclaims/checkpoints")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    again = json.loads(run("fix", plane, *options).stdout)["steps"]
    assert {s["check"] for s in again if s["automatic"]} == set()
    plane.request("DELETE", "/api/v1/nodes/bare-0")


def names(plane: Any, path: str) -> set[str]:
    return {item["metadata"]["name"] for item in plane.request("GET", path)["items"]}


def run(command: str, plane: Any, *options: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, str(SCRIPT), command, "--kubeconfig", str(plane.kubeconfig), *options]
    return subprocess.run(line, capture_output=True, text=True, timeout=180)
