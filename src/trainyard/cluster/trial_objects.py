"""The objects that try a cluster out in a dry run: a job of a kind, and a pod of the demanded shape."""

from typing import Any

from trainyard.cluster.demand import GPU, TOLERATED, Demand
from trainyard.cluster.needed_apis import ServedKind
from trainyard.cluster.pod_fragment import merge_fragment

TRIAL_NAME = "trainyard-preflight"
_ANY_IMAGE = "registry.invalid/trainyard-preflight"


def trial_job(kind: ServedKind, demand: Demand, *, runtime: str = "") -> dict[str, Any]:
    """A job of this kind for a dry run: the smallest one that its schema and webhooks accept."""
    labels = {**demand.labels, **({"kueue.x-k8s.io/queue-name": demand.queue} if demand.queue else {})}
    metadata = {"namespace": demand.namespace, "labels": labels, "annotations": dict(demand.annotations)}
    pod = {"spec": {"containers": [_container("pytorch", demand)], "restartPolicy": "Never"}}
    template = merge_fragment(pod, demand.template, "pytorch")
    return {
        "apiVersion": kind.api.group_version,
        "kind": kind.api_kind,
        "metadata": {"name": TRIAL_NAME, **metadata},
        "spec": kind.trial_spec(template, runtime),
    }


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
        "tolerations": [{"key": key, "operator": "Exists"} for key in (*TOLERATED, *demand.tolerations)],
    }
    if demand.priority_class:
        spec["priorityClassName"] = demand.priority_class
    if demand.service_account:
        spec["serviceAccountName"] = demand.service_account
    if demand.claim:
        spec["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": demand.claim}}]
    metadata = {"name": TRIAL_NAME, "namespace": demand.namespace}
    pod = merge_fragment({"metadata": metadata, "spec": spec}, demand.template, "trainer")
    return {"apiVersion": "v1", "kind": "Pod", **pod}


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
