"""The metrics of trainers that nobody here wrote: their true output and files, read as a run reads them.

The expected rows are the trainer's own history in its last trainer_state.json.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests import warm_start

from trainyard.programs.metric_rows import MetricRows, row_fault
from trainyard.programs.metrics.log_reader import LogReader
from trainyard.programs.metrics.metric_files import MetricFiles
from trainyard.programs.sources import Source

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
Row = dict[str, Any]
TRAINER = Path(__file__).parent / "trainers" / "hugging_face.py"


class Metrics:
    """What a run reads while a program trains."""

    def __init__(self, place: Path) -> None:
        self.log, self.files, self.merged = LogReader(), MetricFiles(place), MetricRows()

    def read(self, text: str, *, is_over: bool = False) -> None:
        self.merged.add_all(self.log.take(text), Source.PRINTED, time.time())
        self.merged.add_all(self.files.poll(at_end=is_over), Source.STRUCTURED, time.time())

    def rows(self) -> list[Row]:
        self.merged.settle(is_over=True)
        return list(self.merged.rows())


def train(place: Path, *options: str, metrics: Metrics) -> list[Row]:
    """Train in `place`, pass the output on as it comes, and return the rows."""
    offline = {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false"}
    environment = {**os.environ, **offline, "PYTHONUNBUFFERED": "1"}
    line, one = [sys.executable, str(TRAINER), *options], subprocess.STDOUT
    with warm_start.start(line, cwd=place, env=environment, stderr=one, has_trainers=True) as process:
        assert process.stdout is not None
        text = b""
        while chunk := os.read(process.stdout.fileno(), 4096):
            text += chunk
            metrics.read(chunk.decode(errors="replace"))
    assert process.returncode == 0, text.decode(errors="replace")[-3000:]
    metrics.read("", is_over=True)
    return metrics.rows()


def own_history(place: Path, step: int) -> Mapping[int, Row]:
    """The trainer's own history: step -> its figures."""
    state = json.loads((place / f"out/checkpoint-{step}/trainer_state.json").read_text())
    merged: dict[int, Row] = {}
    for entry in state["log_history"]:
        if "loss" in entry or "eval_loss" in entry:
            names = {"loss": "loss", "grad_norm": "grad_norm", "eval_loss": "val_loss"}
            merged.setdefault(entry["step"], {}).update(
                {name: entry[own] for own, name in names.items() if own in entry}
            )
    return merged


def assert_rows(rows: list[Row], history: Mapping[int, Row], *, digits: float) -> None:
    assert [row["step"] for row in rows] == list(history)
    for row in rows:
        expected = history[row["step"]]
        assert {name: row.get(name) for name in expected} == pytest.approx(expected, rel=digits)
        assert ("val_loss" in row) is ("val_loss" in expected)
        assert row_fault(row) is None


@pytest.mark.parametrize("trl", [(), ("--trl",)], ids=["trainer", "sft"])
def test_every_step_is_a_row_with_the_trainers_own_figures(tmp_path: Path, trl: tuple[str, ...]) -> None:
    metrics = Metrics(tmp_path)
    rows = train(tmp_path, *trl, "--eval_steps", "3", "--report_to", "tensorboard", metrics=metrics)
    history = own_history(tmp_path, 8)
    assert list(history) == list(range(1, 9))
    assert_rows(rows, history, digits=1e-6)
    assert (metrics.files.steps_asked, metrics.files.notes) == (8, ())
    assert metrics.merged.sources["loss"] == "structured"
    if trl:
        assert [row["tokens"] > 0 for row in rows] == [True] * 8


def test_a_resumed_program_has_the_rows_of_its_own_steps(tmp_path: Path) -> None:
    train(tmp_path, "--max_steps", "4", metrics=Metrics(tmp_path))
    rows = train(tmp_path, "--resume_from_checkpoint", "out/checkpoint-4", metrics=Metrics(tmp_path))
    assert [row["step"] for row in rows] == [5, 6, 7, 8]


def test_a_nan_that_the_trainer_hides_is_a_fault(tmp_path: Path) -> None:
    rows = train(tmp_path, "--poison", "--eval_steps", "8", metrics=Metrics(tmp_path))
    assert [row["step"] for row in rows] == list(range(1, 9))
    assert row_fault(rows[-1]) is not None
    assert len([row for row in rows if row_fault(row)]) >= 6
