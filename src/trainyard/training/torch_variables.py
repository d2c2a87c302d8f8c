"""The environment variables that torch reads once, as it starts: they are set before it is imported."""

import os
from collections.abc import MutableMapping

VARIABLES = {
    # Products on a GPU repeat to the bit.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    # Threads that wait do not spin.
    "OMP_WAIT_POLICY": "PASSIVE",
    # The profiler says errors of its own only; without a GPU it would report that there is none.
    "KINETO_LOG_LEVEL": "5",
    # NCCL remembers its last collectives, which a hang leaves in `logs/` (it takes no measurable time).
    "TORCH_FR_BUFFER_SIZE": "2000",
}


def set_torch_variables(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set what is not set by the person who started the program."""
    for name, value in VARIABLES.items():
        environment.setdefault(name, value)
