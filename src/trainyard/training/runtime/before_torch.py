"""Set torch's variables before it is imported, because it reads the environment once."""

import os

_VARIABLES = {
    # Matrix products on a GPU are bitwise reproducible.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    # Waiting threads do not spin.
    "OMP_WAIT_POLICY": "PASSIVE",
    # NCCL records its last collectives, which a hang writes to `logs/` (it takes no measurable time).
    "TORCH_FR_BUFFER_SIZE": "2000",
}


def before_torch() -> None:
    """Set torch's variables; those that the user has set are left as they are."""
    for name, value in _VARIABLES.items():
        os.environ.setdefault(name, value)
