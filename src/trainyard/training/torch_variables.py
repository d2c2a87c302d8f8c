"""Set the environment variables that torch reads once at its start. Call it before torch is imported."""

import os
from collections.abc import MutableMapping

VARIABLES = {
    # Matrix products on a GPU are bitwise reproducible.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    # Waiting threads do not spin.
    "OMP_WAIT_POLICY": "PASSIVE",
    # The profiler logs errors only; otherwise it would report that a machine without a GPU has none.
    "KINETO_LOG_LEVEL": "5",
    # NCCL records its last collectives, which a hang writes to `logs/` (it takes no measurable time).
    "TORCH_FR_BUFFER_SIZE": "2000",
}


def set_torch_variables(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set the variables that the user has not set."""
    for name, value in VARIABLES.items():
        environment.setdefault(name, value)
