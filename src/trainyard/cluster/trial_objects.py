"""The objects that try a cluster out in a dry run: a job of a kind, and a pod of the demanded shape."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainyard.cluster.needed_apis import ServedKind
from trainyard.cluster.pod_fragment import merge_fragment
from trainyard.plan.instances import GPU, instance_called

if TYPE_CHECKING:
    from trainyard.jobs.job_spec import JobSpec

TRIAL_NAME = "trainyard-preflight"
Json = dict[str, Any]
_ANY_IMAGE = "registry.invalid/trainyard-preflight"


@dataclass(frozen=True)
class WrittenTrial:
    """A job that somebody else wrote: that object is tried, and a pod of it."""

    job: Json
    template: Json | None
    """None if the pods are decided by a runtime that was not seen."""
    has_runtime: bool = True
    """Whether the cluster has the runtime of a TrainJob, without which it cannot be tried."""

    def trial_job(self, namespace: str) -> Json:
        metadata = {**self.job["metadata"], "name": TRIAL_NAME, "namespace": namespace}
        return {**self.job, "metadata": metadata}

    def trial_pod(self, namespace: str) -> Json | None:
        if self.template is None:
            return None
        written = self.template.get("metadata") or {}
        kept = {key: written[key] for key in ("labels", "annotations") if written.get(key)}
        spec = {"restartPolicy": "Never", **self.template["spec"]}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**kept, "name": TRIAL_NAME, "namespace": namespace},
            "spec": spec,
        }


def trial_job(kind: ServedKind, job: "JobSpec", *, runtime: str = "") -> dict[str, Any]:
    """A job of this kind for a dry run: the smallest one that its schema and webhooks accept."""
    labels = {**job.labels, **({"kueue.x-k8s.io/queue-name": job.queue} if job.queue else {})}
    metadata = {"namespace": job.namespace, "labels": labels, "annotations": dict(job.annotations)}
    pod = {"spec": {"containers": [_container("pytorch", job)], "restartPolicy": "Never"}}
    template = merge_fragment(pod, job.template, "pytorch")
    return {
        "apiVersion": kind.api.group_version,
        "kind": kind.api_kind,
        "metadata": {"name": TRIAL_NAME, **metadata},
        "spec": kind.trial_spec(template, runtime),
    }


def trial_pod(job: "JobSpec") -> dict[str, Any]:
    """A pod of the demanded shape for a dry run: admission judges quota, limits, security and priority."""
    spec: dict[str, Any] = {
        "containers": [_container("trainer", job)],
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "tolerations": [{"key": key, "operator": "Exists"} for key in job.tolerated_taints],
    }
    if job.priority_class:
        spec["priorityClassName"] = job.priority_class
    if job.service_account:
        spec["serviceAccountName"] = job.service_account
    if job.claim:
        spec["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": job.claim}}]
    metadata = {"name": TRIAL_NAME, "namespace": job.namespace}
    pod = merge_fragment({"metadata": metadata, "spec": spec}, job.template, "trainer")
    return {"apiVersion": "v1", "kind": "Pod", **pod}


def _container(name: str, job: "JobSpec") -> dict[str, Any]:
    known = instance_called(job.instance_type)
    gpus = (known.gpus if known else 0) if job.gpus_per_node is None else job.gpus_per_node
    amounts = {"cpu": "1", "memory": "1Gi", **({GPU: str(gpus)} if gpus else {})}
    return {
        "name": name,
        "image": job.image or _ANY_IMAGE,
        "resources": {"limits": amounts, "requests": amounts},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
