"""Let a training process fail: Python imports this at its start if PYTHONPATH names this folder.

$FAULT names what happens and $FAULT_RANK the process. $FAULT_STEPS are the steps, as "4,8": the first time in
step 4, the second time in step 8, and never again; empty: in every step. $FAULT_MARKS is a folder that all
attempts share.
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

GREEDY_BYTES = 6 << 30


def raise_an_error() -> None:
    raise KeyError("labels")


def wait_for_ever() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def take_all_memory() -> None:
    _ = b"x" * GREEDY_BYTES


def be_slow() -> None:
    time.sleep(1)


def be_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


FAULTS: dict[str, Callable[[], None]] = {
    "raises": raise_an_error,
    "hangs": wait_for_ever,
    "memory": take_all_memory,
    "killed": be_killed,
    "slow": be_slow,
}


def is_due(step: int, marks: Path) -> bool:
    """Whether the fault happens in this step; it is marked before it happens."""
    if not os.environ["FAULT_STEPS"]:
        return True
    steps = [int(text) for text in os.environ["FAULT_STEPS"].split(",")]
    marks.mkdir(parents=True, exist_ok=True)
    happened = len(list(marks.iterdir()))
    if happened >= len(steps) or step != steps[happened]:
        return False
    (marks / f"{happened}").touch()
    return True


def plant() -> None:
    from trainyard.training.data.batches import TokenBatches

    batch = TokenBatches.batch

    def batch_or_fault(self: TokenBatches, step: int) -> Any:
        if is_due(step, Path(os.environ["FAULT_MARKS"])):
            FAULTS[os.environ["FAULT"]]()
        return batch(self, step)

    TokenBatches.batch = batch_or_fault  # type: ignore[method-assign]


# LOCAL_RANK: only in the processes that torchrun starts, and not in torchrun itself.
if "LOCAL_RANK" in os.environ and os.environ.get("RANK") == os.environ.get("FAULT_RANK"):
    plant()
