"""Runs to store, and a local store to keep them in."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.run_directories import write_run

from trainyard.artifacts.store.object_store import Store
from trainyard.artifacts.store.store_address import open_store
from trainyard.artifacts.upload.sync import sync_run
from trainyard.run.directory import RunDirectory

MakeRun = Callable[..., RunDirectory]
KEY = "0" * 32
"""The key of each run that is made."""


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Writes a run directory with checkpoints of random bytes; called again, it adds checkpoints."""
    return lambda name="run", **more: write_run(tmp_path / name, {"key": KEY}, **more)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the store's objects, which does not exist yet."""
    return tmp_path / "store"


@pytest.fixture
def store(folder: Path) -> Store:
    return open_store(folder.as_uri())


@pytest.fixture
def run(store: Store, make_run: MakeRun) -> RunDirectory:
    """A run that is on this machine and in the store."""
    directory = make_run()
    sync_run(store, directory, 1)
    return directory


def flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
