"""Describe the device that a plan is for: its memory, the usable share of it, its peak FLOP/s.

It inspects no machine: the caller passes in the local hardware, and `instances` lists the types to rent.
"""

from dataclasses import dataclass
from typing import Any

from trainyard.config.schema import Config
from trainyard.plan.flops import flops_per_token
from trainyard.plan.instances import InstanceType, find_gpu

_MIB, _GIB = 2**20, 2**30
_RESERVE_BYTES = _GIB
_RESERVE_SHARE = 0.05
_THREADS_A_CORE = 2

_CPU_CORE_FLOAT32, _CPU_CORE_BFLOAT16 = 100e9, 210e9
"""FLOP/s of one core with AVX-512 bfloat16 products, measured with torch; a guess for other cores."""


@dataclass(frozen=True)
class Device:
    """One device that holds a model, or its share of one."""

    name: str
    on_gpu: bool
    memory_bytes: int
    peak_float32: float | None
    """Peak FLOP/s; None when not known."""
    peak_bfloat16: float | None
    host_bytes: int | None = None
    """A GPU's share of the machine's main memory in bytes; None when not known."""

    @property
    def reserve_bytes(self) -> int:
        """Bytes reserved for process, CUDA context, NCCL buffers and fragmentation."""
        return reserve_of(self.memory_bytes)

    @property
    def usable_bytes(self) -> int:
        return max(0, self.memory_bytes - self.reserve_bytes)

    @property
    def host_usable_bytes(self) -> int | None:
        """Usable bytes of the main-memory share, after the same reserve; None when not known."""
        return None if self.host_bytes is None else max(0, self.host_bytes - reserve_of(self.host_bytes))

    def peak(self, *, bfloat16: bool) -> float | None:
        """Peak FLOP/s in that precision; None when not known."""
        return self.peak_bfloat16 if bfloat16 else self.peak_float32


def reserve_of(memory: int) -> int:
    """Return the bytes of a memory that a process may use in addition to its tensors."""
    return _RESERVE_BYTES + round(_RESERVE_SHARE * memory)


def gpu(name: str, memory_bytes: int, *, host_bytes: int | None = None) -> Device:
    """Return a GPU by the name that its driver or the catalogue uses."""
    known = find_gpu(name)
    peaks = (known.peak_float32, known.peak_bfloat16) if known else (None, None)
    return Device(name, True, memory_bytes, *peaks, host_bytes)


def cpu(*, cores: int, memory_bytes: int) -> Device:
    """Return all processors of a machine as one device."""
    return Device(
        f"{cores} CPU core{'' if cores == 1 else 's'}",
        on_gpu=False,
        memory_bytes=memory_bytes,
        peak_float32=cores * _CPU_CORE_FLOAT32,
        peak_bfloat16=cores * _CPU_CORE_BFLOAT16,
    )


def gpu_of(instance: InstanceType) -> Device:
    """Return one GPU of an instance type."""
    share = instance.memory_gib * _GIB // instance.gpus
    return gpu(instance.gpu, instance.gpu_memory_mib * _MIB, host_bytes=share)


def cpu_of(instance: InstanceType) -> Device:
    """Return the processors of an instance type."""
    cores = max(1, instance.vcpus // _THREADS_A_CORE)
    return cpu(cores=cores, memory_bytes=instance.memory_gib * _GIB)


def measures_of(config: Config) -> dict[str, Any]:
    """Return the fields of a run request for MFU: FLOPs per token and peak FLOP/s."""
    bfloat16 = config.model.dtype == "bfloat16"
    return {
        "flops_per_token": flops_per_token(config.model.architecture, config.data.sequence_length),
        "peak_flops": lambda name: gpu(name, 0).peak(bfloat16=bfloat16),
    }
