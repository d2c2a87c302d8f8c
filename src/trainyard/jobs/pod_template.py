"""The pods of a job, equal for all kinds: one container with the plan's resources and no extra rights.

Requests equal limits, so that these pods are evicted last. A kind adds its container's name, its command and
its labels.
"""

import json
from typing import Any

from trainyard.cluster.pod_fragment import merge_fragment
from trainyard.cluster.snapshot import ZONE
from trainyard.jobs.job_object import EFA_LABEL, JOB_LABEL, make_labels
from trainyard.jobs.job_spec import FILES_DIRECTORY, SCRATCH, JobSpec, PodResources
from trainyard.plan.instances import EFA, GPU

Json = dict[str, Any]
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
SHARED_MEMORY = "/dev/shm"  # noqa: S108
HYPERPOD = {
    "sagemaker.amazonaws.com/compute-type": "hyperpod",
    "sagemaker.amazonaws.com/node-health-status": "Schedulable",
}
"""Labels of HyperPod's nodes that are neither faulty nor being replaced."""
NO_SIDECAR = {"sidecar.istio.io/inject": "false"}
"""Keeps Istio's proxy out of a pod: it takes over the port of the rendezvous, and it never ends."""
NOT_DISRUPTED = {"karpenter.sh/do-not-disrupt": "true"}
"""Keeps Karpenter from moving the pod to another node to save cost."""
_NEAR = (
    ("topology.k8s.aws/network-node-layer-3", 100),
    ("topology.k8s.aws/network-node-layer-2", 50),
    (ZONE, 20),
)
"""Node labels that the pods of one job should share, nearest first, with their weights."""
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_KUEUE = "kueue.x-k8s.io/podset"
_LAST_SECONDS = 5
"""The time between torchrun ending its workers and the end of the pod."""


def pod_template(plan: JobSpec, container: str, *, command: bool = True, in_pair: bool = False) -> Json:
    """Return the template of the job's pods; without `command` the image or the operator chooses it.

    `in_pair`: the job has another template, of one pod, and Kueue must place both together.
    """
    metadata: Json = {
        "labels": {**make_labels(plan.name, plan.kind), **NO_SIDECAR},
        "annotations": dict(NOT_DISRUPTED),
    }
    if plan.zone is not None:
        metadata["labels"][EFA_LABEL] = "true"
    if plan.queue and plan.topology:
        how = "required" if plan.is_joined_by_efa else "preferred"
        metadata["annotations"][f"{_KUEUE}-{how}-topology"] = plan.topology
        if plan.is_joined_by_efa and in_pair:  # else Kueue requires it of each template by itself
            metadata["annotations"][f"{_KUEUE}-group-name"] = "trainyard"
    spec = _pod_spec(plan, _container(plan, container, command=command))
    template = merge_fragment({"metadata": metadata, "spec": spec}, plan.template, container)
    if plan.zone is not None:  # also in the node affinity of the fragment
        set_zone(template["spec"]["affinity"], plan.zone)
    return template


def _pod_spec(plan: JobSpec, container: Json) -> Json:
    spec: Json = {
        "containers": [container],
        "terminationGracePeriodSeconds": plan.grace_seconds,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": _pod_security(plan),
        "tolerations": [{"key": key, "operator": "Exists"} for key in plan.tolerated_taints],
        "volumes": [{"name": name, **source} for name, source, _ in _volumes(plan)],
    }
    of_type = {INSTANCE_TYPE: plan.instance_type} if plan.instance_type else {}
    if selector := {**plan.node_selector, **of_type, **(HYPERPOD if plan.on_hyperpod else {})}:
        spec["nodeSelector"] = selector
    if plan.nodes > 1:
        spec["affinity"] = _affinity(plan)
    if plan.service_account:
        spec["serviceAccountName"] = plan.service_account
    if plan.priority_class:
        spec["priorityClassName"] = plan.priority_class
    return spec


def _container(plan: JobSpec, name: str, *, command: bool) -> Json:
    """Return the container that runs the program."""
    container: Json = {
        "name": name,
        "image": plan.image,
        "env": container_environment(plan),
        "resources": resources_of(plan.resources),
        "securityContext": container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": name, "mountPath": path, **({"readOnly": True} if path == FILES_DIRECTORY else {})}
            for name, _, path in _volumes(plan)
        ],
    }
    if command:
        container["command"] = list(plan.program.command)
    if plan.program.directory:
        container["workingDir"] = plan.program.directory
    if plan.secret_environment:
        container["envFrom"] = [{"secretRef": {"name": plan.secret_environment}}]
    return container


def container_security() -> Json:
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def resources_of(resources: PodResources) -> dict[str, dict[str, str]]:
    """Return the requests and limits of one pod in Kubernetes' notation."""
    millis = resources.cpu_millis
    cpu = f"{millis}m" if millis % 1000 else str(millis // 1000)
    amounts = {"cpu": cpu, "memory": f"{resources.memory_mib}Mi"}
    for name, amount in ((GPU, resources.gpus), (EFA, resources.efa)):
        if amount:
            amounts[name] = str(amount)
    if resources.hugepages_mib:
        amounts["hugepages-2Mi"] = f"{resources.hugepages_mib}Mi"
    return {"requests": amounts, "limits": dict(amounts)}


def container_environment(plan: JobSpec) -> list[Json]:
    """Return the container's variables, sorted by name; secrets are references."""
    plain = {
        "HOME": SCRATCH,  # a user without an entry in the image's /etc/passwd has no home
        "USER": "trainyard",
        "TRAINYARD_RUN_ID": plan.run_id or plan.name,
        "TRAINYARD_NETWORK": plan.network,
        "TRAINYARD_REQUESTS": json.dumps(plan.resources.of_machine),
        **({"TRAINYARD_OWNER": plan.owner} if plan.program.keeps_run else {}),
        **_network_facts(plan),
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(plan.grace_seconds - _LAST_SECONDS),
        # The image by its name and digest, so that a proof can ask the registry for it.
        **({"TRAINYARD_IMAGE_DIGEST": plan.image} if "@" in plan.image else {}),
        **plan.environment,
    }
    found: list[Json] = [{"name": name, "value": value} for name, value in plain.items()]
    for name, field in (("TRAINYARD_POD", "metadata.name"), ("TRAINYARD_NODE", "spec.nodeName")):
        found.append({"name": name, "valueFrom": {"fieldRef": {"fieldPath": field}}})
    for secret in plan.secrets:
        reference = {"name": secret.secret, "key": secret.key}
        found.append({"name": secret.name, "valueFrom": {"secretKeyRef": reference}})
    return sorted(found, key=lambda entry: str(entry["name"]))


def _network_facts(plan: JobSpec) -> dict[str, str]:
    """Return the variables that decide which network the logs of several pods must show."""
    if plan.nodes == 1:
        return {}
    kind = {"TRAINYARD_INSTANCE_TYPE": plan.instance_type} if plan.instance_type else {}
    return {"TRAINYARD_EFA_INTERFACES": str(plan.resources.efa), **kind}


def _pod_security(plan: JobSpec) -> Json:
    found: Json = {"seccompProfile": {"type": "RuntimeDefault"}}
    if plan.run_as_user is None:
        return found
    found |= {"runAsUser": plan.run_as_user, "runAsGroup": plan.run_as_user}
    if plan.run_as_user:
        found["runAsNonRoot"] = True
        if not plan.shared_claim:  # else Kubernetes would give all files of others there to this group
            found |= {"fsGroup": plan.run_as_user, "fsGroupChangePolicy": "OnRootMismatch"}
    return found


def _volumes(plan: JobSpec) -> list[tuple[str, Json, str]]:
    """Return the volumes of a pod: name, source, and the place where they are mounted."""
    shared = {"medium": "Memory", "sizeLimit": f"{plan.resources.shared_memory_mib}Mi"}
    volumes: list[tuple[str, Json, str]] = [
        ("shared-memory", {"emptyDir": shared}, SHARED_MEMORY),
        ("scratch", {"emptyDir": {}}, SCRATCH),
    ]
    if plan.program.files:
        volumes.append(("files", {"configMap": {"name": plan.files_name}}, FILES_DIRECTORY))
    if plan.claim:
        claim = {"persistentVolumeClaim": {"claimName": plan.claim}}
        volumes.append(("checkpoints", claim, plan.mount_path))
    if plan.resources.hugepages_mib:
        volumes.append(("hugepages", {"emptyDir": {"medium": "HugePages-2Mi"}}, "/dev/hugepages"))
    return volumes


def _affinity(plan: JobSpec) -> Json:
    """Require one zone of pods that EFA joins. Prefer nodes that are close together, and a node per pod."""
    ours = {"matchLabels": {JOB_LABEL: plan.name}}
    near = [
        {"weight": weight, "podAffinityTerm": {"topologyKey": key, "labelSelector": ours}}
        for key, weight in _NEAR
    ]
    apart = {
        "weight": 100,
        "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname", "labelSelector": ours},
    }
    affinity: Json = {"podAffinity": {_PREFERRED: near}, "podAntiAffinity": {_PREFERRED: [apart]}}
    if plan.zone is not None:
        # The scheduler admits the first pod, which matches its own term.
        joined = {"matchLabels": {**ours["matchLabels"], EFA_LABEL: "true"}}
        affinity["podAffinity"][_REQUIRED] = [{"topologyKey": ZONE, "labelSelector": joined}]
    return affinity


def set_zone(affinity: Json, zone: str) -> None:
    """Let pods with this affinity run in `zone` only, if their job is kept in one zone; empty: in any one."""
    guards = (affinity.get("podAffinity") or {}).get(_REQUIRED) or ()
    if not any(EFA_LABEL in str(guard.get("labelSelector")) for guard in guards):
        return
    nodes = affinity.setdefault("nodeAffinity", {})
    pin = [{"key": ZONE, "operator": "In", "values": [zone]}] if zone else []
    terms = []
    for term in nodes.pop(_REQUIRED, {}).get("nodeSelectorTerms") or [{}]:
        kept = [each for each in term.pop("matchExpressions", ()) if each["key"] != ZONE]
        terms.append({**term, **({"matchExpressions": kept + pin} if kept + pin else {})})
    if all(terms):  # an empty term would match no node
        nodes[_REQUIRED] = {"nodeSelectorTerms": terms}
    if not nodes:
        del affinity["nodeAffinity"]
