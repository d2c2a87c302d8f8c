"""The API of each kind of job: its names and paths, and the label by which its operator marks its pods."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainyard.errors import ConfigError
from trainyard.jobs.job_labels import JOB_LABEL

Json = Mapping[str, Any]


@dataclass(frozen=True)
class KindOfJob:
    """One kind of job."""

    name: str
    api_kind: str
    group: str
    version: str
    resource: str
    pod_label: str
    """The operator's label that holds the job's name on its pods."""
    suspend: tuple[str, ...] = ("spec", "suspend")
    """The path of the field that stops the pods and keeps the object; empty if none is known."""

    def path(self, namespace: str, name: str = "") -> str:
        """The API path of these jobs in a namespace (empty: in all), or of one job."""
        space = f"/namespaces/{namespace}" if namespace else ""
        return f"/apis/{self.group}/{self.version}{space}/{self.resource}" + (f"/{name}" if name else "")

    def pod_selector(self, job: Json) -> str:
        """The label selector of the job's pods: our label if the job has it, else the operator's."""
        meta = job.get("metadata") or {}
        own = (meta.get("labels") or {}).get(JOB_LABEL)
        return f"{JOB_LABEL}={own}" if own else f"{self.pod_label}={self._marked_with(job)}"

    def _marked_with(self, job: Json) -> str:
        if self.name == "rayjob":  # its pods belong to a RayCluster with a name of its own
            return str((job.get("status") or {}).get("rayClusterName") or "")
        return str((job.get("metadata") or {}).get("name"))


_RUN_POLICY = ("spec", "runPolicy", "suspend")
KINDS_OF_JOBS = (
    KindOfJob(
        "pytorchjob",
        "PyTorchJob",
        "kubeflow.org",
        "v1",
        "pytorchjobs",
        "training.kubeflow.org/job-name",
        _RUN_POLICY,
    ),
    KindOfJob(
        "trainjob",
        "TrainJob",
        "trainer.kubeflow.org",
        "v1alpha1",
        "trainjobs",
        "jobset.sigs.k8s.io/jobset-name",
    ),
    KindOfJob("rayjob", "RayJob", "ray.io", "v1", "rayjobs", "ray.io/cluster"),
    KindOfJob("raycluster", "RayCluster", "ray.io", "v1", "rayclusters", "ray.io/cluster"),
    KindOfJob(
        "hyperpod",
        "HyperPodPyTorchJob",
        "sagemaker.amazonaws.com",
        "v1",
        "hyperpodpytorchjobs",
        "job-name",
        (),
    ),
)


def kind_of_job(name: str) -> KindOfJob:
    """The kind of this name. Raises ConfigError."""
    kinds = {kind.name: kind for kind in KINDS_OF_JOBS}
    if name not in kinds:
        raise ConfigError(f"{name}: not a kind of job; known: {', '.join(kinds)}")
    return kinds[name]


def name_of(raw: Json) -> str:
    return str((raw.get("metadata") or {}).get("name") or "")


def uid_of(raw: Json) -> str:
    return str((raw.get("metadata") or {}).get("uid") or "")


def annotations_of(raw: Json) -> Json:
    found: Json = (raw.get("metadata") or {}).get("annotations") or {}
    return found


def read_labels(raw: Json) -> Json:
    found: Json = (raw.get("metadata") or {}).get("labels") or {}
    return found
