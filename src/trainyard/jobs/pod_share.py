"""What a pod requests of the room on its node: its share of the GPUs, and as much of everything else."""

from trainyard.config.cluster import ClusterPodConfig
from trainyard.jobs.job_plan import PodResources
from trainyard.plan.node_room import NodeRoom

_MIB_OF = {"Mi": 1, "Gi": 1024, "Ti": 1024**2, "Pi": 1024**3}
_BYTES_OF = {"M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
EFA_HUGEPAGES_MIB = 5120
"""What AWS's EFA examples request."""
_LEAST_SHARED_MIB = 1024


def pod_resources(room: NodeRoom | None, settings: ClusterPodConfig, *, gpus: int, efa: bool) -> PodResources:
    """What a pod with `gpus` GPUs requests; `efa` if it is to have its share of the interfaces.

    Without a room, `settings` has the processors and the memory.
    """
    share = min(1.0, gpus / room.gpus) if room and room.gpus and gpus else 1.0
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
