"""A run made by commit 55e7cb4, before saves were written by torch's own writer: it loads, resumes and is proven.

`made_before/run.tar.gz` holds its run directory, with the one checkpoint that it kept (mode async_process), and its
texts. It was trained by `scripts/train.py` from a clean tree.
"""

import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainyard.config.schema import Config
from trainyard.run.checkpoints import verify_checkpoint
from trainyard.run.identity import read_run
from trainyard.run.outside import read_yaml
from trainyard.run.records import read_rows
from trainyard.training.checkpoint import load_checkpoint
from trainyard.training.model import build_model
from trainyard.training.optimizer import build_optimizer
from trainyard.training.state import TrainingState
from trainyard.training.stored_state import state_digests

MADE_BEFORE = Path(__file__).parent / "made_before" / "run.tar.gz"
SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with tarfile.open(MADE_BEFORE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "run"
