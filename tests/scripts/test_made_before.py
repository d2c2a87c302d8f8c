"""A run and its store of commit 1b382182: they verify, restore and are proven.

`made_before/run.tar.gz` holds the run directory with its two checkpoints, the store that it was synced to,
and its texts. Its configuration may have keys that are unknown today, so training does not resume from it.
"""

import tarfile
from pathlib import Path
from typing import Any

import pytest
from tests.integration.planted.yard import script

from trainyard.artifacts.restore.restore import restore
from trainyard.artifacts.restore.selection import Selection
from trainyard.artifacts.store.store_address import open_store
from trainyard.artifacts.upload.sync import sync_run
from trainyard.artifacts.verify.verify import Depth, verify_run
from trainyard.run.checkpoint_manifest import verify_checkpoint
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import read_run

FILTER: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""The filter for extraction; Python has it from 3.11.4 on."""
MADE_BEFORE = Path(__file__).parent / "made_before" / "run.tar.gz"
STEPS = 6


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    with tarfile.open(MADE_BEFORE) as archive:
        archive.extractall(tmp_path, **FILTER)
    monkeypatch.chdir(tmp_path)  # its configuration names its texts from there
    return RunDirectory(tmp_path / "run")


def test_it_verifies_and_holds_the_state_that_it_ended_with(run: RunDirectory) -> None:
    from trainyard.training.checkpoint.stored_index import state_digests

    checkpoint = run.checkpoint(STEPS)
    assert verify_checkpoint(checkpoint).step == STEPS
    assert state_digests(checkpoint) == read_run(run.run_file)["outcome"]["state_sha256"]


def test_it_loads_into_the_state_of_today(run: RunDirectory) -> None:
    from trainyard.config.schema import ArchitectureConfig, TrainingConfig
    from trainyard.run.run_settings import read_settings
    from trainyard.training.checkpoint.checkpoint import load_checkpoint
    from trainyard.training.checkpoint.training_state import TrainingState
    from trainyard.training.model.model import build_model
    from trainyard.training.model.optimizer import build_optimizer

    shape = read_settings(run.config_file.read_bytes())["model"]["architecture"]
    model = build_model(ArchitectureConfig.model_validate(shape), seed=0)
    state = TrainingState(model, build_optimizer(model, TrainingConfig()))
    load_checkpoint(run.checkpoint(STEPS), state)
    assert state.step == STEPS
    assert state.digests() == read_run(run.run_file)["outcome"]["state_sha256"]


def test_its_store_verifies_restores_and_takes_a_sync_that_sends_nothing(run: RunDirectory) -> None:
    store = open_store((run.path.parent / "store").as_uri())
    found = verify_run(store, 1, depth=Depth.FULL, run_directory=run)
    assert found.ok, found.problems
    back = run.path.parent / "back"
    restore(store, Selection(1), back)
    files = {path.relative_to(back): path for path in back.rglob("*") if path.is_file()}
    assert len(files) > 10
    for name, path in files.items():
        assert path.read_bytes() == (run.path / name).read_bytes(), name
    assert sync_run(store, run, 1).sent == 0


def test_it_is_proven(run: RunDirectory) -> None:
    store = ["--run-dir", str(run.path), "--run-number", "1", "--store", (run.path.parent / "store").as_uri()]
    assert script("prove").main(store) == 0
