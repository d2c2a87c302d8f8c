"""Prepare a process before it imports torch, because that takes seconds and reads the environment once.

before_torch ---> imports, building, loading: garbage collection is off ---> resume_garbage_collection
"""

import gc
import os

_VARIABLES = {
    # Matrix products on a GPU are bitwise reproducible.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    # Waiting threads do not spin.
    "OMP_WAIT_POLICY": "PASSIVE",
    # NCCL records its last collectives, which a hang writes to `logs/` (it takes no measurable time).
    "TORCH_FR_BUFFER_SIZE": "2000",
}

_THRESHOLDS = (700, 10, 10)
"""The numbers of new objects, and of searches, after which Python 3.11 searches for garbage."""


def before_torch() -> None:
    """Set torch's variables; those that the user has set are left as they are.

    Garbage collection is off until `resume_garbage_collection`. The objects from imports stay alive, and
    searching all of them again and again takes a seventh of the import time.
    """
    for name, value in _VARIABLES.items():
        os.environ.setdefault(name, value)
    gc.disable()


def resume_garbage_collection() -> None:
    """Turn garbage collection on again if `before_torch` turned it off; it ignores all existing objects.

    It searches as often as Python 3.11 does by itself, because a few objects may hold gigabytes on a device.
    """
    if not gc.isenabled():
        gc.freeze()
        gc.set_threshold(*_THRESHOLDS)
        gc.enable()
