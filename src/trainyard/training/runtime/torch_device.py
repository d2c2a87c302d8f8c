"""Ask torch for its version, the CUDA release it was built for, and the GPUs it can use.

`machine.preflight` judges these facts.
"""

import warnings
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class TorchFacts:
    """The installed torch and the GPUs it can use."""

    version: str
    """The version without the local part: `2.13.0`, not `2.13.0+cu130`."""
    cuda: str | None
    """The CUDA release it was built for, such as `13.0`; None for a CPU build."""
    gpu_memory_bytes: tuple[int, ...]
    """The memory of each GPU that torch can use, in torch's order."""


def torch_facts() -> TorchFacts:
    """Ask torch. A driver that is too old counts as no GPUs; torch's own warning about it is suppressed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        usable = torch.cuda.device_count() if torch.cuda.is_available() else 0
        memory = tuple(torch.cuda.get_device_properties(i).total_memory for i in range(usable))
    return TorchFacts(torch.__version__.partition("+")[0], torch.version.cuda, memory)
