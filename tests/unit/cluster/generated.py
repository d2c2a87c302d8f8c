"""Clusters for tests, as the objects that an API server holds: seven common kinds of GPU clusters.

    State: path of a list -> name -> object, as it is sent to the API

The same objects are served by `recorded.py` and created in a real API server. Types, labels and amounts
are those of real clusters.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

Json = dict[str, Any]
State = dict[str, dict[str, Json]]

NAMESPACE = "team"
NODES, PODS = "/api/v1/nodes", f"/api/v1/namespaces/{NAMESPACE}/pods"
NAMESPACES = "/api/v1/namespaces"
DAEMONS = "/apis/apps/v1/namespaces/kube-system/daemonsets"
DEPLOYMENTS = "/apis/apps/v1/namespaces/kubeflow/deployments"
CLAIMS, VOLUMES = f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims", "/api/v1/persistentvolumes"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
DRIVERS = "/apis/storage.k8s.io/v1/csidrivers"
QUOTAS = f"/api/v1/namespaces/{NAMESPACE}/resourcequotas"
LIMITS = f"/api/v1/namespaces/{NAMESPACE}/limitranges"
HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
FSX = "fsx.csi.aws.com"
GPU, EFA = "nvidia.com/gpu", "vpc.amazonaws.com/efa"
SHAPES = {  # CPU, memory, hugepages, GPUs, EFA: as seen on real nodes
    "p5.48xlarge": ("191450m", "2052371068Ki", "42242Mi", 8, 32),
    "p4d.24xlarge": ("95690m", "1146004920Ki", "21122Mi", 8, 4),
    "g5.12xlarge": ("47810m", "177561600Ki", "0", 4, 1),
    "p6-b300.48xlarge": ("191450m", "4059000000Ki", "42242Mi", 8, 16),
}
ZONE = "us-west-2a"


@dataclass(frozen=True)
class Cluster:
    """A healthy cluster and the plan that it is ready for."""

    name: str
    state: State
    instance_type: str
    options: tuple[str, ...] = ()
    """Options of the command line, beside --num-nodes 4 and the type."""
    gpu_nodes: tuple[str, ...] = field(default=())


def node(
    name: str, instance_type: str, labels: Mapping[str, str] = MappingProxyType({}), *, devices: bool = True
) -> Json:
    """A node as it registers: without `devices`, it offers neither GPUs nor EFA."""
    cpu, memory, pages, gpus, efa = SHAPES.get(instance_type, ("7910m", "31315412Ki", "0", 0, 0))
    amounts = {"cpu": cpu, "memory": memory, "pods": "110", "ephemeral-storage": "500Gi"}
    if devices and gpus:
        amounts |= {GPU: str(gpus), EFA: str(efa), "hugepages-2Mi": pages}
    own = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "node.kubernetes.io/instance-type": instance_type,
        "topology.kubernetes.io/zone": ZONE,
        "topology.kubernetes.io/region": "us-west-2",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": own | dict(labels),
            "annotations": {"kwok.x-k8s.io/node": "fake"},
        },
        "spec": {"taints": [], "providerID": f"aws:///{ZONE}/{name}"},
        "status": {
            "capacity": dict(amounts),
            "allocatable": dict(amounts),
            "nodeInfo": node_info("Amazon Linux 2023"),
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }


def node_info(system: str, kubelet: str = "v1.34.4") -> Json:
    names = (
        "machineID",
        "systemUUID",
        "bootID",
        "kernelVersion",
        "containerRuntimeVersion",
        "kubeProxyVersion",
    )
    return {
        **dict.fromkeys(names, ""),
        "osImage": system,
        "kubeletVersion": kubelet,
        "operatingSystem": "linux",
        "architecture": "amd64",
    }


def workload(kind: str, name: str, image: str, /, *, namespace: str = "kube-system", **labels: str) -> Json:
    """A DaemonSet or Deployment, with the status that its controller would write."""
    labels = {key.replace("__", "/").replace("_", "-"): value for key, value in labels.items()} or {
        "name": name
    }
    daemon = kind == "DaemonSet"
    spec: Json = {
        "selector": {"matchLabels": labels},
        "template": {
            "metadata": {"labels": labels},
            "spec": {
                "containers": [{"name": "main", "image": image}],
                "tolerations": [{"operator": "Exists"}],
            },
        },
    }
    status: Json = {"currentNumberScheduled": 5, "numberMisscheduled": 0, "desiredNumberScheduled": 5}
    status |= {"numberReady": 5, "numberAvailable": 5}
    if not daemon:
        spec["replicas"], status = 1, {"availableReplicas": 1}
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": spec, "status": status}


def pod(name: str, node_name: str, *, gpus: int = 0, namespace: str = NAMESPACE, **spec: Any) -> Json:
    """A pod that runs on a node."""
    resources = {"limits": {GPU: str(gpus)}, "requests": {GPU: str(gpus)}} if gpus else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"training.kubeflow.org/job-name": name.rpartition("-")[0]},
        },
        "spec": {
            "nodeName": node_name,
            "containers": [{"name": "main", "image": "a/b:1", "resources": resources}],
            **spec,
        },
        "status": {"phase": "Running"},
    }


def storage(state: State, *, modes: tuple[str, ...] = ("ReadWriteMany",), driver: str = FSX) -> None:
    """A claim that is bound to a volume of `driver`."""
    put(state, DRIVERS, _plain("storage.k8s.io/v1", "CSIDriver", driver, spec={"attachRequired": False}))
    put(state, CLASSES, _plain("storage.k8s.io/v1", "StorageClass", "shared", provisioner=driver))
    amount = {"storage": "1200Gi"}
    common = {"accessModes": list(modes), "storageClassName": "shared"}
    reference = {"namespace": NAMESPACE, "name": "checkpoints"}
    source = {"csi": {"driver": driver, "volumeHandle": "fs-0123456789abcdef0"}}
    spec = common | {"capacity": amount, "claimRef": reference, **source}
    put(state, VOLUMES, _plain("v1", "PersistentVolume", "fsx", spec=spec, status={"phase": "Bound"}))
    claim = common | {"resources": {"requests": amount}, "volumeName": "fsx"}
    body = _plain("v1", "PersistentVolumeClaim", "checkpoints", spec=claim, status={"phase": "Bound"})
    body["metadata"]["namespace"] = NAMESPACE
    put(state, CLAIMS, body)


def put(state: State, path: str, body: Json) -> None:
    state.setdefault(path, {})[body["metadata"]["name"]] = body


def _plain(version: str, kind: str, name: str, **rest: Any) -> Json:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **rest}


def base(
    instance_type: str, labels: Mapping[str, str] = MappingProxyType({}), *, prefix: str = "gpu"
) -> State:
    """The common parts of all kinds of clusters: nodes, namespace, training operator, volume."""
    state: State = {}
    put(state, NODES, node("system-0", "m5.2xlarge"))
    for number in range(4):
        put(state, NODES, node(f"{prefix}-{number}", instance_type, labels))
    put(state, NAMESPACES, _plain("v1", "Namespace", NAMESPACE, status={"phase": "Active"}))
    put(state, NAMESPACES, _plain("v1", "Namespace", "kubeflow", status={"phase": "Active"}))
    operator = "public.ecr.aws/kubeflow/training-operator:v1.8.1"
    labels_of = {"control_plane": "kubeflow-training-operator"}
    put(
        state,
        DEPLOYMENTS,
        workload("Deployment", "training-operator", operator, namespace="kubeflow", **labels_of),
    )
    storage(state)
    return state


def plain_eks() -> Cluster:
    state = base(
        "p5.48xlarge", {"eks.amazonaws.com/nodegroup": "p5", "eks.amazonaws.com/capacityType": "ON_DEMAND"}
    )
    put(state, DAEMONS, nvidia_plugin())
    put(state, DAEMONS, efa_plugin())
    return Cluster("plain-eks", state, "p5.48xlarge", ("--volume", "checkpoints"), names(state))


def gpu_operator() -> Cluster:
    labels = {
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.count": "8",
        "nvidia.com/mig.config": "all-disabled",
    }
    state = base("p4d.24xlarge", labels)
    image = "nvcr.io/nvidia/k8s-device-plugin:v0.17.1"
    put(
        state,
        DAEMONS,
        workload("DaemonSet", "nvidia-device-plugin-daemonset", image, app="nvidia-device-plugin-daemonset"),
    )
    put(state, DAEMONS, efa_plugin())
    harmless = (  # a condition of GKE, one of a health checker, and one of somebody
        ("SysctlChanged", "True", "SysctlChanged"),
        ("GpuHealthy", "True", "NoXidErrors"),
        ("BackupReady", "False", "NotYet"),
    )
    for body in state[NODES].values():
        body["status"]["conditions"] += [
            {"type": kind, "status": status, "reason": reason} for kind, status, reason in harmless
        ]
    return Cluster("gpu-operator", state, "p4d.24xlarge", ("--volume", "checkpoints"), names(state))


def hyperpod() -> Cluster:
    labels = {
        "sagemaker.amazonaws.com/compute-type": "hyperpod",
        "sagemaker.amazonaws.com/node-health-status": "Schedulable",
        "sagemaker.amazonaws.com/deep-health-check-status": "Passed",
        "sagemaker.amazonaws.com/instance-group-name": "workers",
    }
    state = base("p5.48xlarge", labels, prefix="hyperpod-i-0")
    for name in names(state):
        state[NODES][name]["metadata"]["labels"]["node.kubernetes.io/instance-type"] = "ml.p5.48xlarge"
    image = "nvcr.io/nvidia/k8s-device-plugin:v0.16.1"
    plugin = "dependencies-nvidia-device-plugin"
    put(state, DAEMONS, workload("DaemonSet", plugin, image, app__name="nvidia-device-plugin"))
    name = "dependencies-aws-efa-k8s-device-plugin"
    put(state, DAEMONS, workload("DaemonSet", name, "ecr/eks/aws-efa-k8s-device-plugin:v0.5.20", name=name))
    return Cluster("hyperpod", state, "ml.p5.48xlarge", ("--volume", "checkpoints"), names(state))


def bottlerocket() -> Cluster:
    state = base("g5.12xlarge")
    for name in names(state):
        state[NODES][name]["status"]["nodeInfo"] = node_info("Bottlerocket OS 1.49.0 (aws-k8s-1.34-nvidia)")
    put(state, DAEMONS, efa_plugin())
    return Cluster("bottlerocket", state, "g5.12xlarge", ("--volume", "checkpoints"), names(state))


def dra() -> Cluster:
    """GPUs and EFA by Dynamic Resource Allocation: no extended resource on any node."""
    state = base("p5.48xlarge")
    for name in names(state):
        state[NODES][name] = node(name, "p5.48xlarge", devices=False)
    image = "registry.k8s.io/nvidia-dra-driver-gpu:v25.8.0"
    put(state, DAEMONS, workload("DaemonSet", "nvidia-dra-driver-gpu-kubelet-plugin", image))
    put(state, DAEMONS, workload("DaemonSet", "aws-dranet", "ecr/eks/dranet:v1.0.1"))
    return Cluster("dra", state, "p5.48xlarge", ("--volume", "checkpoints"), names(state))


def mixed() -> Cluster:
    """Two types, one of which the plan names; 31 of 32 EFA interfaces on all nodes by the launch template."""
    state = base("p5.48xlarge")
    for name in names(state):
        for part in ("capacity", "allocatable"):
            state[NODES][name]["status"][part][EFA] = "31"
    for number in range(2):
        put(state, NODES, node(f"small-{number}", "g5.12xlarge"))
    put(state, DAEMONS, nvidia_plugin())
    put(state, DAEMONS, efa_plugin())
    put(state, PODS, pod("other-0", "small-0", gpus=4))
    gold = {"scopeName": "PriorityClass", "operator": "In", "values": ["gold"]}
    hard = {f"requests.{GPU}": "0"}
    body = _plain("v1", "ResourceQuota", "gold", status={"hard": hard, "used": hard})
    body["spec"] = {"hard": hard, "scopeSelector": {"matchExpressions": [gold]}}
    body["metadata"]["namespace"] = NAMESPACE
    put(state, QUOTAS, body)  # for pods of another class, so it does not limit the plan
    return Cluster("mixed", state, "p5.48xlarge", ("--volume", "checkpoints"), names(state))


def auto_mode() -> Cluster:
    """EKS Auto Mode: nodes named by their instance, and plugins built in."""
    labels = {
        "eks.amazonaws.com/compute-type": "auto",
        "eks.amazonaws.com/instance-gpu-count": "8",
        "karpenter.sh/nodepool": "gpu",
        "karpenter.sh/initialized": "true",
    }
    state = base("p5.48xlarge", labels, prefix="i-0a1b2c3d4e5f6071")
    system = "Bottlerocket (EKS Auto, Nvidia) 2026.11.1 (aws-k8s-1.34-nvidia)"
    for number, name in enumerate(names(state)):
        state[NODES][name]["status"]["nodeInfo"] = node_info(system)
        if number % 2:  # newer nodes have the id of their zone too
            state[NODES][name]["metadata"]["labels"]["topology.k8s.aws/zone-id"] = "usw2-az1"
    put(state, DAEMONS, efa_plugin())
    return Cluster("auto-mode", state, "p5.48xlarge", ("--volume", "checkpoints"), names(state))


def nvidia_plugin() -> Json:
    image = "nvcr.io/nvidia/k8s-device-plugin:v0.17.1"
    return workload("DaemonSet", "nvidia-device-plugin-daemonset", image, name="nvidia-device-plugin-ds")


def efa_plugin() -> Json:
    name = "efa-aws-efa-k8s-device-plugin"
    image = "602401143452.dkr.ecr.us-west-2.amazonaws.com/eks/aws-efa-k8s-device-plugin:v0.5.8"
    return workload("DaemonSet", name, image, name=name)


def names(state: State) -> tuple[str, ...]:
    """The nodes for which the plan is."""
    return tuple(name for name in state[NODES] if name.startswith(("gpu", "hyperpod", "i-")))


CLUSTERS: dict[str, Callable[[], Cluster]] = {
    "plain-eks": plain_eks,
    "gpu-operator": gpu_operator,
    "hyperpod": hyperpod,
    "bottlerocket": bottlerocket,
    "dra": dra,
    "mixed": mixed,
    "auto-mode": auto_mode,
}


def changed(cluster: Cluster, plant: Callable[[State, Cluster], None]) -> State:
    """The cluster's objects with a fault planted."""
    state = copy.deepcopy(cluster.state)
    plant(state, cluster)
    return state
