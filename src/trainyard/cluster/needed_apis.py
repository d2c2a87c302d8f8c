"""The APIs and controllers that a cluster must have for each kind of job.

The names and labels of the controllers are those of their released manifests and of HyperPod's charts.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

from trainyard.cluster.demand import GPU, KINDS, Demand

TRIAL_NAME = "trainyard-preflight"
_ANY_IMAGE = "registry.invalid/trainyard-preflight"
_MANIFESTS = {
    "kubeflow.org": "training_operator",
    "trainer.kubeflow.org": "trainer",
    "jobset.x-k8s.io": "jobset",
    "ray.io": "kuberay",
}


@dataclass(frozen=True)
class NeededApi:
    """A kind of object that the cluster must serve."""

    group: str
    version: str
    resource: str
    installs: str
    """The software that installs it."""

    @property
    def name(self) -> str:
        return f"{self.resource}.{self.group}"

    @property
    def group_version(self) -> str:
        return f"{self.group}/{self.version}"

    @property
    def manifest(self) -> str:
        """The key of cluster.manifests for the software that installs it; empty for an add-on of EKS."""
        return _MANIFESTS.get(self.group, "")


@dataclass(frozen=True)
class Controller:
    """The controller that acts on the objects; without it nothing happens to them."""

    name: str
    """Name for people."""
    deployments: tuple[str, ...]
    """Names of the Deployment by the ways to install it; a part of a longer name counts too."""
    labels: tuple[str, ...] = ()
    """Values of its label `control-plane`."""
    others: tuple[str, ...] = ()
    """Parts of names of other controllers that hold one of `deployments`."""


@dataclass(frozen=True)
class JobKind:
    name: str
    api_kind: str
    apis: tuple[NeededApi, ...]
    """The kind itself first, then the kinds that it consists of."""
    controllers: tuple[Controller, ...]

    @property
    def api(self) -> NeededApi:
        return self.apis[0]


_TRAINING_OPERATOR = Controller(
    "training operator",
    ("training-operator",),
    labels=("kubeflow-training-operator",),
    others=("hp-training-operator", "hyperpod-training-operator"),
)
_KUBERAY = Controller("KubeRay operator", ("kuberay-operator",))
_JOBSET = Controller("JobSet controller", ("jobset-controller-manager", "jobset-controller"))
_RAY = "the KubeRay operator"
JOB_KINDS = (
    JobKind(
        "pytorchjob",
        "PyTorchJob",
        (NeededApi("kubeflow.org", "v1", "pytorchjobs", "the Kubeflow training operator"),),
        (_TRAINING_OPERATOR,),
    ),
    JobKind(
        "trainjob",
        "TrainJob",
        (
            NeededApi("trainer.kubeflow.org", "v1alpha1", "trainjobs", "Kubeflow Trainer 2"),
            NeededApi("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet, which Kubeflow Trainer 2 brings"),
        ),
        (
            Controller(
                "Trainer controller", ("kubeflow-trainer-controller-manager", "trainer-controller-manager")
            ),
            _JOBSET,
        ),
    ),
    JobKind("rayjob", "RayJob", (NeededApi("ray.io", "v1", "rayjobs", _RAY),), (_KUBERAY,)),
    JobKind("raycluster", "RayCluster", (NeededApi("ray.io", "v1", "rayclusters", _RAY),), (_KUBERAY,)),
    JobKind(
        "hyperpod",
        "HyperPodPyTorchJob",
        (
            NeededApi(
                "sagemaker.amazonaws.com",
                "v1",
                "hyperpodpytorchjobs",
                "the add-on HyperPod training operator",
            ),
        ),
        (
            Controller(
                "HyperPod training operator",
                ("hp-training-operator-hp-training-controller-manager", "hyperpod-training-operator"),
            ),
        ),
    ),
)
"""In the order in which `auto` tries them."""
GROUPS = tuple(dict.fromkeys(api.group for kind in JOB_KINDS for api in kind.apis))


def choose_kind(
    demand: Demand, resources: Mapping[str, tuple[str, ...]], undiscovered: Container[str] = ()
) -> JobKind:
    """The kind that is demanded; for auto the first that is or may be served, else the first of all."""
    assert demand.kind in KINDS
    for kind in JOB_KINDS:
        possible = serves(kind.api, resources) or kind.api.group_version in undiscovered
        if demand.kind == kind.name or (demand.kind == "auto" and possible):
            return kind
    return JOB_KINDS[0]


def serves(api: NeededApi, resources: Mapping[str, tuple[str, ...]]) -> bool:
    return api.resource in resources.get(api.group_version, ())


def trial_job(kind: JobKind, demand: Demand, *, runtime: str = "") -> dict[str, Any]:
    """A job of this kind for a dry run: the smallest one that its schema and webhooks accept."""
    labels = {"kueue.x-k8s.io/queue-name": demand.queue} if demand.queue else {}
    body: dict[str, Any] = {
        "apiVersion": f"{kind.api.group}/{kind.api.version}",
        "kind": kind.api_kind,
        "metadata": {"name": TRIAL_NAME, "namespace": demand.namespace, "labels": labels},
    }
    template = {"spec": {"containers": [_container("pytorch", demand)], "restartPolicy": "Never"}}
    ray = {"headGroupSpec": {"rayStartParams": {}, "template": template}}
    specs: dict[str, dict[str, Any]] = {
        "pytorchjob": {"pytorchReplicaSpecs": {"Master": {"replicas": 1, "template": template}}},
        "trainjob": {"runtimeRef": {"name": runtime or "torch-distributed"}},
        "raycluster": ray,
        "rayjob": {"entrypoint": "true", "rayClusterSpec": ray, "shutdownAfterJobFinishes": True},
        "hyperpod": {"replicaSpecs": [{"name": "pods", "replicas": 1, "template": template}]},
    }
    return {**body, "spec": specs[kind.name]}


def trial_pod(demand: Demand) -> dict[str, Any]:
    """A pod of the demanded shape for a dry run: admission judges quota, limits, security and priority."""
    spec: dict[str, Any] = {
        "containers": [_container("trainer", demand)],
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "tolerations": [{"key": key, "operator": "Exists"} for key in demand.tolerated],
    }
    if demand.priority_class:
        spec["priorityClassName"] = demand.priority_class
    if demand.service_account:
        spec["serviceAccountName"] = demand.service_account
    if demand.claim:
        spec["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": demand.claim}}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": TRIAL_NAME, "namespace": demand.namespace},
        "spec": spec,
    }


def _container(name: str, demand: Demand) -> dict[str, Any]:
    amounts = {"cpu": "1", "memory": "1Gi"}
    if demand.gpus_per_node:
        amounts[GPU] = str(demand.gpus_per_node)
    return {
        "name": name,
        "image": demand.image or _ANY_IMAGE,
        "resources": {"limits": amounts, "requests": amounts},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
