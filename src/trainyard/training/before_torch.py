"""Prepare a process before it imports torch, because that takes seconds and reads the environment once.

before_torch ---> imports, building, loading: garbage collection is off ---> started
"""

import gc
from collections.abc import Callable
from pathlib import Path

from trainyard.run.early_digests import digests_begun
from trainyard.training.torch_variables import set_torch_variables


def before_torch(run_dir: Path | None, resume: str) -> Callable[[Path], str]:
    """Set torch's variables, and start to hash the checkpoint of `resume`; return a function for SHA-256.

    Garbage collection is off until `started`. The objects from imports stay alive, and searching all of them
    again and again takes a seventh of the import time.
    """
    set_torch_variables()
    gc.disable()
    return digests_begun(run_dir, resume)


def started() -> None:
    """Turn garbage collection on again if `before_torch` turned it off; it ignores all existing objects."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
