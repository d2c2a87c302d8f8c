"""Runs to store, and a local store to keep them in."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from trainyard.artifacts.store.object_store import Store
from trainyard.artifacts.store.store_address import open_store
from trainyard.run.checkpoint_manifest import CheckpointManifest, describe_files, write_manifest
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import write_identity
from trainyard.run.records import append_event

MakeRun = Callable[..., RunDirectory]
KEY = "0" * 32
"""The key of each run that is made."""


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Writes a run directory with checkpoints of random bytes; called again, it adds checkpoints."""

    def make(name: str = "run", *, steps: tuple[int, ...] = (100, 200), size: int = 5000) -> RunDirectory:
        directory = RunDirectory(tmp_path / name)
        directory.create()
        if not directory.run_file.exists():
            facts = {"key": KEY, "git": {"commit": "3f2c1ab" * 5}}
            write_identity(directory.run_file, f"run-{name}", facts)
            directory.config_file.write_text("artifacts:\n  store: null\n")
            append_event(directory.events_file, "started")
        for step in steps:
            append_event(directory.metrics_file, "metrics", step=step, loss=1 / step)
            _write_checkpoint(directory.checkpoint(step), (step, f"run-{name}"), size)
        return directory

    return make


def _write_checkpoint(path: Path, of: tuple[int, str], size: int) -> None:
    path.mkdir()
    (path / "__0_0.distcp").write_bytes(os.urandom(size))
    (path / ".metadata").write_bytes(os.urandom(100))
    write_manifest(path, CheckpointManifest(*of, time.time(), describe_files(path)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the store's objects, which does not exist yet."""
    return tmp_path / "store"


@pytest.fixture
def store(folder: Path) -> Store:
    return open_store(folder.as_uri())
