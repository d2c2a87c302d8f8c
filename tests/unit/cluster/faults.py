"""Faults that are planted in generated clusters, each with the finding of a check.

The rule: the named check finds the fault with the named severity; its evidence and its remedy have the named
words; and no other check reports a problem, except those in `also`.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.unit.cluster.generated import (
    CLAIMS,
    CLASSES,
    DAEMONS,
    DEPLOYMENTS,
    DRIVERS,
    EFA,
    GPU,
    HOOKS,
    LIMITS,
    NAMESPACE,
    NAMESPACES,
    NODES,
    PODS,
    QUOTAS,
    VOLUMES,
    Cluster,
    State,
    node,
    pod,
    put,
    storage,
    workload,
)

Plant = Callable[[State, Cluster], None]


@dataclass(frozen=True)
class Fault:
    name: str
    plant: Plant
    check: str
    severity: str
    evidence: tuple[str, ...]
    remedy: tuple[str, ...]
    also: tuple[str, ...] = ()
    """Other checks that may report a problem because of it."""
    options: tuple[str, ...] = ()
    """Options of the command line, beside the cluster's own."""
    only: tuple[str, ...] = ()
    """Clusters in which it makes sense; empty: all."""
    leave_out: tuple[str, ...] = ()
    judged_by_server: bool = False
    """Only the admission of a real API server shows it."""


def each_gpu_node(change: Callable[[dict[str, Any]], None], count: int = 99) -> Plant:
    def plant(state: State, cluster: Cluster) -> None:
        for name in cluster.gpu_nodes[:count]:
            change(state[NODES][name])

    return plant


def amounts(resource: str, amount: str | None, *, capacity: bool = True) -> Callable[[dict[str, Any]], None]:
    def change(body: dict[str, Any]) -> None:
        for part in ("allocatable", "capacity") if capacity else ("allocatable",):
            body["status"][part].pop(resource, None)
            if amount is not None:
                body["status"][part][resource] = amount

    return change


def label(key: str, value: str) -> Callable[[dict[str, Any]], None]:
    return lambda body: body["metadata"]["labels"].update({key: value})


def taint(key: str) -> Callable[[dict[str, Any]], None]:
    return lambda body: body["spec"]["taints"].append({"key": key, "value": "x", "effect": "NoSchedule"})


def condition(kind: str, status: str, reason: str) -> Callable[[dict[str, Any]], None]:
    entry = {"type": kind, "status": status, "reason": reason, "message": reason}
    return lambda body: body["status"]["conditions"].append(entry)


def cordon(body: dict[str, Any]) -> None:
    body["spec"]["unschedulable"] = True


def without(path: str, *words: str) -> Plant:
    def plant(state: State, _: Cluster) -> None:
        for name in list(state.get(path, {})):
            if any(word in name for word in words):
                del state[path][name]

    return plant


def both(*plants: Plant) -> Plant:
    def plant(state: State, cluster: Cluster) -> None:
        for one in plants:
            one(state, cluster)

    return plant


def stall_workload(path: str, word: str) -> Plant:
    """Let the pods of a workload not become ready."""

    def plant(state: State, _: Cluster) -> None:
        for name, body in state[path].items():
            if word in name:
                status = body["status"]
                for key in ("numberAvailable", "numberReady", "availableReplicas"):
                    if key in status:
                        status[key] = 0
                container = body["spec"]["template"]["spec"]["containers"][0]
                container["resources"] = {"requests": {"cpu": "100k"}}

    return plant


def holders(gpus: int) -> Plant:
    def plant(state: State, cluster: Cluster) -> None:
        put(state, PODS, pod("busy-0", cluster.gpu_nodes[0], gpus=gpus))

    return plant


def with_storage(**arguments: Any) -> Plant:
    return lambda state, _: storage(state, **arguments)


def unbound(state: State, _: Cluster) -> None:
    del state[VOLUMES]["fsx"]
    claim = state[CLAIMS]["checkpoints"]
    claim["spec"].pop("volumeName")
    claim["status"]["phase"] = "Pending"


def quota(hard: dict[str, str]) -> Plant:
    body = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "team", "namespace": NAMESPACE},
        "spec": {"hard": hard},
        "status": {"hard": hard, "used": dict.fromkeys(hard, "0")},
    }
    return lambda state, _: put(state, QUOTAS, body)


def limit(item: dict[str, Any]) -> Plant:
    body = {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": "team", "namespace": NAMESPACE},
        "spec": {"limits": [item]},
    }
    return lambda state, _: put(state, LIMITS, body)


def level(name: str) -> Plant:
    labels = {"pod-security.kubernetes.io/enforce": name}
    return lambda state, _: state[NAMESPACES][NAMESPACE]["metadata"].update(labels=labels)


def zones(state: State, cluster: Cluster) -> None:
    for name in cluster.gpu_nodes[:2]:
        state[NODES][name]["metadata"]["labels"]["topology.kubernetes.io/zone"] = "us-west-2b"


def no_namespace(state: State, _: Cluster) -> None:
    for path in (CLAIMS, VOLUMES):
        state.pop(path)
    state[NAMESPACES].pop(NAMESPACE)


def other_node(state: State, cluster: Cluster) -> None:
    """A fifth node, so that the plan still has four."""
    name = f"{cluster.gpu_nodes[0]}-spare"
    body = node(name, cluster.instance_type.removeprefix("ml."))
    body["metadata"]["labels"] = dict(state[NODES][cluster.gpu_nodes[0]]["metadata"]["labels"])
    body["metadata"]["labels"]["kubernetes.io/hostname"] = name
    body["status"] = copy.deepcopy(state[NODES][cluster.gpu_nodes[0]]["status"])
    put(state, NODES, body)


def pulls(state: State, cluster: Cluster) -> None:
    body = pod("pull-0", "")
    del body["spec"]["nodeName"]
    body["spec"]["nodeName"] = cluster.gpu_nodes[0]
    body["spec"]["containers"][0]["image"] = "registry.invalid/train:1"
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off"}}
    status = {
        "name": "main",
        "image": "registry.invalid/train:1",
        "imageID": "",
        "ready": False,
        "restartCount": 0,
    }
    body["status"] = {"phase": "Pending", "containerStatuses": [status | {"state": waiting}]}
    put(state, PODS, body)


def raw_infiniband(state: State, cluster: Cluster) -> None:
    volumes = [{"name": "ib", "hostPath": {"path": "/dev/infiniband"}}]
    put(state, PODS, pod("verbs-0", cluster.gpu_nodes[0], volumes=volumes))


def hyperpod_operator(state: State, _: Cluster) -> None:
    """Only the operator of HyperPod's own kind, whose name contains that of Kubeflow's operator."""
    without(DEPLOYMENTS, "training-operator")(state, _)
    name, image = (
        "hp-training-operator-hp-training-controller-manager",
        "ecr/hyperpod-training-operator:v1.3.0",
    )
    labels = {"control_plane": "controller-manager"}
    put(state, DEPLOYMENTS, workload("Deployment", name, image, namespace="kubeflow", **labels))


def kueue_hooks(state: State, _: Cluster) -> None:
    """Kueue's webhook, with two of its rules: for PyTorchJobs and for its own workloads."""
    rules = [
        {"apiGroups": [group], "apiVersions": ["*"], "operations": ["CREATE"], "resources": [resource]}
        for group, resource in (("kubeflow.org", "pytorchjobs"), ("kueue.x-k8s.io", "workloads"))
    ]
    hook = {"name": "mpytorchjob.kb.io", "failurePolicy": "Fail", "rules": rules}
    body = {"metadata": {"name": "kueue-mutating-webhook-configuration"}, "webhooks": [hook]}
    put(state, HOOKS, body)


def free_in_two_zones(state: State, cluster: Cluster) -> None:
    """Two more nodes in another zone, while two of the first four are in use."""
    for number, model in enumerate(cluster.gpu_nodes[:2]):
        body = copy.deepcopy(state[NODES][model])
        body["metadata"]["name"] = f"{model}-far"
        labels = {"kubernetes.io/hostname": f"{model}-far", "topology.kubernetes.io/zone": "us-west-2b"}
        body["metadata"]["labels"] |= labels
        body["metadata"]["labels"].pop("topology.k8s.aws/zone-id", None)
        put(state, NODES, body)
        put(state, PODS, pod(f"busy-{number}", model, gpus=1))


NO_DEVICES = ("dra",)
BUILT_IN = ("bottlerocket", "auto-mode", "dra")
FAULTS = (
    Fault(
        "no gpu resource, no plugin",
        both(each_gpu_node(amounts(GPU, None)), without(DAEMONS, "nvidia")),
        "device-plugin",
        "error",
        ("no NVIDIA device plugin",),
        ("install the NVIDIA device plugin",),
        also=("gpu", "capacity"),
        leave_out=BUILT_IN,
    ),
    Fault(
        "no gpu resource, plugin runs",
        each_gpu_node(amounts(GPU, None)),
        "device-plugin",
        "error",
        ("the driver may have come after the plugin",),
        ("rollout restart daemonset",),
        also=("gpu", "capacity"),
        leave_out=BUILT_IN,
    ),
    Fault(
        "no gpu resource, plugin not ready",
        both(each_gpu_node(amounts(GPU, None)), stall_workload(DAEMONS, "nvidia")),
        "device-plugin",
        "error",
        ("of", "pods ready"),
        ("kubectl -n kube-system",),
        also=("gpu", "capacity"),
        leave_out=BUILT_IN,
    ),
    Fault(
        "bottlerocket without nvidia",
        each_gpu_node(amounts(GPU, None)),
        "device-plugin",
        "error",
        ("Bottlerocket", "offers no GPU"),
        ("nvidia",),
        also=("gpu", "capacity"),
        only=("bottlerocket", "auto-mode"),
    ),
    Fault(
        "one gpu missing, capacity too",
        each_gpu_node(amounts(GPU, "3"), 1),
        "gpu",
        "error",
        ("3 of",),
        ("Xid",),
        also=("capacity",),
        leave_out=NO_DEVICES,
    ),
    Fault(
        "all gpus sick",
        each_gpu_node(amounts(GPU, "0", capacity=False), 1),
        "gpu",
        "error",
        ("0 of",),
        ("log",),
        also=("capacity",),
        leave_out=NO_DEVICES,
    ),
    Fault(
        "mig",
        each_gpu_node(lambda b: (amounts(GPU, "0")(b), amounts("nvidia.com/mig-1g.5gb", "56")(b))[0], 1),
        "gpu",
        "error",
        ("nvidia.com/mig-1g.5gb", "no whole GPU"),
        ("MIG",),
        also=("capacity",),
        leave_out=NO_DEVICES,
    ),
    Fault(
        "time slicing",
        each_gpu_node(amounts(GPU, "32"), 1),
        "gpu",
        "error",
        ("shares",),
        ("time-slicing",),
        also=("capacity",),
        leave_out=NO_DEVICES,
    ),
    Fault(
        "one gpu missing on a spare",
        both(other_node, each_gpu_node(amounts(GPU, "3"), 1)),
        "gpu",
        "warning",
        ("3 of",),
        ("Xid",),
        leave_out=NO_DEVICES,
    ),
    Fault(
        "no efa, no plugin",
        both(each_gpu_node(amounts(EFA, None)), without(DAEMONS, "efa")),
        "efa",
        "error",
        ("no vpc.amazonaws.com/efa", "no EFA device plugin"),
        ("install the EFA device plugin",),
        leave_out=("bottlerocket", "dra"),
    ),
    Fault(
        "no efa interfaces attached",
        each_gpu_node(amounts(EFA, None)),
        "efa",
        "error",
        ("no EFA interfaces attached",),
        ("launch template",),
        leave_out=("bottlerocket", "dra"),
    ),
    Fault(
        "no efa where it is slow anyway",
        each_gpu_node(amounts(EFA, None)),
        "efa",
        "warning",
        ("no vpc.amazonaws.com/efa",),
        ("launch template",),
        only=("bottlerocket",),
    ),
    Fault(
        "efa odd one out",
        each_gpu_node(amounts(EFA, "2"), 1),
        "efa",
        "warning",
        ("2 EFA interfaces", "peers"),
        ("slowest",),
        leave_out=("bottlerocket", "dra"),
    ),
    Fault(
        "few efa everywhere",
        each_gpu_node(amounts(EFA, "2")),
        "efa",
        "warning",
        ("2 of",),
        ("launch template",),
        leave_out=("bottlerocket", "dra"),
    ),
    Fault(
        "infiniband past the plugin",
        raw_infiniband,
        "efa",
        "warning",
        ("/dev/infiniband", "team/verbs-0"),
        ("host path",),
    ),
    Fault(
        "cordoned",
        each_gpu_node(cordon, 1),
        "node-health",
        "error",
        ("cordoned",),
        ("kubectl uncordon",),
        also=("capacity",),
        leave_out=NO_DEVICES,
    ),
    Fault(
        "tainted",
        each_gpu_node(taint("reserved"), 1),
        "node-health",
        "error",
        ("tainted reserved=x:NoSchedule",),
        ("--tolerate reserved",),
        also=("capacity",),
        leave_out=NO_DEVICES,
    ),
    Fault(
        "xid",
        each_gpu_node(condition("GpuProblem", "True", "XidCriticalError"), 1),
        "node-health",
        "error",
        ("XidCriticalError",),
        ("replaced",),
        also=("capacity",),
        leave_out=NO_DEVICES,
    ),
    Fault(
        "node monitoring agent",
        each_gpu_node(condition("AcceleratedHardwareReady", "False", "NvidiaXID79Error"), 1),
        "node-health",
        "error",
        ("NvidiaXID79Error",),
        ("replaced",),
        also=("capacity",),
        leave_out=NO_DEVICES,
    ),
    Fault(
        "dcgm may be old",
        each_gpu_node(condition("AcceleratedHardwareReady", "False", "DCGMError"), 1),
        "node-health",
        "warning",
        ("DCGMError", "may be old"),
        ("dcgmi diag",),
    ),
    Fault(
        "kernel deadlock",
        each_gpu_node(condition("KernelDeadlock", "True", "DockerHung"), 1),
        "node-health",
        "error",
        ("KernelDeadlock",),
        ("replaced",),
        also=("capacity",),
        leave_out=NO_DEVICES,
    ),
    Fault(
        "hyperpod unschedulable",
        each_gpu_node(
            label("sagemaker.amazonaws.com/node-health-status", "UnschedulablePendingReplacement"), 1
        ),
        "node-health",
        "error",
        ("UnschedulablePendingReplacement",),
        ("Automatic",),
        also=("capacity",),
        only=("hyperpod",),
    ),
    Fault(
        "hyperpod deep check goes on",
        each_gpu_node(label("sagemaker.amazonaws.com/deep-health-check-status", "InProgress"), 1),
        "node-health",
        "error",
        ("still running",),
        ("wait",),
        also=("capacity",),
        only=("hyperpod",),
    ),
    Fault(
        "hyperpod deep check failed",
        each_gpu_node(label("sagemaker.amazonaws.com/deep-health-check-status", "Failed"), 1),
        "node-health",
        "error",
        ("failed",),
        ("replaced",),
        also=("capacity",),
        only=("hyperpod",),
    ),
    Fault(
        "hyperpod fault",
        each_gpu_node(label("sagemaker.amazonaws.com/fault-types", "NvidiaErrors"), 1),
        "node-health",
        "error",
        ("NvidiaErrors",),
        ("replaced",),
        also=("capacity",),
        only=("hyperpod",),
    ),
    Fault(
        "no operator",
        without(DEPLOYMENTS, "training-operator"),
        "operator",
        "error",
        ("no Deployment",),
        ("training operator",),
    ),
    Fault(
        "operator not ready",
        stall_workload(DEPLOYMENTS, "training-operator"),
        "operator",
        "error",
        ("0 of 1",),
        ("describe deployment",),
    ),
    Fault(
        "wrong kind",
        lambda *_: None,
        "job-api",
        "error",
        ("trainjobs.trainer.kubeflow.org is not served",),
        ("install Kubeflow Trainer 2",),
        options=("--kind", "trainjob"),
    ),
    Fault(
        "no namespace",
        no_namespace,
        "namespace",
        "error",
        ("there is no namespace team",),
        ("kubectl create namespace team",),
        also=("storage",),
        leave_out=("mixed",),
    ),
    Fault(
        "no secret",
        lambda *_: None,
        "namespace",
        "error",
        ("no secret hf",),
        ("create secret generic hf",),
        options=("--secret", "hf"),
    ),
    Fault(
        "no queue system",
        lambda *_: None,
        "queue",
        "error",
        ("kueue.x-k8s.io",),
        ("--queue",),
        options=("--queue", "main"),
    ),
    Fault(
        "no claim",
        without(CLAIMS, "checkpoints"),
        "storage",
        "error",
        ("no PersistentVolumeClaim checkpoints",),
        ("fix --apply",),
    ),
    Fault(
        "claim of one node",
        with_storage(modes=("ReadWriteOnce",)),
        "storage",
        "error",
        ("ReadWriteOnce", "4 nodes cannot write"),
        ("FSx",),
    ),
    Fault("mountpoint", with_storage(driver="s3.csi.aws.com"), "storage", "error", ("Mountpoint",), ("FSx",)),
    Fault("block device", with_storage(driver="ebs.csi.aws.com"), "storage", "error", ("EBS",), ("FSx",)),
    Fault(
        "no csi driver",
        without(DRIVERS, "fsx"),
        "storage",
        "error",
        ("fsx.csi.aws.com", "not installed"),
        ("create-addon",),
    ),
    Fault(
        "claim not bound",
        both(unbound, lambda s, _: s[CLASSES]["shared"].update(provisioner="none.csi.example")),
        "storage",
        "error",
        ("not bound",),
        ("describe pvc",),
    ),
    Fault(
        "checkpoints on a node's disk",
        lambda *_: None,
        "storage",
        "error",
        ("/opt/dlami/nvme/run", "lost"),
        ("caches only",),
        options=("--checkpoint-path", "/opt/dlami/nvme/run"),
    ),
    Fault(
        "quota of gpus",
        quota({f"requests.{GPU}": "8"}),
        "quota",
        "error",
        ("requests.nvidia.com/gpu", "of 8 used"),
        ("quota raised",),
    ),
    Fault(
        "quota of pods",
        quota({"pods": "2"}),
        "quota",
        "error",
        ("pods 0 of 2",),
        ("quota raised",),
        leave_out=("mixed",),
    ),
    Fault(
        "limit of gpus",
        limit({"type": "Container", "max": {GPU: "1"}}),
        "quota",
        "error",
        ("LimitRange", GPU),
        ("limit raised",),
    ),
    Fault(
        "default limit of memory",
        limit({"type": "Container", "default": {"memory": "512Mi"}}),
        "quota",
        "info",
        ("512 MiB",),
        ("limit of memory",),
    ),
    Fault(
        "restricted",
        level("restricted"),
        "pod-security",
        "error",
        ("restricted", "operator adds"),
        ("--kind trainjob",),
    ),
    Fault(
        "restricted, without workers",
        level("restricted"),
        "pod-security",
        "warning",
        ("restricted", "IPC_LOCK"),
        ("RuntimeDefault",),
        options=("--num-nodes", "1"),
    ),
    Fault(
        "no priority class",
        lambda *_: None,
        "quota",
        "error",
        ("no PriorityClass gold",),
        ("create it",),
        options=("--priority-class", "gold"),
    ),
    Fault(
        "two zones",
        zones,
        "placement",
        "error",
        ("no zone has room for 4", "EFA"),
        ("placement group",),
        leave_out=NO_DEVICES,
    ),
    Fault(
        "too few nodes",
        lambda *_: None,
        "capacity",
        "error",
        ("4 places for 40",),
        ("fewer nodes",),
        options=("--num-nodes", "40"),
        leave_out=NO_DEVICES,
    ),
    Fault(
        "another job holds a node",
        holders(4),
        "capacity",
        "error",
        ("3 places free for 4", "team/busy holds 4"),
        ("queue",),
        leave_out=NO_DEVICES,
    ),
    Fault(
        "no node of the type",
        lambda *_: None,
        "gpu",
        "error",
        ("no node of type p5en.48xlarge",),
        ("instance type",),
        options=("--instance-type", "p5en.48xlarge"),
    ),
    Fault(
        "image cannot be pulled",
        pulls,
        "image",
        "error",
        ("team/pull-0", "cannot pull"),
        ("imagePullSecrets",),
        options=("--image-uri", "registry.invalid/train:1"),
    ),
    Fault(
        "kubelet older",
        each_gpu_node(lambda b: b["status"]["nodeInfo"].update(kubeletVersion="v1.29.3"), 1),
        "skew",
        "warning",
        ("older",),
        ("supported",),
    ),
    Fault(
        "operator of another kind",
        hyperpod_operator,
        "operator",
        "error",
        ("training operator: no Deployment",),
        ("training operator",),
    ),
    Fault(
        "kueue answers in place of the operator",
        both(without(DEPLOYMENTS, "training-operator"), kueue_hooks),
        "operator",
        "error",
        ("no Deployment", "nothing acts on it"),
        ("training operator",),
    ),
    Fault(
        "gpus not healthy",
        each_gpu_node(condition("GpuHealthy", "False", "XidErrors"), 1),
        "node-health",
        "error",
        ("GpuHealthy (XidErrors) is False",),
        ("replaced",),
        also=("capacity",),
        leave_out=NO_DEVICES,
    ),
    Fault(
        "node still starting",
        each_gpu_node(taint("efs.csi.aws.com/agent-not-ready"), 1),
        "node-health",
        "error",
        ("tainted efs.csi.aws.com/agent-not-ready",),
        ("still starting",),
        also=("capacity",),
        leave_out=NO_DEVICES,
    ),
    Fault(
        "claim that is read only",
        with_storage(modes=("ReadOnlyMany",)),
        "storage",
        "error",
        ("ReadOnlyMany", "nobody can write"),
        ("FSx",),
    ),
    Fault(
        "claim that goes",
        lambda s, _: s[CLAIMS]["checkpoints"]["metadata"].update(deletionTimestamp="2026-11-20T00:00:00Z"),
        "storage",
        "error",
        ("being deleted",),
        ("another name",),
    ),
    Fault(
        "disk of auto mode",
        with_storage(driver="ebs.csi.eks.amazonaws.com"),
        "storage",
        "error",
        ("EBS",),
        ("FSx",),
    ),
    Fault(
        "checkpoints on a node's disk by a detour",
        lambda *_: None,
        "storage",
        "error",
        ("/opt/dlami/nvme/run", "lost"),
        ("caches only",),
        options=("--checkpoint-path", "/data/../opt//dlami/nvme/run/"),
    ),
    Fault(
        "free places in two zones",
        free_in_two_zones,
        "placement",
        "error",
        ("no zone has room for 4 nodes now: 2 in", "EFA"),
        ("wait",),
        leave_out=NO_DEVICES,
    ),
    Fault(
        "quota of processors",
        quota({"requests.cpu": "100m"}),
        "pod-security",
        "error",
        ("exceeded quota", "requests.cpu"),
        ("as it says",),
        leave_out=("mixed",),
        judged_by_server=True,
    ),
    Fault(
        "limit of memory",
        limit({"type": "Container", "max": {"memory": "256Mi"}}),
        "pod-security",
        "error",
        ("maximum memory usage per Container is 256Mi",),
        ("as it says",),
        also=("quota",),
        judged_by_server=True,
    ),
)


def cases(clusters: "list[str]", *, real: bool = False) -> list[tuple[str, Fault]]:
    """Every fault in every cluster in which it makes sense; `real`: also those that only a server shows."""
    return [
        (name, fault)
        for name in clusters
        for fault in FAULTS
        if name not in fault.leave_out and (not fault.only or name in fault.only)
        if real or not fault.judged_by_server
    ]
