"""Choose the device of a run, make it deterministic, and describe it for `run.json`.

`machine.preflight` judges whether the machine is good enough, from `torch_facts`.
"""

import ctypes
import os
import platform
import random
import resource
import sys
import warnings
from collections.abc import MutableMapping
from typing import Any

import numpy as np
import torch
from torch.utils import deterministic

from trainyard.config.schema import ComputeConfig, Config
from trainyard.errors import ConfigError
from trainyard.run.suggested_commands import trainyard_command

# mallopt(3): the numbers of glibc's malloc.h, and their values.
_HEAP_SETTINGS = {
    "M_MMAP_THRESHOLD": (-3, (1 << 31) - 1),  # bytes, the largest `int`; larger blocks are still mapped
    "M_TRIM_THRESHOLD": (-1, -1),  # never
    "M_TOP_PAD": (-2, 64 << 20),  # the bytes by which the heap grows beyond the request
}

_SSE = "x86-64-v2"

# Key in `run.json` -> NCCL's variable, and the value that every collective supports. NCCL otherwise chooses
# by the size of a message and its model of the machines, and each choice sums in another order. Rings also
# exclude sums within switches (NVLS, SHARP), which are not reproducible.
_NCCL_PINS = {
    "nccl_algorithm": ("NCCL_ALGO", "Ring"),
    "nccl_protocol": ("NCCL_PROTO", "Simple"),
}


def prepare_device(config: Config) -> torch.device:
    """Choose the device; set threads, determinism and seeds. Raises ConfigError if it does not exist."""
    _set_determinism(config.compute)
    neighbours = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    torch.set_num_threads(config.compute.threads or max(1, (os.cpu_count() or 1) // neighbours))
    device = _own_device(config.model.device, neighbours)
    name = str(device)
    # Every process of a machine checks for all of them, so that none waits for one without a GPU.
    if device.type == "cuda" and max(device.index or 0, neighbours - 1) >= torch.cuda.device_count():
        reason = f"{name} was requested" if neighbours == 1 else f"{neighbours} processes want one each"
        raise ConfigError(
            f"model.device: {reason}, but torch {torch.__version__} sees "
            f"{torch.cuda.device_count()} GPUs here. Use --set model.device=auto (or cpu), or run "
            f"{trainyard_command('step environment')} to see why. Nothing was started."
        )
    if device.type == "cuda":
        torch.cuda.set_device(device)
        if config.compute.deterministic:
            pin_choices(compiled=config.compute.compile)
    if device.type == "cpu":
        keep_memory()
        if config.compute.compile and " " in sys.prefix:  # torch 2.13 passes it to the linker unquoted
            raise ConfigError(
                f"compute.compile: torch cannot compile for a CPU from a folder with a space, and it is in "
                f"{sys.prefix}. Move the clone, or add --set compute.compile=false. Nothing was started."
            )
        if config.compute.compile and config.kernel_optimization.simd_bits is not None:
            set_vector_width(config.kernel_optimization.simd_bits)
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


def pin_choices(*, compiled: bool, environment: MutableMapping[str, str] = os.environ) -> None:
    """Pin the choices that GPU libraries make by measuring, because another choice sums in another order.

    Variables that the user has set are left as they are. It must run before the first collective.
    """
    for variable, value in _NCCL_PINS.values():
        environment.setdefault(variable, value)
    if compiled:
        from torch._inductor import config

        # Otherwise inductor times several kernels of a reduction on the GPU and takes the fastest.
        config.deterministic = True


def hardware_facts(device: torch.device, world_size: int, *, compiled: bool = False) -> dict[str, Any]:
    """The `hardware` of `run.json`; for `compiled` kernels on a CPU also their vector width."""
    here = os.environ.get("LOCAL_WORLD_SIZE", "")
    facts: dict[str, Any] = {
        "device": str(device),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "world_size": world_size,
        # The number of processes on this machine; null when torchrun does not give it.
        "local_world_size": 1 if world_size == 1 else int(here) if here.isdecimal() else None,
        "platform": platform.platform(),
    }
    if compiled and device.type == "cpu":
        facts["simd_bits"] = vector_width()
    if device.type == "cuda":
        facts |= {"device_name": torch.cuda.get_device_name(device), "cuda": torch.version.cuda}
    if device.type == "cuda" and world_size > 1:
        version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        facts["nccl"] = ".".join(map(str, version))
        # The configured algorithm and protocol; `auto` where it chooses.
        facts |= {name: os.environ.get(variable) or "auto" for name, (variable, _) in _NCCL_PINS.items()}
    return facts


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


def seed_everything(seed: int) -> None:
    """Seed every generator a model or a library may draw from."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def keep_memory() -> bool:
    """Make glibc keep freed memory; return whether it does. Other C libraries are left unchanged."""
    if "CS_GNU_LIBC_VERSION" not in os.confstr_names or not os.confstr("CS_GNU_LIBC_VERSION"):
        return False
    library = ctypes.CDLL(None)
    done = [library.mallopt(number, value) for number, value in _HEAP_SETTINGS.values()]
    return all(done)


def set_vector_width(bits: int) -> None:
    """Compile kernels for vectors of `bits`. Raises ConfigError when the CPU or the compiler has none."""
    from torch._inductor import config

    here = available_widths()
    if bits not in here:
        known = ", ".join(map(str, here)) or "none"
        raise ConfigError(
            f"kernel_optimization.simd_bits: {bits} was requested, but kernels compiled here have vectors of "
            f"{known} bits. Set one of these, or null for the widest. Nothing was started."
        )
    config.cpp.simdlen = bits
    if bits == 128 and _on_x86():
        config.cpp.march = _SSE


def available_widths() -> list[int]:
    """The vector widths in bits for which kernels can be compiled on this machine."""
    from torch._inductor.cpu_vec_isa import valid_vec_isa_list

    explicit = {isa.bit_width() for isa in valid_vec_isa_list()}
    return sorted(explicit | ({128} if _on_x86() else set()))


def vector_width() -> int:
    """The vector width in bits for which kernels are currently compiled."""
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    return pick_vec_isa().bit_width() or 128


def _on_x86() -> bool:
    return platform.machine() in ("x86_64", "AMD64")


def torch_facts() -> dict[str, Any]:
    """Return the installed torch and the memory of each GPU that it can use, as plain data.

    The version is without the local part (`2.13.0`, not `2.13.0+cu130`); `cuda` is None for a CPU build. A
    driver that is too old counts as no GPUs; torch's own warning about it is suppressed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        usable = torch.cuda.device_count() if torch.cuda.is_available() else 0
        memory = [torch.cuda.get_device_properties(i).total_memory for i in range(usable)]
    version = torch.__version__.partition("+")[0]
    return {"version": version, "cuda": torch.version.cuda, "gpu_memory_bytes": memory}
