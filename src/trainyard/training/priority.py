"""How much a thread that writes checkpoints may take from training: little.

It has the time it needs, and training has none to spare.
"""

import os
import sys
import threading
from contextlib import suppress

_NICENESS = 19
"""The most there is. Where nothing leaves a processor idle, the thread still gets about 1.5 % of one."""


def step_back() -> None:
    """Let other threads go first. On Linux this is the calling thread alone; elsewhere nothing happens."""
    if not hasattr(os, "setpriority") or not sys.platform.startswith("linux"):
        return
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
