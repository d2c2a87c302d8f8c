"""Compute the main memory of training on one machine: all tensors on a CPU, staged copies with GPUs.

The caller passes in the memory of the machine; `machine.preflight` judges.
"""

from trainyard.config.schema import Config
from trainyard.errors import ConfigError
from trainyard.plan.device import cpu
from trainyard.plan.device_memory import highest_memory_peak, host_bytes
from trainyard.plan.workload import TrainingWorkload, training_workload


def main_memory_need(config: Config, *, gpus: int) -> int:
    """Return the bytes of tensors at the peak of a step on a machine with `gpus` GPUs; 0 is the CPU.

    All processes of the machine count, as far as their memory can be computed.
    """
    if gpus:
        processes = gpus if config.compute.strategy != "single" else 1
        return processes * host_bytes(_workload(config, on_gpu=True, processes=gpus))
    return highest_memory_peak(_workload(config, on_gpu=False, processes=1)).parts.total


def reserve_bytes(available_bytes: int) -> int:
    """Bytes that a process may use in addition to its tensors."""
    return cpu(cores=1, memory_bytes=available_bytes).reserve_bytes


def _workload(config: Config, *, on_gpu: bool, processes: int) -> TrainingWorkload:
    """Return the workload on `processes`, or on the fewest that `compute` allows."""
    try:
        return training_workload(config, on_gpu=on_gpu, processes=processes)
    except ConfigError:  # more machines train it than this one
        fewest = config.compute.replicas * config.compute.tensor_parallel
        return training_workload(config, on_gpu=on_gpu, processes=fewest)
