"""How much of a node a pod may request: by what the nodes of a cluster really have, or by the instance type.

    allocatable − what DaemonSets request ──share of the GPUs──> PodResources

The instance type alone says less than the node: the kubelet reserves memory by the number of pods that a node
may hold, and the EFA setup takes pages of 2 MiB away.
"""

from dataclasses import dataclass

from trainyard.config.cluster import ClusterPodConfig
from trainyard.jobs.job_plan import PodResources
from trainyard.plan.environment.surroundings import instance_called
from trainyard.plan.instances import InstanceType

_MIB_OF = {"Mi": 1, "Gi": 1024, "Ti": 1024**2, "Pi": 1024**3}
_BYTES_OF = {"M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_HUGEPAGES_MIB_PER_CPU = 220
"""What the EFA setup reserves as pages of 2 MiB (bottlerocket-core-kit issue 141)."""
_SYSTEM_MIB, _SYSTEM_SHARE = 1536, 0.07
"""Memory left to the kubelet, the system and DaemonSets, as HyperPod's own command line leaves it."""
_SYSTEM_MILLIS, _SYSTEM_CPU_SHARE = 700, 0.02
EFA_HUGEPAGES_MIB = 5120
"""What AWS's EFA examples request."""
_LEAST_SHARED_MIB = 1024


@dataclass(frozen=True)
class NodeRoom:
    """What one pod per node can have, on every node that it may come to."""

    gpus: int
    cpu_millis: int
    memory_mib: int
    efa: int
    hugepages_mib: int = 0
    instance_type: str = ""
    """The value of the nodes' label; empty where they differ or have none."""
    on_hyperpod: bool = False


def room_of_type(name: str) -> NodeRoom | None:
    """The room on a node of this type, less than it really has; None for a type that is not catalogued."""
    instance = instance_called(name)
    if instance is None:
        return None
    return NodeRoom(
        instance.gpus,
        max(500, round(instance.vcpus * 1000 * (1 - _SYSTEM_CPU_SHARE)) - _SYSTEM_MILLIS),
        _memory_of(instance),
        instance.efa,
        instance_type=name,
        on_hyperpod=name != instance.name,
    )


def _memory_of(instance: InstanceType) -> int:
    whole = instance.memory_gib * 1024
    pages = _HUGEPAGES_MIB_PER_CPU * instance.vcpus if instance.efa else 0
    return round(whole * (1 - _SYSTEM_SHARE)) - pages - _SYSTEM_MIB


def pod_resources(room: NodeRoom | None, settings: ClusterPodConfig, *, gpus: int, efa: bool) -> PodResources:
    """What a pod with `gpus` GPUs requests; `efa` if it is to have its share of the interfaces.

    Without a room, `settings` has the processors and the memory.
    """
    share = gpus / room.gpus if room and room.gpus and gpus else 1.0
    cpu = settings.cpu * 1000 if settings.cpu else _share(room.cpu_millis if room else 0, share)
    memory = mebibytes(settings.memory) if settings.memory else _share(room.memory_mib if room else 0, share)
    shared = mebibytes(settings.shared_memory) if settings.shared_memory else _shared(memory)
    interfaces = max(1, round(room.efa * share)) if efa and room and room.efa else 0
    pages = room.hugepages_mib if interfaces and room else 0
    return PodResources(
        cpu_millis=cpu,
        memory_mib=memory,
        gpus=gpus,
        efa=interfaces,
        hugepages_mib=EFA_HUGEPAGES_MIB if pages >= EFA_HUGEPAGES_MIB else 0,
        shared_memory_mib=shared,
    )


def _share(whole: int, share: float) -> int:
    """A share in whole hundreds where there are so many: the last digits mean nothing."""
    part = int(whole * share)
    return part - part % 100 if part > 1000 else part


def _shared(memory_mib: int) -> int:
    return min(memory_mib, max(_LEAST_SHARED_MIB, memory_mib // 4))


def mebibytes(size: str) -> int:
    """Whole MiB of a size such as 64Gi or 100G."""
    number = "".join(letter for letter in size if letter.isdigit())
    unit = size[len(number) :]
    if unit in _MIB_OF:
        return int(number) * _MIB_OF[unit]
    return int(number) * _BYTES_OF[unit] // 2**20
