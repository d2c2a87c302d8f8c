"""Reduce JSON objects of the Kubernetes API to the values of `snapshot`. It judges nothing.

A field that is missing, null or of another type than the API promises counts as absent, because an answer may
come from a proxy or a newer server.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from trainyard.cluster.resource_quantities import NotAQuantityError, thousandths
from trainyard.cluster.snapshot import (
    Amounts,
    ClusterQueue,
    Condition,
    Flavor,
    FlavorQuota,
    Node,
    Pod,
    Queue,
    Quota,
    Taint,
    Workload,
)

Json = Mapping[str, Any]
ENDED = ("Succeeded", "Failed")
_ANNOTATIONS = ("sagemaker.amazonaws.com/", "node.kubernetes.io/", "eks.amazonaws.com/")
_JOB_LABELS = (
    "training.kubeflow.org/job-name",
    "jobset.sigs.k8s.io/jobset-name",
    "ray.io/cluster",
    "batch.kubernetes.io/job-name",
    "job-name",
)


def node_of(raw: Json) -> Node:
    meta, spec, status = _part(raw, "metadata"), _part(raw, "spec"), _part(raw, "status")
    annotations = {k: str(v) for k, v in _part(meta, "annotations").items() if k.startswith(_ANNOTATIONS)}
    return Node(
        name=_text(meta, "name"),
        labels=_texts(meta, "labels"),
        annotations=annotations,
        taints=tuple(
            Taint(*(_text(t, key) for key in ("key", "value", "effect"))) for t in _items(spec, "taints")
        ),
        cordoned=bool(spec.get("unschedulable")),
        capacity=amounts(status.get("capacity")),
        allocatable=amounts(status.get("allocatable")),
        conditions=conditions_of(status),
        os_image=_text(_part(status, "nodeInfo"), "osImage"),
    )


def pod_of(raw: Json) -> Pod | None:
    """Return the pod; None if it has ended, because it then holds nothing."""
    meta, spec, status = _part(raw, "metadata"), _part(raw, "spec"), _part(raw, "status")
    if status.get("phase") in ENDED:
        return None
    waiting = _waiting(status)
    return Pod(
        namespace=_text(meta, "namespace"),
        name=_text(meta, "name"),
        node=_text(spec, "nodeName"),
        requests=pod_requests(spec),
        owner=_owner(meta),
        priority=_whole(spec.get("priority")),
        waiting=waiting,
        images=tuple(_text(c, "image") for c in _items(spec, "containers")) if waiting else (),
    )


def read_workload(raw: Json, kind: str) -> Workload:
    meta, spec, status = _part(raw, "metadata"), _part(raw, "spec"), _part(raw, "status")
    template = _part(spec, "template")
    daemon = kind == "DaemonSet"
    return Workload(
        namespace=_text(meta, "namespace"),
        name=_text(meta, "name"),
        labels={**_texts(meta, "labels"), **_texts(_part(template, "metadata"), "labels")},
        images=tuple(_text(c, "image") for c in _items(_part(template, "spec"), "containers")),
        wanted=_whole(status.get("desiredNumberScheduled") if daemon else spec.get("replicas", 1)),
        available=_whole(status.get("numberAvailable" if daemon else "availableReplicas")),
    )


def hook_targets_of(raw: Json) -> tuple[str, ...]:
    """Return `resource.group` of each kind whose creation calls a webhook of this configuration.

    Kueue's webhooks judge the jobs of other controllers, which proves nothing about those: they are left out,
    and so are webhooks without which the API server continues.
    """
    rules = [
        (group, resource)
        for hook in _items(raw, "webhooks")
        if hook.get("failurePolicy") != "Ignore"
        for rule in _items(hook, "rules")
        if {"CREATE", "*"} & set(_strings(rule, "operations"))
        for group in _strings(rule, "apiGroups")
        for resource in _strings(rule, "resources")
    ]
    if any(group == "kueue.x-k8s.io" for group, _ in rules):
        return ()
    return tuple(f"{resource}.{group}" for group, resource in rules)


def quota_of(raw: Json) -> Quota:
    status, spec = _part(raw, "status"), _part(raw, "spec")
    hard, used = amounts(status.get("hard") or spec.get("hard")), amounts(status.get("used"))
    has_scopes = bool(spec.get("scopes") or _part(spec, "scopeSelector").get("matchExpressions"))
    return Quota(_text(_part(raw, "metadata"), "name"), hard, used, has_scopes)


def queue_of(raw: Json) -> Queue:
    spec = _part(raw, "spec")
    active, reason = _activity(_part(raw, "status"))
    return Queue(
        name=_text(_part(raw, "metadata"), "name"),
        cluster_queue=_text(spec, "clusterQueue"),
        active=active,
        reason=reason,
        stopped=_text(spec, "stopPolicy") not in ("", "None"),
    )


def cluster_queue_of(raw: Json) -> ClusterQueue:
    spec, status = _part(raw, "spec"), _part(raw, "status")
    active, reason = _activity(status)
    used = {
        (flavor, name): _amount(item.get("total"))
        for flavor, name, item in _flavor_resources(_items(status, "flavorsReservation"))
    }
    flavors = (flavor for group in _items(spec, "resourceGroups") for flavor in _items(group, "flavors"))
    quotas = tuple(
        FlavorQuota(flavor, name, _amount(item.get("nominalQuota")), used.get((flavor, name), 0))
        for flavor, name, item in _flavor_resources(flavors)
    )
    return ClusterQueue(
        name=_text(_part(raw, "metadata"), "name"),
        cohort=_text(spec, "cohortName") or _text(spec, "cohort"),
        active=active,
        reason=reason,
        stopped=_text(spec, "stopPolicy") not in ("", "None"),
        pending=_whole(status.get("pendingWorkloads")),
        quotas=quotas,
    )


def _flavor_resources(flavors: Iterable[Json]) -> Iterator[tuple[str, str, Json]]:
    for flavor in flavors:
        for item in _items(flavor, "resources"):
            yield _text(flavor, "name"), _text(item, "name"), item


def flavor_of(raw: Json) -> Flavor:
    return Flavor(_text(_part(raw, "metadata"), "name"), _texts(_part(raw, "spec"), "nodeLabels"))


def _activity(status: Json) -> tuple[bool, str]:
    """Return whether a queue is active, and why not. A queue without a condition counts as inactive."""
    found = next((c for c in conditions_of(status) if c.type == "Active"), None)
    if found is None:
        return False, "Kueue has not judged it: is its controller running?"
    return found.status == "True", found.message or found.reason


def pod_requests(spec: Json) -> Amounts:
    """Return the amounts that the scheduler reserves for a pod.

    Containers and sidecars together, or the largest init container with the sidecars started before it; then
    the requests of the pod itself, and its overhead. (k8s.io/component-helpers/resource, PodRequests.)
    """
    total, sidecars, peak = Counter[str](), Counter[str](), Counter[str]()
    for container in _items(spec, "containers"):
        total.update(_requests(container))
    for container in _items(spec, "initContainers"):
        own = Counter(_requests(container))
        peak |= sidecars + own
        if container.get("restartPolicy") == "Always":
            sidecars += own
    total = (total + sidecars) | peak
    for name, amount in _requests(spec).items():
        if name in ("cpu", "memory") or name.startswith("hugepages-"):
            total[name] = amount
    total.update(amounts(spec.get("overhead")))
    return dict(total)


def _requests(container: Json) -> Amounts:
    """Use limits where requests are absent, as the API server does."""
    resources = _part(container, "resources")
    requests, limits = resources.get("requests"), resources.get("limits")
    return {**amounts(limits), **amounts(requests)} if limits else amounts(requests)


def amounts(raw: Any) -> Amounts:
    """Resource -> thousandths; values that are not quantities are left out."""
    if not isinstance(raw, dict) or not raw:
        return {}
    return {str(name): _amount(text) for name, text in raw.items()}


def _amount(text: Any) -> int:
    try:
        return thousandths(text) if isinstance(text, str | int) else 0
    except NotAQuantityError:
        return 0


def conditions_of(status: Json) -> tuple[Condition, ...]:
    return tuple(
        Condition(_text(c, "type"), _text(c, "status"), _text(c, "reason"), _text(c, "message")[:300])
        for c in _items(status, "conditions")
    )


def _owner(meta: Json) -> str:
    labels = _part(meta, "labels")
    job = next((str(labels[name]) for name in _JOB_LABELS if labels.get(name)), "")
    if job:
        return job
    owners = _items(meta, "ownerReferences")
    return f"{_text(owners[0], 'kind')}/{_text(owners[0], 'name')}" if owners else _text(meta, "name")


def _waiting(status: Json) -> str:
    for container in (*_items(status, "initContainerStatuses"), *_items(status, "containerStatuses")):
        reason = _text(_part(_part(container, "state"), "waiting"), "reason")
        if reason:
            return reason
    for condition in _items(status, "conditions"):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return _text(condition, "reason") or "Unschedulable"
    return ""


def _part(raw: Json, name: str) -> Json:
    found = raw.get(name)
    return found if isinstance(found, dict) else {}


def _items(raw: Json, name: str) -> tuple[Json, ...]:
    found = raw.get(name)
    return tuple(item for item in found if isinstance(item, dict)) if isinstance(found, list) else ()


def _strings(raw: Json, name: str) -> tuple[str, ...]:
    found = raw.get(name)
    return tuple(item for item in found if isinstance(item, str)) if isinstance(found, list) else ()


def _text(raw: Json, name: str) -> str:
    found = raw.get(name)
    return found if isinstance(found, str) else ""


def _texts(raw: Json, name: str) -> Mapping[str, str]:
    return {key: value for key, value in _part(raw, name).items() if isinstance(value, str)}


def _whole(found: Any) -> int:
    return found if isinstance(found, int) and not isinstance(found, bool) else 0
