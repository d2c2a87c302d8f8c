"""Compute the main memory of training on one machine: all tensors on a CPU, staged copies with GPUs.

The caller passes in the memory of the machine; `machine.preflight` judges.
"""

from dataclasses import dataclass, replace

from trainyard.config.schema import Config
from trainyard.errors import ConfigError
from trainyard.plan.device import cpu
from trainyard.plan.device_memory import highest_memory_peak, host_bytes
from trainyard.plan.workload import TrainingWorkload, training_workload


@dataclass(frozen=True)
class MainMemoryNeed:
    """Memory of all processes of one machine, as far as it can be computed."""

    tensors_bytes: int
    """Bytes at the peak of a step."""
    largest_batch_size: int | None
    """Largest batch size that fits; 0 if not even one sequence does; None with GPUs."""


def main_memory_need(config: Config, *, gpus: int, available_bytes: int) -> MainMemoryNeed:
    """Return the memory that `config` needs on a machine that trains on `gpus` GPUs; 0 is the CPU."""
    if gpus:
        work = _workload(config, on_gpu=True, processes=gpus)
        processes = gpus if config.compute.strategy != "single" else 1
        return MainMemoryNeed(processes * host_bytes(work), None)
    work = _workload(config, on_gpu=False, processes=1)
    room = cpu(cores=1, memory_bytes=available_bytes).usable_bytes
    return MainMemoryNeed(highest_memory_peak(work).parts.total, largest_batch_size(work, room))


def reserve_bytes(available_bytes: int) -> int:
    """Bytes that a process may use in addition to its tensors."""
    return cpu(cores=1, memory_bytes=available_bytes).reserve_bytes


def largest_batch_size(work: TrainingWorkload, room: int) -> int:
    """Return the most sequences per forward pass that fit into `room` bytes, at most those of `work`.

    Gradients are counted as accumulated: a smaller batch is the same training with more accumulation.
    """
    fits, too_many = 0, work.batch_size + 1
    while too_many - fits > 1:
        size = (fits + too_many) // 2
        smaller = replace(work, batch_size=size, accumulation=max(2, work.accumulation))
        if highest_memory_peak(smaller).parts.total <= room:
            fits = size
        else:
            too_many = size
    return fits


def _workload(config: Config, *, on_gpu: bool, processes: int) -> TrainingWorkload:
    """Return the workload on `processes`, or on the fewest that `compute` allows."""
    try:
        return training_workload(config, on_gpu=on_gpu, processes=processes)
    except ConfigError:  # more machines train it than this one
        fewest = config.compute.replicas * config.compute.tensor_parallel
        return training_workload(config, on_gpu=on_gpu, processes=fewest)
