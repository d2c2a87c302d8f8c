"""Decide which nodes a job could use if they were empty, and what keeps it off the others.

    Node + JobSpec ──> Fitness: GPUs and EFA found and expected, obstacles, doubts

An obstacle keeps the job off a node; a doubt is only reported. Labels say what should be there, and
allocatable resources say what is there. An absent resource differs from an amount of 0. Devices of drivers of
Dynamic Resource Allocation are not counted: such a node is taken as fit, and reported as not checked.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainyard.cluster.snapshot import GPU_DRIVER, Condition, MissingData, Node, Snapshot, Taint
from trainyard.plan.finding import Finding
from trainyard.plan.instances import EFA, GPU, instance_called, plain_type

if TYPE_CHECKING:
    from trainyard.jobs.job_spec import JobSpec

_GPU_LABELS = (
    *("nvidia.com/gpu.present", "cloud.google.com/gke-accelerator", "kubernetes.azure.com/accelerator"),
    *("karpenter.k8s.aws/instance-gpu-count", "k8s.amazonaws.com/accelerator"),
)
_PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")
# Conditions of the EKS node monitoring agent; False means a fault.
_AGENT = tuple(
    f"{what}Ready" for what in ("AcceleratedHardware", "ContainerRuntime", "Kernel", "Networking", "Storage")
)
# Conditions of the node problem detector; True means a fault. Others, as SysctlChanged, may be harmless.
_PROBLEMS = (
    *("KernelDeadlock", "ReadonlyFilesystem", "CorruptDockerOverlay2", "FrequentKubeletRestart"),
    *(
        "FrequentContainerdRestart",
        "FrequentDockerRestart",
        "FrequentUnregisterNetDevice",
        "VMEventScheduled",
    ),
)
_GPU_WORDS = ("xid", "gpumissing", "gpuerror", "nvlink", "gpufallen", "rowremap", "gpuhealth", "ibfault")
# DCGMError stays for days after its cause has gone, and DCGMHealthCode122 is a false alarm.
_LATCHING = "dcgm"
HEALTH = "sagemaker.amazonaws.com/node-health-status"
DEEP_CHECK = "sagemaker.amazonaws.com/deep-health-check-status"
FAULTS = tuple(f"sagemaker.amazonaws.com/fault-{name}" for name in ("type", "types", "reason", "reasons"))
# Taints that follow from a state which another check reports.
_BY_STATE = tuple(f"node.kubernetes.io/{state}" for state in ("not-ready", "unreachable", "unschedulable"))
# Suffixes of taints that go without action: of the cloud's controller, CSI and CNI drivers, Karpenter.
_STARTING = (
    *("/uninitialized", "/agent-not-ready", "/unregistered", "/startup", "/network-unavailable"),
    *(".istio.io/not-ready", "efa-not-ready"),
)
_LEAVING = (
    *("karpenter.sh/disrupt", "karpenter.k8s.aws/interruption", "node.kubernetes.io/out-of-service"),
    *("ToBeDeletedByClusterAutoscaler", "DeletionCandidateOfClusterAutoscaler"),
    "aws-node-termination-handler/",
)


@dataclass(frozen=True)
class Fitness:
    """One node that the job could use."""

    node: Node
    gpus: int | None
    """Whole GPUs that can be allocated; None if the node does not offer the resource at all."""
    expected_gpus: int | None
    """GPUs expected from its type, or from its peers of the same type; None if neither is known."""
    efa: int | None
    expected_efa: int | None
    """EFA interfaces expected from its type; None if the type is not in the catalogue."""
    obstacles: tuple[Finding, ...]
    doubts: tuple[Finding, ...]
    uncounted: bool = False
    """Whether a driver of Dynamic Resource Allocation may offer its GPUs."""

    @property
    def fit(self) -> bool:
        return not self.obstacles


def assess(snapshot: Snapshot, job: "JobSpec") -> tuple[Fitness, ...]:
    """Every node that the job could use; empty if nodes could not be seen."""
    if isinstance(snapshot.nodes, MissingData):
        return ()
    nodes = [node for node in snapshot.nodes if _is_meant(node, job)]
    peers, has_driver = _most_by_type(nodes), snapshot.has_driver(GPU_DRIVER)
    assessed = []
    for node in nodes:
        gpus = _count(node, GPU)
        known = instance_called(node.instance_type)
        expected = known.gpus if known else peers.get(node.instance_type)
        uncounted = has_driver and gpus is None and job.gpus_per_node != 0 and not _mig(node)
        obstacles = [] if uncounted else [*_gpu_obstacles(node, gpus, expected, job)]
        obstacles += _health_obstacles(node, job)
        doubts = tuple(_doubts(node))
        efa, expected_efa = _count(node, EFA), known.efa if known else None
        assessed.append(
            Fitness(node, gpus, expected, efa, expected_efa, tuple(obstacles), doubts, uncounted=uncounted)
        )
    return tuple(assessed)


def leaving_reason(node: Node) -> str:
    """Return why a node is likely to be replaced while a job runs on it; empty if nothing indicates it."""
    reasons = [] if node.ready else ["it is not Ready"]
    reasons += ["it is cordoned"] if node.cordoned else []
    reasons += [taint.key for taint in node.taints if taint.key.startswith(_LEAVING)]
    reasons += [problem for condition in node.conditions if (problem := _problem(condition))]
    reasons += [obstacle.evidence for obstacle in _hyperpod_obstacles(node)]
    return ", ".join(reasons)


def on_hyperpod(node: Node) -> bool:
    return node.labels.get("sagemaker.amazonaws.com/compute-type") == "hyperpod"


def _is_meant(node: Node, job: "JobSpec") -> bool:
    # AKS writes a type in two ways: standard_nd40rs_v2 and Standard_ND40rs_v2.
    wanted, found = plain_type(job.instance_type).casefold(), node.instance_type.casefold()
    if wanted and found and found != wanted:
        return False
    if any(node.labels.get(name) != value for name, value in job.node_selector.items()):
        return False
    if job.gpus_per_node == 0:
        return True
    if GPU in node.capacity or GPU in node.allocatable or _mig(node):
        return True
    known = instance_called(node.instance_type)
    return known is not None or any(node.labels.get(name) not in (None, "0", "false") for name in _GPU_LABELS)


def _count(node: Node, resource: str) -> int | None:
    return node.allocatable[resource] // 1000 if resource in node.allocatable else None


def _most_by_type(nodes: Iterable[Node]) -> Mapping[str, int]:
    """Return the GPUs that most nodes of a type have, by type; for types outside the catalogue."""
    counts: dict[str, Counter[int]] = {}
    for node in nodes:
        gpus = _count(node, GPU)
        if gpus and node.instance_type:
            counts.setdefault(node.instance_type, Counter())[gpus] += 1
    return {name: max(found, key=lambda gpus: (found[gpus], gpus)) for name, found in counts.items()}


def _mig(node: Node) -> Mapping[str, int]:
    """The MIG instances or shared GPUs that a node offers instead of whole GPUs."""
    return {
        name: amount // 1000
        for name, amount in node.allocatable.items()
        if (name.startswith("nvidia.com/mig-") or name == f"{GPU}.shared") and amount
    }


def _gpu_obstacles(node: Node, gpus: int | None, expected: int | None, job: "JobSpec") -> Iterator[Finding]:
    if job.gpus_per_node == 0:
        return
    pieces, capacity = _mig(node), node.capacity.get(GPU, 0) // 1000
    offered = ", ".join(f"{count} {name}" for name, count in sorted(pieces.items()))
    if pieces and not gpus:
        yield Finding.error(f"offers {offered} and no whole GPU", _RECONFIGURE, "gpu")
    elif gpus is None:
        should = f", {expected} expected for {node.instance_type}" if expected else ""
        yield Finding.error(f"offers no {GPU}{should}", _NO_GPU, "gpu")
    elif gpus == 0:
        yield Finding.error(f"0 of {capacity} {GPU} can be allocated", _ALL_SICK, "gpu")
    elif _is_shared(node, gpus, expected):
        shares = f"{gpus} {GPU} that are shares of {expected or 'fewer'} GPUs"
        yield Finding.error(f"offers {shares} (time-slicing or MPS)", _RECONFIGURE, "gpu")
    elif expected and gpus < expected:
        # A job that wants fewer GPUs than are left can use the node.
        if job.gpus_per_node is None or gpus < job.gpus_per_node:
            text = f"{gpus} of {expected} GPUs" + (f" ({capacity} in capacity)" if capacity != gpus else "")
            yield Finding.error(text, _MISSING, "gpu")
    elif job.gpus_per_node and gpus < job.gpus_per_node:
        yield Finding.error(f"has {gpus} GPUs, {job.gpus_per_node} are wanted", _SMALLER, "gpu")


_NO_GPU = (
    "see check device-plugin; a new node may still install its driver; if the plugin runs there, read its "
    "log: the driver may have come after it"
)
_ALL_SICK = "read the log of the device plugin on that node: it has found every GPU unhealthy, or MIG is on"
_RECONFIGURE = "use whole GPUs: turn MIG, time-slicing or MPS off for these nodes, or name others"
_SMALLER = "ask for fewer GPUs per node, or name another instance type"
_MISSING = "cordon the node and have it replaced; search for its Xid errors first (dmesg | grep Xid)"


def _is_shared(node: Node, gpus: int, expected: int | None) -> bool:
    replicas = node.labels.get("nvidia.com/gpu.replicas", "1")
    strategy = node.labels.get("nvidia.com/gpu.sharing-strategy", "none")
    product = node.labels.get("nvidia.com/gpu.product", "")
    shared = strategy not in ("", "none") or product.endswith("-SHARED") or replicas not in ("", "0", "1")
    return shared or bool(instance_called(node.instance_type) and expected and gpus > expected)


def _health_obstacles(node: Node, job: "JobSpec") -> Iterator[Finding]:
    if not node.ready:
        ready = next((c for c in node.conditions if c.type == "Ready"), None)
        reason = f": {ready.reason}" if ready and ready.reason else ""
        yield _health(f"not Ready{reason}", "find out why with: kubectl describe node " + node.name)
    elif node.cordoned:
        yield _health("cordoned", f"if nobody needs the cordon: kubectl uncordon {node.name}")
    for condition in node.conditions:
        if problem := _problem(condition):
            yield _health(problem, _REPLACE)
    yield from _hyperpod_obstacles(node)
    for taint in node.taints:
        if _keeps_away(taint, job):
            value = f"={taint.value}" if taint.value else ""
            yield _health(f"tainted {taint.key}{value}:{taint.effect}", _remedy_for(taint))


def _remedy_for(taint: Taint) -> str:
    if taint.key.endswith(_STARTING):
        return "wait: the node is still starting; the controller that set the taint removes it"
    if taint.key.startswith(_LEAVING):
        return "use another node: this one is about to be removed"
    return f"if the job may run there: --tolerate {taint.key}"


_REPLACE = "have the node repaired or replaced by its owner; nothing is replaced from here"


def _health(text: str, fix: str) -> Finding:
    return Finding.error(text, fix, "node-health")


def _keeps_away(taint: Taint, job: "JobSpec") -> bool:
    known = taint.key in _BY_STATE or taint.key == HEALTH or job.tolerates(taint.key)
    pressure = taint.key.startswith("node.kubernetes.io/") and taint.key.endswith("-pressure")
    return taint.effect in ("NoSchedule", "NoExecute") and not known and not pressure


def _problem(condition: Condition) -> str:
    """The fault that a condition reports about its node; empty if there is none, or only a doubt."""
    if is_doubtful(condition):
        return ""
    text = f"{condition.type}" + (f" ({condition.reason})" if condition.reason else "")
    if _is_good(condition.type):
        sick = condition.type in _AGENT or _names_a_gpu_fault(condition)
        return f"{text} is False" if sick and condition.status == "False" else ""
    if condition.status != "True":
        return ""
    if condition.type in (*_PRESSURES, *_PROBLEMS) or _names_a_gpu_fault(condition):
        return text
    return ""


def _is_good(kind: str) -> bool:
    """Return whether a condition of this type, such as `GpuHealthy`, is fine when it is True."""
    plain = kind.casefold()
    negated = any(word in plain for word in ("not", "unready", "unhealthy", "unavailable"))
    return plain.endswith(("ready", "healthy", "available", "passed", "ok")) and not negated


def _names_a_gpu_fault(condition: Condition) -> bool:
    words = f"{condition.type} {condition.reason} {condition.message}".casefold()
    if condition.type == "Ready":
        return False
    return any(word in words.replace(" ", "") for word in _GPU_WORDS)


def is_doubtful(condition: Condition) -> bool:
    """Return whether a condition reports a fault that may be old or a false alarm."""
    bad = condition.status == ("False" if _is_good(condition.type) else "True")
    return bad and _LATCHING in condition.reason.casefold()


def _hyperpod_obstacles(node: Node) -> Iterator[Finding]:
    status, deep = node.labels.get(HEALTH, "Schedulable"), node.labels.get(DEEP_CHECK, "Passed")
    if status != "Schedulable":
        wait = "HyperPod repairs it by itself where node recovery is Automatic; else ask its owner"
        yield _health(f"HyperPod calls it {status}", wait)
    if deep == "InProgress":
        yield _health("its deep health check is still running", "wait for it: the node is not faulty")
    elif deep == "Failed":
        yield _health("its deep health check failed", _REPLACE)
    marks = {**node.annotations, **node.labels}
    faults = [marks[name] for name in FAULTS if marks.get(name)]
    if faults:
        yield _health(f"HyperPod has found a fault: {', '.join(dict.fromkeys(faults))}", _REPLACE)


def _doubts(node: Node) -> Iterator[Finding]:
    for condition in node.conditions:
        if is_doubtful(condition):
            text = f"{condition.type} ({condition.reason}): may be old, or a false alarm"
            yield _health(text, "run dcgmi diag -r 1 on the node; restart the agent if it is clean")
