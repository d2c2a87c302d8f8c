"""The records of a run that the workflow keeps, gathered as its step does."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Program = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = tmp_path / "a run"
    (run / "logs").mkdir(parents=True)
    (run / "checkpoints" / "step-00000500").mkdir(parents=True)
    (run / "run.json").write_text("{}")
    (run / "checkpoints" / "step-00000500" / "manifest.json").write_text("{}")
    (run / "logs" / "nccl-rank-0.log").touch()
    os.truncate(run / "logs" / "nccl-rank-0.log", 3 << 20)
    return run


def test_it_copies_what_there_is_and_names_what_it_shortened(program: Program, run: Path) -> None:
    done = program("step records", "--run-dir", run, "--to", run.parent / "kept")
    assert done.returncode == 0, done.stderr
    assert "logs/nccl-rank-0.log is too large: only a part is copied" in done.stderr
    assert f"2 files, 2.1 MB → {run.parent / 'kept'}" in done.stderr
    kept = {path.name for path in (run.parent / "kept").rglob("*") if path.is_file()}
    assert kept == {"run.json", "nccl-rank-0.log"}


def test_a_dry_run_keeps_nothing(program: Program, run: Path) -> None:
    done = program("step records", "--run-dir", run, "--to", run.parent / "kept", "--dry-run")
    assert "2 files, 2.1 MB would be copied" in done.stderr
    assert not (run.parent / "kept").exists()


def test_a_folder_that_is_there_is_refused(program: Program, run: Path) -> None:
    done = program("step records", "--run-dir", run, "--to", run)
    assert done.returncode == 2
    assert "exists already" in done.stderr
