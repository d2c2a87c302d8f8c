"""Leave enough time of a CI job for storing, by the size of the checkpoint and the speed measured here.

    a sync, a follower ──measure──> RUNS/.storing-speed.json ──> an earlier deadline of the next trainer

The file is beside the run directories, so that no record of a run changes after it was stored. Without a
measurement, without TRAINYARD_JOB_MINUTES or without a deadline nothing changes.
"""

import contextlib
import json
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path

from trainyard.run.atomic_files import write_json_atomically

FILE = ".storing-speed.json"
_LEAST_BYTES = 256_000_000
"""A smaller upload measures the latency of requests, not the bandwidth."""
_MARGIN = 1.5
_REST_SECONDS = 600.0
"""Time for the rest of the job after the upload: the manifest, the proof, the report."""
_FOLLOW_ADVICE = (
    " If checkpoints are stored during training (TRAINYARD_FOLLOW=true), only the last one is left then."
)
_logger = logging.getLogger("trainyard")


def write_storing_speed(runs: Path, size: int, seconds: float) -> None:
    """Write the speed of an upload of `size` bytes beside the run directories in `runs`.

    Small uploads are left out, because they measure no bandwidth. An error of the disk is ignored.
    """
    if size >= _LEAST_BYTES and seconds > 0:
        with contextlib.suppress(OSError):
            write_json_atomically(runs / FILE, {"bytes_per_second": round(size / seconds)})


def storing_speed(runs: Path) -> float | None:
    """Return the last measured speed in bytes per second; None without one."""
    try:
        speed = json.loads((runs / FILE).read_bytes())["bytes_per_second"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return float(speed) if isinstance(speed, int | float) and speed > 0 else None


def checkpoint_bytes(directory: Path) -> int:
    """Return the size of the largest checkpoint that a run directory holds; 0 without one."""
    folder = directory / "checkpoints"
    checkpoints = [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
    return max((_size_of(path) for path in checkpoints), default=0)


def deadline_for_storing(
    deadline: float | None, runs: Path, size: int, environment: Mapping[str, str] = os.environ
) -> float | None:
    """Return `deadline`, in seconds from the job's start, or an earlier one that leaves time to store `size`.

    It is never before the middle of the job, whose limit is TRAINYARD_JOB_MINUTES.
    """
    minutes, speed = environment.get("TRAINYARD_JOB_MINUTES", ""), storing_speed(runs)
    if deadline is None or not speed or not re.fullmatch(r"[1-9]\d{0,4}", minutes, re.ASCII):
        return deadline
    job, storing = 60.0 * int(minutes), size / speed
    latest = max(job / 2, job - _REST_SECONDS - _MARGIN * storing)
    if latest >= deadline:
        return deadline
    is_followed = environment.get("TRAINYARD_FOLLOW") == "true"
    _logger.warning(
        "Training stops after %.0f minutes, not %.0f: the job ends after %.0f, and storing %.1f GB takes "
        "%.0f minutes at the %.0f MB/s measured on this machine.%s",
        *(latest / 60, deadline / 60, job / 60, size / 1e9, storing / 60, speed / 1e6),
        "" if is_followed else _FOLLOW_ADVICE,
    )
    return latest


def _size_of(path: Path) -> int:
    sizes = [0]
    with contextlib.suppress(OSError):  # it may be removed meanwhile
        sizes += [file.stat().st_size for file in path.rglob("*") if file.is_file()]
    return sum(sizes)
