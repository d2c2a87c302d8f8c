"""A run of commit 55e7cb4, before torch wrote all saves itself: it verifies, loads, resumes and is proven.

`made_before/run.tar.gz` holds its directory, with the one checkpoint that it kept (`async_process`), and its
texts. `scripts/train.py` made it in a clean tree.
"""

import tarfile
from pathlib import Path
from typing import Any

import pytest
from tests.integration.planted.yard import script

from trainyard.config.load import load_config
from trainyard.run.checkpoint_manifest import verify_checkpoint
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import read_run
from trainyard.run.records import read_rows

FILTER: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""The filter for extraction; Python has it from 3.11.4 on."""
MADE_BEFORE = Path(__file__).parent / "made_before" / "run.tar.gz"
STEPS, MORE = 6, 9


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    with tarfile.open(MADE_BEFORE) as archive:
        archive.extractall(tmp_path, **FILTER)
    monkeypatch.chdir(tmp_path)  # its configuration names its texts from there
    return RunDirectory(tmp_path / "run")


def test_it_verifies_and_holds_the_state_that_it_ended_with(run: RunDirectory) -> None:
    from trainyard.training.checkpoint.stored_state import state_digests

    checkpoint = run.checkpoint(STEPS)
    assert verify_checkpoint(checkpoint).step == STEPS
    assert state_digests(checkpoint) == read_run(run.run_file)["outcome"]["state_sha256"]


def test_it_loads_into_the_state_of_today(run: RunDirectory) -> None:
    from trainyard.training.checkpoint.checkpoint import load_checkpoint
    from trainyard.training.checkpoint.training_state import TrainingState
    from trainyard.training.model.model import build_model
    from trainyard.training.model.optimizer import build_optimizer

    config = load_config(run.config_file).config
    model = build_model(config.model.architecture, seed=0)
    state = TrainingState(model, build_optimizer(model, config.training))
    load_checkpoint(run.checkpoint(STEPS), state)
    assert state.step == STEPS
    assert state.digests() == read_run(run.run_file)["outcome"]["state_sha256"]


def test_it_resumes(run: RunDirectory) -> None:
    before = list(read_rows(run.metrics_file))
    more = ["--set", f"training.max_steps={MORE}", "--resume", "auto"]
    assert script("train").main(["--config", str(run.config_file), "--run-dir", str(run.path), *more]) == 0
    assert list(read_rows(run.metrics_file))[:STEPS] == before
    assert read_run(run.run_file)["outcome"]["steps"] == MORE
    assert run.checkpoint_steps() == [MORE]


def test_it_is_proven(run: RunDirectory) -> None:
    store = ["--run-dir", str(run.path), "--run-number", "1", "--store", (run.path.parent / "store").as_uri()]
    assert script("training_artifact_sync").main([*store, "--once"]) == 0
    assert script("prove_run").main(store) == 0


def test_a_finished_run_is_still_finished_by_its_own_configuration(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    """Today's schema has more keys, so the digest of the resolved configuration differs."""
    line = ["--config", str(run.config_file), "--run-dir", str(run.path)]
    assert script("train").main(line) == 0
    assert run.checkpoint_steps() == [STEPS]
    assert script("train").main([*line, "--set", "training.learning_rate=0.5"]) == 2
    assert "finished run of another configuration" in capsys.readouterr().err
