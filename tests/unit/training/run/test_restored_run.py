"""A run that was lost with its machine resumes from the store with the same results."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.unit.training.lab import Lab

from trainyard.artifacts.restore.restore import restore
from trainyard.artifacts.restore.selection import Selection
from trainyard.artifacts.store.store_address import open_store
from trainyard.artifacts.upload.sync import sync_run
from trainyard.errors import StoppedError
from trainyard.run.directory import RunDirectory
from trainyard.run.records import read_rows


def numbers(run: Path) -> list[tuple[Any, ...]]:
    names = ("step", "loss", "grad_norm", "val_loss", "learning_rate")
    return [tuple(row.get(name) for name in names) for row in read_rows(run / "metrics.jsonl")]


@pytest.mark.parametrize("selection", [Selection(1), Selection(1, 4)])
def test_a_restored_run_continues_to_the_same_digest(lab: Lab, selection: Selection) -> None:
    uninterrupted = lab.run(lab.config(), "uninterrupted")
    with pytest.raises(StoppedError):
        lab.run(lab.config(), "lost", **lab.stop_after(7))
    store, lost = open_store((lab.folder / "store").as_uri()), lab.folder / "lost"
    assert sync_run(store, RunDirectory(lost), 1).problems == ()
    shutil.rmtree(lost)
    report = restore(store, selection, lab.folder / "back")
    assert report.steps == ((4,) if selection.step else (4, 7))
    assert lab.run(lab.config(), "back")["state_sha256"] == uninterrupted["state_sha256"]
    assert lab.numbers("back") == lab.numbers("uninterrupted")
