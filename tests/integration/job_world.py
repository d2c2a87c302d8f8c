"""A real control plane with the released operators of all kinds, in which jobs are planted and followed.

Pods are KWOK's: they end as their annotations say. On a node that nothing runs, the test itself writes
the statuses that only a kubelet writes. Many jobs run at the same time, each with a follower of its own.
"""

import contextlib
import importlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.integration.control_plane import kit, operator
from tests.waiting import wait_for

from trainyard.gateways.kubernetes.api import Api
from trainyard.gateways.kubernetes.cluster_access import Access, read_access
from trainyard.jobs.follow.job_view import follow_job
from trainyard.jobs.kinds import find_kind
from trainyard.jobs.state.job_state import JobState

Json = dict[str, Any]
END = "pod-end.stage.kwok.x-k8s.io"
NAMESPACE = "default"
WAIT_SECONDS = 120.0
NODES = 3
"""Pods of a planted job."""
BARE = {"bare": "true"}
"""The label of a node on which nothing runs: its pods stay as the test writes them."""


@dataclass
class World:
    """The plane, its operators, and a stand-in for Ray's dashboard."""

    plane: Any
    ray: Any
    operators: dict[str, Any]
    access: Access = field(init=False)

    def __post_init__(self) -> None:
        path = Path(self.plane.kubeconfig)
        self.access = read_access(json.loads(path.read_text()), path=path)

    def request(self, method: str, path: str, body: Json | None = None) -> Json:
        answer: Json = self.plane.request(method, path, body)
        return answer

    def create(self, kind: str, body: Json, *parts: tuple[str, Json]) -> None:
        for path, part in parts:
            self.request("POST", path, part)

        def created() -> bool:
            try:
                self.request("POST", find_kind(kind).path(NAMESPACE), body)
            except RuntimeError as error:
                if "must be created before the TrainJob" in str(error):  # the webhook has not seen it yet
                    return False
                raise
            return True

        wait_for(created, f"{body['metadata']['name']} to be created", within=15)

    def job(self, kind: str, name: str) -> Json:
        return self.request("GET", find_kind(kind).path(NAMESPACE, name))

    def change(self, kind: str, name: str, body: Json) -> None:
        self.request("PATCH", find_kind(kind).path(NAMESPACE, name), body)

    def delete(self, kind: str, name: str) -> None:
        self.request("DELETE", find_kind(kind).path(NAMESPACE, name), {"propagationPolicy": "Background"})

    def pods(self, name: str) -> dict[str, Json]:
        """The pods of a job by name."""
        path = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=trainyard.dev/job={name}"
        return {pod["metadata"]["name"]: pod for pod in self.request("GET", path)["items"]}

    def running(self, name: str, count: int = NODES) -> dict[str, Json]:
        """Wait until `count` pods run, and return them."""

        def found() -> dict[str, Json]:
            pods = {n: p for n, p in self.pods(name).items() if p["status"].get("phase") == "Running"}
            return pods if len(pods) == count else {}

        pods: dict[str, Json] = wait_for(found, f"{count} pods of {name} to run")
        return pods

    def pod(self, name: str, rank: int, count: int = NODES) -> str:
        """The name of the pod of this rank, once all pods run."""
        for pod_name, pod in self.running(name, count).items():
            labels = pod["metadata"]["labels"]
            index = labels.get("training.kubeflow.org/replica-index")
            if index is not None:
                found = int(index) + (labels["training.kubeflow.org/replica-type"] == "worker")
            else:
                found = int(labels.get("batch.kubernetes.io/job-completion-index", -1))
            if found == rank:
                return pod_name
        raise AssertionError(f"no pod of rank {rank} in {name}")

    def end(self, pod: str, code: int = 0, *, reason: str = "", message: str = "") -> None:
        """Let the pod end with this exit code, reason and message."""
        said = {"phase": "Failed" if code else "Succeeded", "exit-code": str(code)}
        said |= {"reason": reason} if reason else {}
        said |= {"message": message} if message else {}
        notes = {f"{END}/{key}": value for key, value in said.items()}
        self.request(
            "PATCH", f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}", {"metadata": {"annotations": notes}}
        )

    def end_all(self, name: str, count: int = NODES) -> None:
        """Let the job succeed: the master where there is one, else every pod."""
        pods = self.running(name, count)
        masters = [
            n
            for n, p in pods.items()
            if p["metadata"]["labels"].get("training.kubeflow.org/replica-type") == "master"
        ]
        for pod in masters or pods:
            self.end(pod)

    def write_status(self, pod: str, status: Json) -> None:
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/status"
        self.request("PATCH", path, {"status": status})

    def replaced(self, name: str, pod: str, uid: str) -> None:
        """Wait until all pods run again and `pod` is another one."""

        def done() -> bool:
            pods = self.running(name)
            return all(p["metadata"]["uid"] != uid for p in pods.values())

        wait_for(done, f"{pod} to be made anew")

    def uid(self, pod: str) -> str:
        return str(self.request("GET", f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}")["metadata"]["uid"])

    def follow(
        self, kind: str, name: str, seconds: float = WAIT_SECONDS, seen: list[JobState] | None = None
    ) -> JobState:
        told: list[JobState] = [] if seen is None else seen
        return follow_job(
            Api(self.access), namespace=NAMESPACE, name=name, kind=kind, seconds=seconds, on_state=told.append
        )


@contextlib.contextmanager
def world(directory: Path, *names: str) -> Iterator[World]:
    """A plane with these operators."""
    kit()
    control_plane, dashboard = (
        importlib.import_module("control_plane"),
        importlib.import_module("ray_dashboard"),
    )
    with contextlib.ExitStack() as held:
        plane = held.enter_context(control_plane.ControlPlane(directory / "plane", nodes=8))
        ray = held.enter_context(dashboard.RayDashboard())
        operators = {}
        for name in names:
            environment = ray.environment if name == "kuberay" else None
            running = operator(name, plane, directory / name, environment=environment)
            operators[name] = held.enter_context(running)
        bare = {
            "metadata": {"name": "bare-0", "labels": BARE},
            "spec": {"taints": [{"key": "bare", "effect": "NoSchedule"}]},
            "status": {"capacity": {"cpu": "999", "memory": "9Ti", "pods": "500"}, "conditions": [READY]},
        }
        plane.request("POST", "/api/v1/nodes", bare)
        yield World(plane, ray, operators)


READY = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": None}


def labels_of(name: str, kind: str) -> Json:
    return {
        "app.kubernetes.io/managed-by": "trainyard",
        "app.kubernetes.io/name": "trainyard-job",
        "trainyard.dev/job": name,
        "trainyard.dev/kind": kind,
    }


def template_of(name: str, kind: str, container: str, **spec: Any) -> Json:
    """A pod that KWOK keeps running; on the bare node with `bare=True`."""
    on_bare = spec.pop("bare", False)
    body: Json = {"containers": [{"name": container, "image": "example.com/training:1"}], **spec}
    if on_bare:
        body |= {"nodeSelector": BARE, "tolerations": [{"operator": "Exists"}]}
    notes = {f"{END}/phase": "Never"}
    return {"metadata": {"labels": labels_of(name, kind), "annotations": notes}, "spec": body}


def metadata_of(name: str, kind: str) -> Json:
    return {"name": name, "labels": labels_of(name, kind), "annotations": {"trainyard.dev/retries": "0"}}


def pytorchjob(name: str, *, restart: str = "ExitCode", policy: Json | None = None, **pod: Any) -> Json:
    template = template_of(name, "pytorchjob", "pytorch", **pod)
    del template["metadata"]["annotations"]  # its pods belong to no Job
    replica = {"restartPolicy": restart, "template": template}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": metadata_of(name, "pytorchjob"),
        "spec": {
            "runPolicy": {"cleanPodPolicy": "Running", **(policy or {})},
            "pytorchReplicaSpecs": {
                "Master": {"replicas": 1, **replica},
                "Worker": {"replicas": NODES - 1, **replica},
            },
        },
    }


def trainjob(name: str) -> Json:
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": metadata_of(name, "trainjob"),
        "spec": {
            "runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": name},
            "trainer": {"numNodes": NODES, "image": "example.com/training:1"},
        },
    }


def training_runtime(name: str, *, retries: int = 0, restarts: int = 0, **pod: Any) -> tuple[str, Json]:
    """The runtime of one TrainJob: where it is created, and its body."""
    template = template_of(name, "trainjob", "node", restartPolicy="Never", **pod)
    labels = {**labels_of(name, "trainjob"), "trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    node = {
        "name": "node",
        "template": {"metadata": {"labels": labels}, "spec": {"backoffLimit": retries, "template": template}},
    }
    jobs = {"replicatedJobs": [node], "failurePolicy": {"maxRestarts": restarts}}
    body = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": {
            "name": name,
            "labels": {**labels_of(name, "trainjob"), "trainer.kubeflow.org/framework": "torch"},
        },
        "spec": {"mlPolicy": {"numNodes": NODES, "torch": {}}, "template": {"spec": jobs}},
    }
    return f"/apis/trainer.kubeflow.org/v1alpha1/namespaces/{NAMESPACE}/trainingruntimes", body


def rayjob(name: str, **spec: Any) -> Json:
    def group(container: str) -> Json:
        return {"rayStartParams": {}, "template": template_of(name, "rayjob", container)}

    count = NODES - 1
    workers = {"groupName": "gpu", "replicas": count, "minReplicas": count, "maxReplicas": count}
    cluster = {"headGroupSpec": group("ray-head"), "workerGroupSpecs": [{**workers, **group("ray-worker")}]}
    common = {"entrypoint": "python train.py", "submissionMode": "HTTPMode", "shutdownAfterJobFinishes": True}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": metadata_of(name, "rayjob"),
        "spec": {**common, "rayClusterSpec": cluster, **spec},
    }
