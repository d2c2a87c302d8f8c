"""Jobs are sent to a real API server with the released operators; their pods are simulated."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.integration.control_plane import operator, started
from tests.unit.cluster.generated import node

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "deploy_training_job.py"
TEAM = "/api/v1/namespaces/team"
pytestmark = pytest.mark.slow
Deploy = Callable[..., subprocess.CompletedProcess[str]]
JOBS = {
    "pytorchjob": "/apis/kubeflow.org/v1/namespaces/team/pytorchjobs",
    "trainjob": "/apis/trainer.kubeflow.org/v1alpha1/namespaces/team/trainjobs",
    "rayjob": "/apis/ray.io/v1/namespaces/team/rayjobs",
    "raycluster": "/apis/ray.io/v1/namespaces/team/rayclusters",
}
CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "fsx"},
    "spec": {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "fsx",
        "volumeName": "fsx",
        "resources": {"requests": {"storage": "1200Gi"}},
    },
}
VOLUME = {
    "apiVersion": "v1",
    "kind": "PersistentVolume",
    "metadata": {"name": "fsx"},
    "spec": {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "fsx",
        "capacity": {"storage": "1200Gi"},
        "csi": {"driver": "fsx.csi.aws.com", "volumeHandle": "fs-1"},
    },
}


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with started(tmp_path_factory.mktemp("plane")) as plane, ExitStack() as operators:
        plane.create_many("/api/v1/nodes", [node(f"gpu-{n}", "p5.48xlarge") for n in range(8)])
        plane.kubectl("wait", "--for=condition=Ready", "node", "--all", "--timeout=60s")
        plane.kubectl("create", "namespace", "team")
        driver = {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSIDriver",
            "metadata": {"name": "fsx.csi.aws.com"},
        }
        plane.request("POST", "/apis/storage.k8s.io/v1/csidrivers", driver)
        plane.request("POST", "/api/v1/persistentvolumes", VOLUME)
        plane.request("POST", f"{TEAM}/persistentvolumeclaims", CLAIM)
        for name in ("training-operator", "jobset", "trainer", "kuberay"):
            operators.enter_context(operator(name, plane, tmp_path_factory.mktemp(name)))
        yield plane


@pytest.fixture
def deploy(plane: Any) -> Deploy:
    def run(*options: str) -> subprocess.CompletedProcess[str]:
        line = [
            *(sys.executable, str(SCRIPT), "--config", str(ROOT / "configs" / "smoke.yaml")),
            *("--set", "compute.strategy=ddp", "--kubeconfig", str(plane.kubeconfig), "--namespace", "team"),
            *("--instance-type", "p5.48xlarge", "--image-uri", "registry.invalid/a@sha256:" + "a" * 64),
            *("--volume", "fsx", *options),
        ]
        return subprocess.run(line, capture_output=True, text=True, timeout=120)

    return run


def pods_of(plane: Any, job: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = plane.request(
        "GET", f"{TEAM}/pods?labelSelector=trainyard.dev%2Fjob%3D{job}"
    )["items"]
    return found


def until(condition: Callable[[], Any], what: str, seconds: float = 60) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited too long for {what}"
        time.sleep(0.3)
    return found


@pytest.mark.parametrize("kind", ["pytorchjob", "trainjob", "rayjob", "raycluster"])
def test_a_job_of_each_kind_gets_its_pods_and_leaves_nothing_behind(
    kind: str, plane: Any, deploy: Deploy
) -> None:
    name = f"{kind}-4"
    done = deploy("--kind", kind, "--job-name", name, "--num-nodes", "4")
    assert done.returncode == 0, done.stderr
    pods = until(lambda: len(found := pods_of(plane, name)) >= 4 and found, f"the pods of {name}")
    working = [pod for pod in pods if pod["spec"]["terminationGracePeriodSeconds"] == 300]
    assert len(working) == 4
    for pod in working:
        container = pod["spec"]["containers"][0]
        limits = container["resources"]["limits"]
        assert (limits["nvidia.com/gpu"], limits["vpc.amazonaws.com/efa"]) == ("8", "32")
        assert container["resources"]["requests"] == limits
        assert pod["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "trainyard"
    until(lambda: all(pod["spec"].get("nodeName") for pod in pods_of(plane, name)[:4]), "their nodes")
    again = deploy("--kind", kind, "--job-name", name, "--num-nodes", "4")
    assert (again.returncode, "is there already, with the same plan" in again.stderr) == (0, True), (
        again.stderr
    )
    other = deploy("--kind", kind, "--job-name", name, "--num-nodes", "2")
    assert other.returncode == 2
    assert "with another plan (nodes)" in other.stderr
    followed = JOBS["rayjob" if kind == "raycluster" else kind]
    plane.request("DELETE", f"{followed}/{name}", {"propagationPolicy": "Background"})
    until(lambda: not left(plane, name), f"everything of {name} to go", 90)


def left(plane: Any, job: str) -> list[str]:
    """What is still there of a job."""
    kinds = "pods,configmaps,services,pytorchjobs,trainjobs,trainingruntimes,jobsets,jobs,rayjobs,rayclusters"
    text = plane.kubectl("get", kinds, "-n", "team", "-l", f"trainyard.dev/job={job}", "-o", "name")
    return str(text).split()
