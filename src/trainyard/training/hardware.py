"""Choose the device of a run, make it deterministic, and describe it for `run.json`.

`cluster.preflight` judges whether the machine is good enough.
"""

import os
import platform
import resource
import sys
from typing import Any

import torch
from torch.utils import deterministic

from trainyard.config.schema import ComputeConfig, Config
from trainyard.errors import ConfigError
from trainyard.run.commands import script_command
from trainyard.training.allocator import keep_memory
from trainyard.training.state import seed_everything
from trainyard.training.vector_width import set_vector_width, vector_width


def prepare_device(config: Config) -> torch.device:
    """Choose the device; set threads, determinism and seeds. Raises ConfigError if it does not exist."""
    _set_determinism(config.compute)
    neighbours = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    torch.set_num_threads(config.compute.threads or max(1, (os.cpu_count() or 1) // neighbours))
    device = _own_device(config.model.device, neighbours)
    name = str(device)
    # Every process of a machine checks for all of them, so that none waits for one without a GPU.
    if device.type == "cuda" and max(device.index or 0, neighbours - 1) >= torch.cuda.device_count():
        asked = f"{name} was asked for" if neighbours == 1 else f"{neighbours} processes want one each"
        raise ConfigError(
            f"model.device: {asked}, but torch {torch.__version__} sees "
            f"{torch.cuda.device_count()} GPUs here. Use --set model.device=auto (or cpu), or run "
            f"{script_command('check_environment.py')} to see why. Nothing was started."
        )
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if device.type == "cpu":
        keep_memory()
    bits = config.kernel_optimization.simd_bits
    if bits is not None and config.compute.compile and device.type == "cpu":
        set_vector_width(bits)
    seed_everything(config.training.seed)
    return device


def _own_device(name: str, neighbours: int) -> torch.device:
    """The device that `name` means for this process. Each process of a machine gets its own GPU."""
    if name == "auto":
        name = "cuda:0" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and (neighbours > 1 or device.index is None):
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return device


def _set_determinism(config: ComputeConfig) -> None:
    if config.compile:
        torch.use_deterministic_algorithms(config.deterministic)
    else:  # the same, without importing the compiler, which takes a third as long as importing torch
        torch.set_deterministic_debug_mode("error" if config.deterministic else "default")
    torch.backends.cudnn.benchmark = not config.deterministic
    # Filling new memory takes time and is not needed: our kernels write memory before they read it.
    deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def hardware_facts(device: torch.device, world_size: int, *, compiled: bool = False) -> dict[str, Any]:
    """The `hardware` of `run.json`; for `compiled` kernels on a CPU also their vector width."""
    facts: dict[str, Any] = {
        "device": str(device),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "world_size": world_size,
        # The number of processes on this machine; null when torchrun does not give it.
        "local_world_size": _local_world_size(world_size),
        "platform": platform.platform(),
    }
    if compiled and device.type == "cpu":
        facts["simd_bits"] = vector_width()
    if device.type == "cuda":
        facts |= {"device_name": torch.cuda.get_device_name(device), "cuda": torch.version.cuda}
    return facts


def _local_world_size(world_size: int) -> int | None:
    if world_size == 1:
        return 1
    here = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(here) if here.isdecimal() else None


def memory_facts(device: torch.device) -> dict[str, int]:
    """Memory figures in bytes for a row of metrics.

    For a GPU: the memory in use by all programs, the total, and torch's own peak. Without a GPU: the peak
    main memory of the process.
    """
    if device.type != "cuda":
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return {"memory_peak_bytes": peak if sys.platform == "darwin" else peak * 1024}
    free, total = torch.cuda.mem_get_info(device)
    return {
        "gpu_memory_bytes": total - free,
        "gpu_memory_total_bytes": total,
        "gpu_memory_peak_bytes": torch.cuda.max_memory_allocated(device),
    }
