"""Before torch is imported: its variables, and no garbage collection until training starts."""

import gc
from collections.abc import Iterator

import pytest
from tests.unit.training.lab import Lab

from trainyard.training.runtime.before_torch import before_torch, resume_garbage_collection


@pytest.fixture
def garbage_collection() -> Iterator[None]:
    """Restore the garbage collector's settings after the test."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.enable()
    gc.unfreeze()


@pytest.mark.usefixtures("garbage_collection")
def test_garbage_is_collected_again_once_training_starts(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainyard.training.runtime.before_torch._VARIABLES", {})
    gc.set_threshold(50_000)
    before_torch()
    assert not gc.isenabled()
    lab.run(lab.config(training={"max_steps": 1}))
    assert gc.isenabled()
    assert gc.get_freeze_count()
    assert gc.get_threshold() == (700, 10, 10), "few objects of a training may hold much memory"


@pytest.mark.usefixtures("garbage_collection")
def test_without_it_nothing_is_kept_from_the_collector() -> None:
    before = gc.get_freeze_count()
    resume_garbage_collection()
    assert gc.get_freeze_count() == before
