"""Run directories as a trainer leaves them, with checkpoints of random bytes, for tests that store them."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainyard.run.checkpoint_manifest import CheckpointManifest, describe_files, write_manifest
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import write_identity
from trainyard.run.records import append_event


def write_run(
    path: Path,
    facts: Mapping[str, Any],
    *,
    run_id: str | None = None,
    steps: tuple[int, ...] = (100, 200),
    size: int = 5000,
    files: int = 1,
) -> RunDirectory:
    """Write a run, or add checkpoints to one; each has `files` files of `size` bytes, and a small one."""
    directory, run_id = RunDirectory(path), run_id or f"run-{path.name}"
    directory.create()
    if not directory.run_file.exists():
        write_identity(directory.run_file, run_id, {"git": {"commit": "3f2c1ab" * 5}, **facts})
        directory.config_file.write_text("artifacts:\n  store: null\n")
        append_event(directory.events_file, "started")
    for step in steps:
        append_event(directory.metrics_file, "metrics", step=step, loss=1 / step)
        checkpoint = directory.checkpoint(step)
        checkpoint.mkdir()
        for number in range(files):
            (checkpoint / f"__{number}_0.distcp").write_bytes(os.urandom(size))
        (checkpoint / ".metadata").write_bytes(os.urandom(100))
        write_manifest(checkpoint, CheckpointManifest(step, run_id, time.time(), describe_files(checkpoint)))
    return directory
