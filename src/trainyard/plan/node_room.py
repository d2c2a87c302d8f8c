"""Compute the room of one pod on a node from the instance type; `NodeRoom` also holds a measured one.

The figures are lower bounds. The kubelet reserves memory by the number of pods that a node may hold, and the
EFA setup reserves pages of 2 MiB; both depend on the node, not on its type. So the room is less than a node
really has, and less than Karpenter, which starts nodes for waiting pods, expects it to have.
"""

from dataclasses import dataclass

from trainyard.plan.instances import instance_called

_HUGEPAGES_MIB_PER_CPU = 220
"""Memory that the EFA setup reserves as pages of 2 MiB (bottlerocket-core-kit issue 141)."""
_SYSTEM_MIB, _SYSTEM_SHARE = 1536, 0.07
"""Memory left to the kubelet, the system and DaemonSets, the same as HyperPod's own command line leaves."""
_DAEMONS_MIB = 500
"""Memory of the usual DaemonSets, which Karpenter adds to the pod's."""
_SYSTEM_MILLIS, _SYSTEM_CPU_SHARE = 700, 0.02


@dataclass(frozen=True)
class NodeRoom:
    """The room of one pod, if each node gets one, on every node that it may be scheduled to."""

    gpus: int
    cpu_millis: int
    memory_mib: int
    efa: int
    hugepages_mib: int = 0
    instance_type: str = ""
    """The value of the nodes' label; empty where they differ or have none."""
    on_hyperpod: bool = False


def room_of_type(name: str) -> NodeRoom | None:
    """Return a lower bound of the room on a node of this type; None if the catalogue lacks the type."""
    instance = instance_called(name)
    if instance is None:
        return None
    pages = _HUGEPAGES_MIB_PER_CPU * instance.vcpus if instance.efa else 0
    memory = round(instance.memory_gib * 1024 * (1 - _SYSTEM_SHARE)) - pages - _SYSTEM_MIB
    return NodeRoom(
        instance.gpus,
        max(500, round(instance.vcpus * 1000 * (1 - _SYSTEM_CPU_SHARE)) - _SYSTEM_MILLIS),
        min(memory, instance.allocatable_mib - _DAEMONS_MIB),
        instance.efa,
        instance_type=name,
        on_hyperpod=name != instance.name,
    )
