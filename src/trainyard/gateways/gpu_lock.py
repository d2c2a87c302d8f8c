"""Allow one training at a time on a machine that several repositories share, by a lock on a file of the host.

A concurrency group of GitHub covers the runs of one repository only. The system releases the lock when the
process ends, however it ends. Waiting runs are not served in order, and waiting uses up the job's time limit.
"""

import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from trainyard.errors import ConfigError, WaitTimeoutError

VARIABLE = "TRAINYARD_GPU_LOCK"
LONGEST_SECONDS = 7 * 3600.0
"""The longest wait in a job of 8 hours; the remaining time would be too short to start training."""
_POLL_SECONDS, _LOG_SECONDS = 5.0, 600.0
_logger = logging.getLogger(__name__)


def with_gpu_lock(work: Callable[[], int], environment: Mapping[str, str] = os.environ) -> Callable[[], int]:
    """Wrap `work` so that it waits for the lock on the file in TRAINYARD_GPU_LOCK; if unset, it runs at once.

    The worker processes of a launcher do not take the lock, because the launcher holds it for them.
    """
    name = environment.get(VARIABLE)
    if not name or "LOCAL_RANK" in environment:
        return work

    def run_locked() -> int:
        with gpu_lock(Path(name), owner=environment.get("GITHUB_REPOSITORY", "a training")):
            return work()

    return run_locked


@contextmanager
def gpu_lock(path: Path, *, owner: str, longest: float = LONGEST_SECONDS) -> Iterator[None]:
    """Hold the lock on `path`.

    Raises WaitTimeoutError after `longest` seconds, ConfigError when the file cannot be opened.
    """
    try:
        file = path.open("a+")
    except OSError as error:
        raise ConfigError(
            f"{VARIABLE}: {path} cannot be opened ({error.strerror}). Every runner of this machine must be "
            "able to write it: install -m 666 /dev/null FILE"
        ) from None
    with file:
        _wait_for_lock(file, path, time.monotonic() + longest)
        file.truncate(0)
        file.write(f"{owner}, process {os.getpid()}")
        file.flush()
        yield


def _wait_for_lock(file: TextIO, path: Path, end: float) -> None:
    next_log = 0.0
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        file.seek(0)
        holder = file.read().strip() or "another training"
        if time.monotonic() >= end:
            raise WaitTimeoutError(
                f"The GPU of this machine is still held by {holder} ({path}), after the longest wait. "
                "Nothing was started. Run this again when that has ended."
            )
        if time.monotonic() >= next_log:
            _logger.info("waiting for the GPU of this machine: %s holds %s", holder, path)
            next_log = time.monotonic() + _LOG_SECONDS
        time.sleep(min(_POLL_SECONDS, max(0.01, end - time.monotonic())))
