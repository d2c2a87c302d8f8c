"""The one table of hardware: GPUs, the instance types that training can be planned for, the room on a node.

GPUs, memory and prices of the types come from Karpenter's AWS provider (aws/karpenter-provider-aws, commit
1d927085: `website/content/en/preview/reference/instance-types.md` and `zz_generated.pricing_aws.go`). Types
without GPUs are left out.
"""

import difflib
import re
from dataclasses import dataclass, replace

from trainyard.errors import ConfigError

PRICES_AS_OF = "2026-07-20"
"""Date of the prices: us-east-1, on demand, in US dollars."""
# The resources by which pods request GPUs and EFA interfaces; taints of such nodes have the same names.
GPU, EFA = "nvidia.com/gpu", "vpc.amazonaws.com/efa"
HYPERPOD = "ml."
"""HyperPod's names are EC2's with this prefix; its prices differ and are not known here."""
_HUGEPAGES_MIB_PER_CPU = 220
"""Memory that the EFA setup reserves as pages of 2 MiB (bottlerocket-core-kit issue 141)."""
_SYSTEM_MIB, _SYSTEM_SHARE = 1536, 0.07
"""Memory left to the kubelet, the system and DaemonSets, the same as HyperPod's own command line leaves."""
_DAEMONS_MIB = 500
"""Memory of the usual DaemonSets, which Karpenter adds to the pod's."""
_SYSTEM_MILLIS, _SYSTEM_CPU_SHARE = 700, 0.02


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU."""

    name: str
    """The words by which its driver and the catalogue name it."""
    architecture: str
    """As nvcc names it: developer.nvidia.com/cuda-gpus. The A10G is AWS's variant of the A10."""
    peak_bfloat16: float | None
    """Peak FLOP/s of dense products; None when not known."""
    peak_float32: float | None
    """Peak FLOP/s without tensor cores; None when not known."""


GPUS = (
    Gpu("H100 PCIe", "sm_90", 756e12, 51e12),
    Gpu("H100 NVL", "sm_90", 835e12, 60e12),
    Gpu("RTX PRO 6000 Server", "sm_120", 500e12, 120e12),
    Gpu("RTX PRO 4500", "sm_120", None, None),
    Gpu("H100", "sm_90", 989e12, 67e12),
    Gpu("H200", "sm_90", 989e12, 67e12),
    Gpu("A100", "sm_80", 312e12, 19.5e12),
    Gpu("GB200", "sm_100", 2.5e15, None),
    Gpu("B200", "sm_100", 2.25e15, None),
    Gpu("B300", "sm_103", 2.25e15, None),
    Gpu("L40S", "sm_89", 362e12, 91.6e12),
    Gpu("L4", "sm_89", 121e12, 30.3e12),
    Gpu("A10G", "sm_86", 70e12, 35e12),
)
"""Particular names before general ones.

Peaks: dense bfloat16 as torchtitan counts it (`tools/utils.py`) where it knows the GPU, else half of the
sparse value in the maker's data sheet; float32 by data sheet. No data sheet states the RTX PRO 4500's.
"""


def find_gpu(name: str) -> Gpu | None:
    """Return the GPU that a driver or the catalogue calls `name`; None for one that is not in the table."""
    words = set(re.findall(r"\w+", name))
    return next((gpu for gpu in GPUS if set(gpu.name.split()) <= words), None)


@dataclass(frozen=True)
class InstanceType:
    """One instance type."""

    name: str
    gpu: str
    """The vendor's name of the GPU."""
    gpus: int
    gpu_memory_mib: int
    """Memory of one GPU, as the driver reports it."""
    vcpus: int
    memory_gib: int
    """Main memory of the machine."""
    allocatable_mib: int
    """Karpenter's estimate of the memory for all pods of a node; a pod above it never gets a node."""
    efa: int
    """Network interfaces of the Elastic Fabric Adapter that can be attached; 0 where there are none."""
    rdma: bool | None
    """Whether its EFA reads and writes the memory of GPUs and hosts directly; None when not known.

    Source: aws-ofi-nccl, `src/platform-aws.cpp` (`gdr_required`), and its pull request 1057 (g7e).
    """
    usd_per_hour: float | None
    """Price per hour; None when no on-demand price is known."""

    @property
    def architecture(self) -> str:
        """The architecture of its GPUs, such as `sm_90`."""
        gpu = find_gpu(self.gpu)
        assert gpu is not None, f"{self.gpu} is not in GPUS"
        return gpu.architecture


_ROWS: tuple[tuple[str, str, int, int, int, int, int, int, bool | None, float | None], ...] = (
    ("g5.xlarge", "A10G", 1, 22888, 4, 16, 14162, 0, False, 1.006),
    ("g5.2xlarge", "A10G", 1, 22888, 8, 32, 29317, 0, False, 1.212),
    ("g5.4xlarge", "A10G", 1, 22888, 16, 64, 57691, 0, False, 1.624),
    ("g5.8xlarge", "A10G", 1, 22888, 32, 128, 118312, 1, False, 2.448),
    ("g5.12xlarge", "A10G", 4, 22888, 48, 192, 173400, 1, False, 5.672),
    ("g5.16xlarge", "A10G", 1, 22888, 64, 256, 239554, 1, False, 4.096),
    ("g5.24xlarge", "A10G", 4, 22888, 96, 384, 355262, 1, False, 8.144),
    ("g5.48xlarge", "A10G", 8, 22888, 192, 768, 723299, 1, False, 16.288),
    ("g6.xlarge", "L4", 1, 22888, 4, 16, 14162, 0, False, 0.8048),
    ("g6.2xlarge", "L4", 1, 22888, 8, 32, 29317, 0, False, 0.9776),
    ("g6.4xlarge", "L4", 1, 22888, 16, 64, 57691, 0, False, 1.3232),
    ("g6.8xlarge", "L4", 1, 22888, 32, 128, 118312, 1, False, 2.0144),
    ("g6.12xlarge", "L4", 4, 22888, 48, 192, 178933, 1, False, 4.6016),
    ("g6.16xlarge", "L4", 1, 22888, 64, 256, 234021, 1, False, 3.3968),
    ("g6.24xlarge", "L4", 4, 22888, 96, 384, 355262, 1, False, 6.6752),
    ("g6.48xlarge", "L4", 8, 22888, 192, 768, 718987, 1, False, 13.3504),
    ("gr6.4xlarge", "L4", 1, 22888, 16, 128, 118312, 0, False, 1.5392),
    ("gr6.8xlarge", "L4", 1, 22888, 32, 256, 239554, 1, False, 2.4464),
    ("g6e.xlarge", "L40S", 1, 45776, 4, 32, 29317, 0, False, 1.861),
    ("g6e.2xlarge", "L40S", 1, 45776, 8, 64, 59627, 0, False, 2.24208),
    ("g6e.4xlarge", "L40S", 1, 45776, 16, 128, 118312, 0, False, 3.00424),
    ("g6e.8xlarge", "L40S", 1, 45776, 32, 256, 239554, 1, False, 4.52856),
    ("g6e.12xlarge", "L40S", 4, 45776, 48, 384, 360157, 1, False, 10.49264),
    ("g6e.16xlarge", "L40S", 1, 45776, 64, 512, 476504, 1, False, 7.57719),
    ("g6e.24xlarge", "L40S", 4, 45776, 96, 768, 721682, 2, False, 15.06559),
    ("g6e.48xlarge", "L40S", 8, 45776, 192, 1536, 1449132, 4, False, 30.13118),
    ("g7.2xlarge", "RTX PRO 4500", 1, 32768, 8, 32, 27161, 0, False, 2.52),
    ("g7.4xlarge", "RTX PRO 4500", 1, 32768, 16, 64, 54699, 0, False, 3.04208),
    ("g7.8xlarge", "RTX PRO 4500", 1, 32768, 32, 128, 113934, 1, None, 4.08624),
    ("g7.12xlarge", "RTX PRO 4500", 2, 32768, 48, 192, 173169, 1, None, 7.12832),
    ("g7.24xlarge", "RTX PRO 4500", 4, 32768, 96, 384, 346715, 1, None, 14.25664),
    ("g7.48xlarge", "RTX PRO 4500", 8, 32768, 192, 768, 718756, 2, None, 28.51328),
    ("g7e.2xlarge", "RTX PRO 6000 Server", 1, 98304, 8, 64, 57471, 0, False, 3.36312),
    ("g7e.4xlarge", "RTX PRO 6000 Server", 1, 98304, 16, 128, 115320, 0, False, 3.99816),
    ("g7e.8xlarge", "RTX PRO 6000 Server", 1, 98304, 32, 256, 236562, 1, False, 5.26824),
    ("g7e.12xlarge", "RTX PRO 6000 Server", 2, 98304, 48, 512, 477659, 1, True, 8.28608),
    ("g7e.24xlarge", "RTX PRO 6000 Server", 4, 98304, 96, 1024, 962625, 2, True, 16.57216),
    ("g7e.48xlarge", "RTX PRO 6000 Server", 8, 98304, 192, 2048, 1932558, 4, True, 33.14432),
    ("p4d.24xlarge", "A100 40GB", 8, 40960, 96, 1152, 1082712, 4, True, 21.957642),
    ("p4de.24xlarge", "A100 80GB", 8, 81920, 96, 1152, 1082712, 4, True, 27.44705),
    ("p5.4xlarge", "H100", 1, 81920, 16, 256, 240830, 1, None, 6.88),
    ("p5.48xlarge", "H100", 8, 81920, 192, 2048, 1938410, 32, True, 55.04),
    ("p5e.48xlarge", "H200", 8, 144384, 192, 2048, 1938410, 32, True, None),
    ("p5en.48xlarge", "H200", 8, 144384, 192, 2048, 1937332, 16, True, 63.296),
    ("p6-b200.48xlarge", "B200", 8, 183359, 192, 2048, 1937332, 8, True, 113.9328),
    # Not in Karpenter's reference: the vendor's page of the type, of which UltraServers of 36 and 72 GPUs
    # consist. The memory for pods is the other types' share; the number of EFA interfaces is not verified.
    ("p6e-gb200.36xlarge", "GB200", 4, 189471, 144, 960, 900000, 4, True, None),
    ("p6-b300.48xlarge", "B300", 8, 275040, 192, 4096, 3877198, 16, True, 142.416),
)
CATALOGUE = tuple(InstanceType(*row) for row in _ROWS)
"""All types, by family, smaller ones first."""
# Instance type -> bus bandwidth of an all-reduce over two machines, and line rate of one machine; in GB/s.
# Bandwidth: the rows of 1 GiB, float, out of place, of all_reduce_perf in aws-samples/
# awsome-distributed-training, micro-benchmarks/nccl-tests/README.md, commit 0162aacd, read on 2026-11-27.
# Line rate: 3,200 and 400 Gbit/s of https://aws.amazon.com/ec2/instance-types/.
ALL_REDUCE = {"p5.48xlarge": (436.95, 400.0), "p4de.24xlarge": (76.79, 50.0)}


def plain_type(name: str) -> str:
    """Return an instance type without HyperPod's prefix; the machine's type for an UltraServer of GB200."""
    return re.sub(r"^(?:u-)?(p6e-gb200)x(?:36|72)$", r"\1.36xlarge", name.removeprefix(HYPERPOD))


def find_instance(name: str) -> InstanceType:
    """Return the type called `name`, with or without HyperPod's `ml.`. ConfigError names the nearest one."""
    instance = instance_called(name)
    if instance is None:
        raise ConfigError(f"{name}: unknown instance type{_suggestion(plain_type(name))}")
    return instance if name == instance.name else replace(instance, name=name, usd_per_hour=None)


def instance_called(name: str) -> InstanceType | None:
    """Return the type of this EC2 or HyperPod name; None if it is not in the catalogue."""
    return next((instance for instance in CATALOGUE if instance.name == plain_type(name)), None)


def _suggestion(name: str) -> str:
    names = [instance.name for instance in CATALOGUE]
    near = difflib.get_close_matches(name, names, n=1) if len(name) < 100 else []
    families = ", ".join(dict.fromkeys(known.partition(".")[0] for known in names))
    return f"; did you mean {near[0]}?" if near else f"; known families: {families}"


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
    """Return a lower bound of the room on a node of this type; None if the catalogue lacks the type.

    The kubelet reserves memory by the number of pods that a node may hold, and the EFA setup reserves pages
    of 2 MiB; both depend on the node, not on its type. So the room is less than a node really has, and less
    than Karpenter, which starts nodes for waiting pods, expects it to have.
    """
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
