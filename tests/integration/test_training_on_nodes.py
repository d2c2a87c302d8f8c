"""Training that really runs in pods: trained, stored into a real S3 server, proven, equal to the bit.

Real kubelets, containerd and the released operators, from the kit in $TRAINYARD_CONTROL_PLANE; needs root.
The image of the pods is this machine. For the RayJob $RAY_PYTHON names a Python with Ray and this package.
"""

import importlib
import json
import os
import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.integration.conftest import ACCESS_KEY, SECRET_KEY, Endpoint
from tests.integration.control_plane import kit
from tests.integration.job_world import World, eventually

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
IMAGE = "example.com/training:1"
RAY_PYTHON = os.environ.get("RAY_PYTHON", "")
PATIENCE = {
    "RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT": "240",
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "240",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Ray's own time limits are made for machines that do nothing else."""
SMALL = {
    "training.max_steps": 12,
    "training.batch_size": 2,
    "training.warmup_steps": 2,
    "training.validation_steps": 6,
    "training.validation_batches": 1,
    "data.sequence_length": 32,
    "checkpointing.save_steps": 3,
    "compute.strategy": "ddp",
    "compute.threads": 1,
    "model.device": "cpu",
}
PODS = {
    "cluster.pod.directory": ROOT,
    "cluster.pod.cpu": 2,
    "cluster.pod.memory": "3Gi",
    "cluster.pod.run_as_user": 0,
    "cluster.pod.grace_seconds": 60,
}
KINDS = ("pytorchjob", "trainjob", "rayjob")
OPERATORS = {"pytorchjob": ("training-operator",), "trainjob": ("jobset", "trainer"), "rayjob": ("kuberay",)}
Json = dict[str, Any]


class Nodes(World):
    """Two nodes whose pods run, one volume, and a bucket."""

    folder: Path
    store: str
    """As the pods reach it."""
    outside: str
    client: Any
    held: ExitStack
    directory: Path

    def work(self, kind: str) -> None:
        """Start the operators of a kind, which stay."""
        for name in OPERATORS[kind]:
            if name not in self.operators:
                environment = self.plane.environment if name == "kuberay" else None
                start = importlib.import_module("operators").start
                running = start(
                    name, self.plane.kubeconfig, self.directory / name, environment=environment, timeout=300
                )
                self.operators[name] = self.held.enter_context(running)

    def deploy(self, job: str, kind: str, *options: str, code: int | None = 0, **settings: Any) -> str:
        self.work(kind)
        python = RAY_PYTHON if kind == "rayjob" else sys.executable
        given = {**SMALL, **PODS, "cluster.pod.python": python, "artifacts.store": self.store}
        if kind == "rayjob":
            given["cluster.pod.ray_version"] = ray_version()
            options = (*options, *(f"--env={name}={value}" for name, value in PATIENCE.items()))
        given |= {key.replace("__", "."): value for key, value in settings.items()}
        line = [
            *(sys.executable, str(ROOT / "scripts" / "deploy_training_job.py")),
            *("--config", str(ROOT / "configs" / "smoke.yaml")),
            *(f"--set={key}={value}" for key, value in given.items()),
            *("--kubeconfig", str(self.plane.kubeconfig), "--namespace", "default", "--job-name", job),
            *("--kind", kind, "--num-nodes", "2", "--gpu-per-node", "0", "--image-uri", IMAGE),
            *("--volume", "checkpoints", "--secret", "s3", "--accept", "storage", "--accept", "operator"),
            *options,
        ]
        done = subprocess.run(line, capture_output=True, text=True, timeout=900)
        assert code is None or done.returncode == code, f"{done.stderr[-6000:]}\n{self.logs(job)}"
        return done.stdout + done.stderr

    def logs(self, job: str) -> str:
        line = [sys.executable, str(ROOT / "scripts" / "manage_training_job.py"), "logs", job, "--previous"]
        where = ["--kubeconfig", str(self.plane.kubeconfig), "--namespace", "default", "--tail", "60"]
        return subprocess.run([*line, *where], capture_output=True, text=True, timeout=120).stdout[-12000:]

    def run(self, job: str) -> Json:
        found: Json = json.loads((self.folder / job / "run.json").read_text())
        return found

    def digest(self, job: str) -> Any:
        outcome = self.run(job)["outcome"]
        assert (outcome["status"], outcome["steps"]) == ("succeeded", SMALL["training.max_steps"]), outcome
        return outcome["state_sha256"]

    def prove(self, job: str) -> Json:
        """Prove the run from outside the cluster, with what the store gives."""
        line = [sys.executable, str(ROOT / "scripts" / "prove_run.py"), "--run-dir", str(self.folder / job)]
        environment = {**os.environ, **credentials(self.outside)}
        done = subprocess.run(
            [*line, "--store", self.store, "--run-number", "auto", "--dry-run", "--json"],
            capture_output=True,
            text=True,
            timeout=300,
            env=environment,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        found: Json = json.loads(done.stdout)
        return found


def credentials(url: str) -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": url,
    }


def ray_version() -> str:
    code = "import importlib.metadata as m; print(m.version('ray'))"
    return subprocess.run([RAY_PYTHON, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory, seaweedfs: Endpoint) -> Iterator[Nodes]:
    sys.path.insert(0, str(kit() / "node"))
    module = importlib.import_module("real_node")
    try:
        module.require()
    except module.Unavailable as error:
        pytest.skip(str(error))
    directory = tmp_path_factory.mktemp("nodes")
    port = urlsplit(seaweedfs.url).port
    with ExitStack() as held:
        cluster = held.enter_context(
            module.RealCluster(directory / "cluster", real_nodes=2, publish={"s3": port})
        )
        path = ":".join(
            [*([str(Path(RAY_PYTHON).parent)] if RAY_PYTHON else []), "/usr/local/bin:/usr/bin:/bin"]
        )
        cluster.load_image(IMAGE, layers=["/"], environment={"PATH": path})
        cluster.load_init_image()
        nodes = Nodes(cluster, None, {})
        nodes.held, nodes.directory = held, directory
        nodes.folder = cluster.add_volume("checkpoints")
        nodes.store = f"s3://{seaweedfs.new_bucket()}/jobs"
        nodes.outside = seaweedfs.url
        nodes.client = seaweedfs.client
        space = "/api/v1/namespaces/default"
        spec = {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "volumeName": "checkpoints",
            "resources": {"requests": {"storage": "1Gi"}},
        }
        nodes.request(
            "POST", f"{space}/persistentvolumeclaims", {"metadata": {"name": "checkpoints"}, "spec": spec}
        )
        keys = credentials(f"http://s3.default.svc:{port}")
        nodes.request("POST", f"{space}/secrets", {"metadata": {"name": "s3"}, "stringData": keys})
        yield nodes


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, nodes: Nodes) -> Any:
    """The digest of the same two processes without Kubernetes."""
    run_dir = tmp_path_factory.mktemp("reference") / "run"
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    settings = {**SMALL, "data.prepared_directory": run_dir.parent / "prepared", "compute.network": "tcp"}
    line = [
        *(sys.executable, str(ROOT / "scripts" / "train.py"), "--config", str(ROOT / "configs/smoke.yaml")),
        *(f"--set={key}={value}" for key, value in settings.items()),
        *("--run-dir", str(run_dir), "--nproc-per-node", "1"),
    ]
    place = {"PET_NNODES": "2", "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": str(port)}
    processes = [
        subprocess.Popen(
            line,
            cwd=ROOT,
            env={**os.environ, **place, "PET_NODE_RANK": str(rank)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=600)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    return json.loads((run_dir / "run.json").read_text())["outcome"]["state_sha256"]


def require_ray(kind: str) -> None:
    if kind == "rayjob" and not RAY_PYTHON:
        pytest.skip("needs Ray: set RAY_PYTHON to a Python that has ray and this package")


@pytest.mark.parametrize("kind", KINDS)
def test_two_pods_train_store_and_are_proven_equal_to_two_processes_without_a_cluster(
    kind: str, nodes: Nodes, reference: Any
) -> None:
    require_ray(kind)
    job = f"plain-{kind}"
    told = nodes.deploy(job, kind, "--wait", "--timeout", "12m")
    assert "Succeeded" in told
    assert nodes.digest(job) == reference
    proof = nodes.prove(job)
    assert proof["proven"] is True, proof
    again = nodes.deploy(job, kind)
    assert "is there already, with the same plan" in again
    assert "Succeeded" in again, "a job that has ended is told as it ended, also without --wait"


def test_a_pod_that_is_killed_at_a_random_step_resumes_and_ends_equal(nodes: Nodes, reference: Any) -> None:
    step = random.randrange(3, 10)
    nodes.deploy("killed", "pytorchjob")
    rows = nodes.folder / "killed" / "metrics.jsonl"
    eventually(lambda: reached(rows, step), f"step {step}", within=400)
    [worker] = [name for name in nodes.pods("killed") if "worker" in name]
    nodes.plane.kubectl("exec", worker, "-c", "pytorch", "--", "sh", "-c", "kill -9 -1 || true")
    told = nodes.deploy("killed", "pytorchjob", "--wait", "--timeout", "12m")
    assert "Succeeded" in told
    assert nodes.digest("killed") == reference, f"killed at step {step}"
    assert nodes.prove("killed")["proven"] is True


def reached(rows: Path, step: int) -> bool:
    if not rows.is_file():
        return False
    return any(json.loads(line).get("step", 0) >= step for line in rows.read_text().splitlines() if line)


ENDLESS = {"training__max_steps": 100000, "checkpointing__save_steps": 100000, "cluster__pod__restarts": 0}


def test_sigterm_with_grace_ends_in_75_with_a_whole_checkpoint(nodes: Nodes) -> None:
    nodes.deploy("stopped", "pytorchjob", **ENDLESS)
    eventually(lambda: reached(nodes.folder / "stopped" / "metrics.jsonl", 3), "step 3", within=400)
    for pod in nodes.pods("stopped"):
        nodes.plane.kubectl("exec", pod, "-c", "pytorch", "--", "sh", "-c", "kill -TERM 1")
    told = nodes.deploy("stopped", "pytorchjob", "--wait", "--timeout", "10m", code=75, **ENDLESS)
    assert "with a good checkpoint" in told
    outcome = nodes.run("stopped")["outcome"]
    assert (outcome["status"], outcome["exit_code"]) == ("stopped", 75)
    assert list((nodes.folder / "stopped" / "checkpoints").glob("step-*/manifest.json"))
