"""Wait for a condition, with a generous end because the machine may be busy."""

import subprocess
import time
from collections.abc import Callable, Iterable
from typing import Any


def wait_for(
    condition: Callable[[], Any],
    what: str = "a condition",
    *,
    within: float = 120.0,
    alive: Iterable["subprocess.Popen[str]"] = (),
) -> Any:
    """Wait until the condition holds, and return its value; the processes `alive` must not end before."""
    deadline = time.monotonic() + within
    while not (found := condition()):
        for process in alive:
            assert process.poll() is None, (f"a process ended before {what}", process.communicate())
        assert time.monotonic() < deadline, f"waited too long for {what}"
        time.sleep(0.05)
    return found
