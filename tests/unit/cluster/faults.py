"""Faults that are planted in generated clusters, each with the finding of a check.

The rule: the named check finds the fault with the named severity; its evidence and its fix have the named
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
    """A row of `EXPECTED`."""

    name: str
    plant: Plant
    check: str
    severity: str
    evidence: tuple[str, ...]
    fix: tuple[str, ...]
    also: tuple[str, ...]
    options: tuple[str, ...]
    only: tuple[str, ...]
    leave_out: tuple[str, ...]
    judged_by_server: bool


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


PLANTS: dict[str, Plant] = {
    "no gpu resource, no plugin": both(each_gpu_node(amounts(GPU, None)), without(DAEMONS, "nvidia")),
    "no gpu resource, plugin runs": each_gpu_node(amounts(GPU, None)),
    "no gpu resource, plugin not ready": both(
        each_gpu_node(amounts(GPU, None)), stall_workload(DAEMONS, "nvidia")
    ),
    "bottlerocket without nvidia": each_gpu_node(amounts(GPU, None)),
    "one gpu missing, capacity too": each_gpu_node(amounts(GPU, "3"), 1),
    "all gpus sick": each_gpu_node(amounts(GPU, "0", capacity=False), 1),
    "mig": each_gpu_node(lambda b: (amounts(GPU, "0")(b), amounts("nvidia.com/mig-1g.5gb", "56")(b))[0], 1),
    "time slicing": each_gpu_node(amounts(GPU, "32"), 1),
    "one gpu missing on a spare": both(other_node, each_gpu_node(amounts(GPU, "3"), 1)),
    "no efa, no plugin": both(each_gpu_node(amounts(EFA, None)), without(DAEMONS, "efa")),
    "no efa interfaces attached": each_gpu_node(amounts(EFA, None)),
    "no efa where it is slow anyway": each_gpu_node(amounts(EFA, None)),
    "efa odd one out": each_gpu_node(amounts(EFA, "2"), 1),
    "few efa everywhere": each_gpu_node(amounts(EFA, "2")),
    "more efa than the type has": each_gpu_node(amounts(EFA, "64")),
    "more efa on a spare": both(other_node, each_gpu_node(amounts(EFA, "33"), 1)),
    "cordoned": each_gpu_node(cordon, 1),
    "tainted": each_gpu_node(taint("reserved"), 1),
    "xid": each_gpu_node(condition("GpuProblem", "True", "XidCriticalError"), 1),
    "node monitoring agent": each_gpu_node(condition("KernelReady", "False", "ForkFailedOutOfPID"), 1),
    "dcgm may be old": each_gpu_node(condition("AcceleratedHardwareReady", "False", "DCGMError"), 1),
    "kernel deadlock": each_gpu_node(condition("KernelDeadlock", "True", "DockerHung"), 1),
    "hyperpod unschedulable": each_gpu_node(
        label("sagemaker.amazonaws.com/node-health-status", "UnschedulablePendingReplacement"), 1
    ),
    "hyperpod deep check goes on": each_gpu_node(
        label("sagemaker.amazonaws.com/deep-health-check-status", "InProgress"), 1
    ),
    "hyperpod deep check failed": each_gpu_node(
        label("sagemaker.amazonaws.com/deep-health-check-status", "Failed"), 1
    ),
    "hyperpod fault": each_gpu_node(label("sagemaker.amazonaws.com/fault-types", "NvidiaErrors"), 1),
    "no operator": without(DEPLOYMENTS, "training-operator"),
    "operator not ready": stall_workload(DEPLOYMENTS, "training-operator"),
    "no namespace": no_namespace,
    "no claim": without(CLAIMS, "checkpoints"),
    "claim of one node": with_storage(modes=("ReadWriteOnce",)),
    "mountpoint": with_storage(driver="s3.csi.aws.com"),
    "block device": with_storage(driver="ebs.csi.aws.com"),
    "no csi driver": without(DRIVERS, "fsx"),
    "claim not bound": both(
        unbound, lambda s, _: s[CLASSES]["shared"].update(provisioner="none.csi.example")
    ),
    "quota of gpus": quota({f"requests.{GPU}": "8"}),
    "quota of pods": quota({"pods": "2"}),
    "limit of gpus": limit({"type": "Container", "max": {GPU: "1"}}),
    "restricted": level("restricted"),
    "two zones": zones,
    "another job holds a node": holders(4),
    "image cannot be pulled": pulls,
    "operator of another kind": hyperpod_operator,
    "kueue answers in place of the operator": both(without(DEPLOYMENTS, "training-operator"), kueue_hooks),
    "gpus not healthy": each_gpu_node(condition("GpuHealthy", "False", "XidErrors"), 1),
    "node still starting": each_gpu_node(taint("efs.csi.aws.com/agent-not-ready"), 1),
    "claim that is read only": with_storage(modes=("ReadOnlyMany",)),
    "claim that goes": lambda s, _: s[CLAIMS]["checkpoints"]["metadata"].update(
        deletionTimestamp="2026-11-20T00:00:00Z"
    ),
    "disk of auto mode": with_storage(driver="ebs.csi.eks.amazonaws.com"),
    "free places in two zones": free_in_two_zones,
    "quota of processors": quota({"requests.cpu": "100m"}),
    "limit of memory": limit({"type": "Container", "max": {"memory": "256Mi"}}),
}
EXPECTED = """
no gpu resource, no plugin | device-plugin | no NVIDIA device plugin | install the NVIDIA device plugin
    | also=gpu,capacity ; not=bottlerocket,auto-mode,dra
no gpu resource, plugin runs | device-plugin | may have come after the plugin | rollout restart daemonset
    | also=gpu,capacity ; not=bottlerocket,auto-mode,dra
no gpu resource, plugin not ready | device-plugin | of … pods ready | kubectl -n kube-system
    | also=gpu,capacity ; not=bottlerocket,auto-mode,dra
bottlerocket without nvidia | device-plugin | Bottlerocket … offers no GPU | nvidia
    | also=gpu,capacity ; only=bottlerocket,auto-mode
one gpu missing, capacity too | gpu | 3 of | Xid | also=capacity ; not=dra
all gpus sick | gpu | 0 of | log | also=capacity ; not=dra
mig | gpu | nvidia.com/mig-1g.5gb … no whole GPU | MIG | also=capacity ; not=dra
time slicing | gpu | shares | time-slicing | also=capacity ; not=dra
one gpu missing on a spare | gpu warning | 3 of | Xid | not=dra
no efa, no plugin | efa | no vpc.amazonaws.com/efa … no EFA device plugin | install the EFA device plugin
    | not=bottlerocket,dra
no efa interfaces attached | efa | no EFA interfaces attached | launch template | not=bottlerocket,dra
no efa where it is slow anyway | efa warning | no vpc.amazonaws.com/efa | launch template | only=bottlerocket
efa odd one out | efa warning | 2 EFA interfaces … peers | slowest | not=bottlerocket,dra
few efa everywhere | efa warning | 2 of | launch template | not=bottlerocket,dra
more efa than the type has | efa | 64 EFA interfaces, and | one EFA device plugin | not=dra
more efa on a spare | efa warning | 33 EFA interfaces, and | one EFA device plugin | not=dra
cordoned | node-health | cordoned | kubectl uncordon | also=capacity ; not=dra
tainted | node-health | tainted reserved=x:NoSchedule | --tolerate reserved | also=capacity ; not=dra
xid | node-health | XidCriticalError | replaced | also=capacity ; not=dra
node monitoring agent | node-health | ForkFailedOutOfPID | replaced | also=capacity ; not=dra
dcgm may be old | node-health warning | DCGMError … may be old | dcgmi diag
kernel deadlock | node-health | KernelDeadlock | replaced | also=capacity ; not=dra
hyperpod unschedulable | node-health | UnschedulablePendingReplacement | Automatic
    | also=capacity ; only=hyperpod
hyperpod deep check goes on | node-health | still running | wait | also=capacity ; only=hyperpod
hyperpod deep check failed | node-health | failed | replaced | also=capacity ; only=hyperpod
hyperpod fault | node-health | NvidiaErrors | replaced | also=capacity ; only=hyperpod
no operator | operator | no Deployment | training operator
operator not ready | operator | 0 of 1 | describe deployment
wrong kind | job-api | trainjobs.trainer.kubeflow.org is not served | install Kubeflow Trainer 2
    | options=--kind trainjob
no namespace | namespace | there is no namespace team | kubectl create namespace team
    | also=storage ; not=mixed
no secret | namespace | no secret hf | create secret generic hf | options=--secret hf
no queue system | queue | kueue.x-k8s.io | --queue | options=--queue main
no claim | storage | no PersistentVolumeClaim checkpoints | fix --apply
claim of one node | storage | ReadWriteOnce … 4 nodes cannot write | FSx
mountpoint | storage | Mountpoint | FSx
block device | storage | EBS | FSx
no csi driver | storage | fsx.csi.aws.com … not installed | create-addon
claim not bound | storage | not bound | describe pvc
checkpoints on a node's disk | storage | /opt/dlami/nvme/run … lost | caches only
    | options=--checkpoint-path /opt/dlami/nvme/run
quota of gpus | quota | requests.nvidia.com/gpu … of 8 used | quota raised
quota of pods | quota | pods 0 of 2 | quota raised | not=mixed
limit of gpus | pod-security | maximum nvidia.com/gpu usage per Container | as the message says | server=yes
restricted | pod-security | restricted … operator adds | --kind trainjob
no priority class | pod-security | no PriorityClass with name gold | as the message says
    | options=--priority-class gold ; server=yes
two zones | placement | no zone has room for 4 … EFA | placement group | not=dra
too few nodes | capacity | 4 places for 40 | fewer nodes | not=dra ; options=--num-nodes 40
another job holds a node | capacity | 3 places free for 4 … team/busy holds 4 | queue | not=dra
no node of the type | gpu | no node of type p5en.48xlarge | instance type
    | options=--instance-type p5en.48xlarge
image cannot be pulled | image | team/pull-0 … cannot pull | imagePullSecrets
    | options=--image-uri registry.invalid/train:1
operator of another kind | operator | training operator: no Deployment | training operator
kueue answers in place of the operator | operator | no Deployment … nothing acts on it | training operator
gpus not healthy | node-health | GpuHealthy (XidErrors) is False | replaced | also=capacity ; not=dra
node still starting | node-health | tainted efs.csi.aws.com/agent-not-ready | still starting
    | also=capacity ; not=dra
claim that is read only | storage | ReadOnlyMany … nobody can write | FSx
claim that goes | storage | being deleted | another name
disk of auto mode | storage | EBS | FSx
checkpoints on a node's disk by a detour | storage | /opt/dlami/nvme/run … lost | caches only
    | options=--checkpoint-path /data/../opt//dlami/nvme/run/
free places in two zones | placement | no zone has room for 4 nodes now: 2 in … EFA | wait | not=dra
quota of processors | pod-security | exceeded quota … requests.cpu | as the message says
    | not=mixed ; server=yes
limit of memory | pod-security | maximum memory usage per Container is 256Mi | as the message says
    | server=yes
"""
"""Fault | check, and severity if it is no error | words of evidence | words of fix | further rules.

A fault that is not in `PLANTS` is in the options.

`also`: other checks that may report a problem because of it; `options`: of the command line, beside the
cluster's own; `only` and `not`: clusters in which it makes sense; `server`: only the admission of a real API
server shows it.
"""


def _fault(row: str) -> Fault:
    name, check, evidence, fix, *further = (part.strip() for part in row.split("|"))
    rules = dict(rule.strip().split("=", 1) for rule in (further[0].split(";") if further else ()))
    return Fault(
        name,
        PLANTS.get(name, lambda *_: None),
        check.split()[0],
        [*check.split(), "error"][1],
        tuple(evidence.split(" … ")),
        tuple(fix.split(" … ")),
        also=tuple(filter(None, rules.get("also", "").split(","))),
        options=tuple(rules.get("options", "").split()),
        only=tuple(filter(None, rules.get("only", "").split(","))),
        leave_out=tuple(rules.get("not", "").split(",")),
        judged_by_server="server" in rules,
    )


FAULTS = tuple(map(_fault, EXPECTED.strip().replace("\n    ", " ").splitlines()))


def cases(clusters: "list[str]", *, real: bool = False) -> list[tuple[str, Fault]]:
    """Every fault in every cluster in which it makes sense; `real`: also those that only a server shows."""
    return [
        (name, fault)
        for name in clusters
        for fault in FAULTS
        if name not in fault.leave_out and (not fault.only or name in fault.only)
        if real or not fault.judged_by_server
    ]
