"""A cluster of two nodes whose pods really run, a volume that they share, and a bucket on a real S3 server.

Real kubelets, containerd and the released operators, from the kit in $TRAINYARD_CONTROL_PLANE; needs root.
The image of the pods is this machine. For the RayJob $RAY_PYTHON names a Python with Ray and this package.
"""

import importlib
import json
import os
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
from tests.integration.control_plane import kit, operator
from tests.integration.job_world import NAMESPACE, World
from tests.waiting import wait_for

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = ROOT / "scripts"
SPACE = f"/api/v1/namespaces/{NAMESPACE}"
IMAGE = "example.com/training:1"
CLAIM = "checkpoints"
RAY_PYTHON = os.environ.get("RAY_PYTHON", "")
PATIENCE = {
    "RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT": "240",
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "240",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Ray's own time limits are made for machines that do nothing else."""
STEPS = 12
SMALL = {
    "training.max_steps": STEPS,
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
OPERATORS = {"pytorchjob": ("training-operator",), "trainjob": ("jobset", "trainer"), "rayjob": ("kuberay",)}
Json = dict[str, Any]


class Nodes(World):
    """Two nodes whose pods run, one volume, and a bucket."""

    folder: Path
    """The volume, as this machine sees it."""
    store: str
    """The URL of the store for the pods."""
    outside: str
    """The URL of the S3 server for this machine."""
    client: Any
    held: ExitStack
    directory: Path

    def work(self, kind: str) -> None:
        """Start the operators of a kind, which keep running."""
        for name in OPERATORS[kind]:
            if name not in self.operators:
                environment = self.plane.environment if name == "kuberay" else None
                folder = self.directory / name
                running = operator(name, self.plane, folder, environment=environment, timeout=300)
                self.operators[name] = self.held.enter_context(running)

    def claim(self, name: str, path: Path | None = None) -> Path:
        """Create a volume and its claim; return its folder."""
        folder: Path = self.plane.add_volume(name, path=path)
        spec = {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "volumeName": name,
            "resources": {"requests": {"storage": "1Gi"}},
        }
        body = {"metadata": {"name": name}, "spec": spec}
        self.request("POST", f"{SPACE}/persistentvolumeclaims", body)
        return folder

    def line(self, job: str, kind: str, *options: str, claim: str = CLAIM, **settings: Any) -> list[str]:
        """The command that deploys a job of two pods; a setting is written with __ for a dot."""
        self.work(kind)
        python = RAY_PYTHON if kind == "rayjob" else sys.executable
        given = {**SMALL, **PODS, "cluster.pod.python": python, "artifacts.store": self.store}
        if kind == "rayjob":
            given["cluster.pod.ray_version"] = ray_version()
            options = (*options, *(f"--env={name}={value}" for name, value in PATIENCE.items()))
        given |= {key.replace("__", "."): value for key, value in settings.items()}
        image = () if "--image-uri" in options else ("--image-uri", IMAGE)
        options = ("--num-nodes", "2", *image, "--volume", claim, *options)
        return self.line_with(ROOT / "configs" / "smoke.yaml", job, kind, *options, **given)

    def line_with(self, config: Path, job: str, kind: str, *options: str, **settings: Any) -> list[str]:
        """The command that deploys a job of a configuration; a setting is named by its dotted key."""
        return [
            *(sys.executable, str(SCRIPTS / "deploy_training_job.py"), "--config", str(config)),
            *(f"--set={key}={value}" for key, value in settings.items()),
            *("--kubeconfig", str(self.plane.kubeconfig), "--namespace", NAMESPACE, "--job-name", job),
            *("--kind", kind, "--gpu-per-node", "0", "--secret", "s3"),
            *("--accept", "storage", "--accept", "operator", *options),
        ]

    def deploy(self, job: str, kind: str, *options: str, code: int | None = 0, **settings: Any) -> str:
        """Deploy a job, and return the output."""
        return self.run_deploy(self.line(job, kind, *options, **settings), job, code)

    def run_deploy(self, line: list[str], job: str, code: int | None = 0) -> str:
        """Run a command that deploys `job`, and return its output."""
        done = subprocess.run(line, capture_output=True, text=True, timeout=1200)
        assert code is None or done.returncode == code, f"{done.stderr[-6000:]}\n{self.logs(job)}"
        return done.stdout + done.stderr

    def manage(self, *words: str, name: str = "job", code: int | None = 0) -> str:
        """Run a command that reads the cluster, and return its stdout."""
        where = ("--kubeconfig", str(self.plane.kubeconfig), "--namespace", NAMESPACE)
        line = [sys.executable, "-m", "trainyard", *name.split(), *words, *where]
        done = subprocess.run(line, capture_output=True, text=True, timeout=300)
        assert code is None or done.returncode == code, done.stderr
        return done.stdout

    def logs(self, job: str) -> str:
        line = [sys.executable, str(SCRIPTS / "manage_training_job.py"), "logs", job, "--previous"]
        where = ["--kubeconfig", str(self.plane.kubeconfig), "--namespace", NAMESPACE, "--tail", "60"]
        return subprocess.run([*line, *where], capture_output=True, text=True, timeout=120).stdout[-12000:]

    def jobs(self, first: str) -> list[str]:
        """The PyTorchJob of this name and its retries, in their order."""
        items = self.request("GET", f"/apis/kubeflow.org/v1/namespaces/{NAMESPACE}/pytorchjobs")["items"]
        names = (item["metadata"]["name"] for item in items)
        return sorted(name for name in names if name.rpartition("-")[0] == first or name == first)

    def notes(self, job: str) -> Json:
        """The annotations of a PyTorchJob."""
        found: Json = self.job("pytorchjob", job)["metadata"]["annotations"]
        return found

    def wait_for_step(self, job: str, step: int) -> None:
        rows = self.folder / NAMESPACE / job / "metrics.jsonl"
        wait_for(lambda: reached(rows, step), f"step {step} of {job}", within=1200)

    def node_of(self, pod: str) -> str:
        return str(self.request("GET", f"{SPACE}/pods/{pod}")["spec"]["nodeName"])

    def run(self, job: str) -> Json:
        found: Json = json.loads((self.folder / NAMESPACE / job / "run.json").read_text())
        return found

    def events(self, job: str) -> list[Json]:
        return [
            json.loads(line)
            for line in (self.folder / NAMESPACE / job / "events.jsonl").read_text().splitlines()
        ]

    def digest(self, job: str) -> Any:
        outcome = self.run(job)["outcome"]
        assert (outcome["status"], outcome["steps"]) == ("succeeded", STEPS), outcome
        return outcome["state_sha256"]

    def prove(self, job: str) -> Json:
        """Prove the run from outside the cluster, from its volume and its store."""
        line = [
            sys.executable,
            str(SCRIPTS / "prove_run.py"),
            "--run-dir",
            str(self.folder / NAMESPACE / job),
        ]
        environment = {**os.environ, **s3_variables(self.outside)}
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


def planted(job: str, fault: str, *steps: int) -> tuple[str, ...]:
    """The options that let rank 1 fail in these steps, one per attempt; see faults/."""
    variables = {
        "PYTHONPATH": Path(__file__).parent / "faults",
        "FAULT": fault,
        "FAULT_RANK": "1",
        "FAULT_STEPS": ",".join(str(step) for step in steps),
        "FAULT_MARKS": f"/{CLAIM}/faults/{job}",
    }
    return tuple(f"--env={name}={value}" for name, value in variables.items())


def reached(rows: Path, step: int) -> bool:
    if not rows.is_file():
        return False
    return any(json.loads(line).get("step", 0) >= step for line in rows.read_text().splitlines() if line)


def s3_variables(url: str) -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": url,
    }


def ray_version() -> str:
    code = "import importlib.metadata as m; print(m.version('ray'))"
    return subprocess.run([RAY_PYTHON, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture(scope="session", autouse=True)
def _kit() -> None:
    """Without the kit, skip before anything is trained."""
    kit()


@pytest.fixture(scope="session")
def compiled() -> None:
    """Compile the packages to bytecode; otherwise each new container compiles them again."""
    for python in filter(None, (sys.executable, RAY_PYTHON)):
        code = "import sysconfig; print(sysconfig.get_path('purelib'))"
        said = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
        packages = Path(said.stdout.strip())
        if not (packages / "torch" / "__pycache__").is_dir():
            subprocess.run([python, "-m", "compileall", "-q", "-j", "0", packages], timeout=600)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory, seaweedfs: Endpoint, compiled: None) -> Iterator[Nodes]:
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
        nodes.folder = nodes.claim(CLAIM)
        nodes.store = f"s3://{seaweedfs.new_bucket()}/jobs"
        nodes.outside = seaweedfs.url
        nodes.client = seaweedfs.client
        keys = s3_variables(f"http://s3.default.svc:{port}")
        nodes.request("POST", f"{SPACE}/secrets", {"metadata": {"name": "s3"}, "stringData": keys})
        yield nodes


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory, compiled: None) -> Any:
    """The digest of the state that two processes reach without Kubernetes."""
    run_dir = tmp_path_factory.mktemp("reference") / "run"
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    settings = {**SMALL, "data.prepared_directory": run_dir.parent / "prepared", "compute.network": "tcp"}
    line = [
        *(sys.executable, str(SCRIPTS / "train.py"), "--config", str(ROOT / "configs" / "smoke.yaml")),
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
