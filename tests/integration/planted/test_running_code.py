"""A checkpoint whose bytes would run code when they are unpickled: no script that reads a checkpoint runs it.

All digests are recomputed and the run is stored again, so that only the form of the bytes can be refused.
"""

import io
import json
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.integration.planted.judging import Answer, call, prove, restore, verify
from tests.integration.planted.readers import DISK, STORE
from tests.integration.planted.situations import mend, put
from tests.integration.planted.yard import STEPS, Yard
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, MetadataIndex

from trainyard.training.checkpoint.stored_index import INDEX_NAME

RAN = "ran"
"""The file that the planted code makes, in the yard's folder."""


class Touch:
    """Pickles as a command that makes a file."""

    def __init__(self, yard: Yard) -> None:
        self.line = f"touch '{yard.path / RAN}'"

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.system, (self.line,)


def index_of(yard: Yard) -> Any:
    return pickle.loads((yard.run.checkpoint(STEPS) / INDEX_NAME).read_bytes())


def replace(path: Path, content: bytes) -> None:
    path.unlink()
    path.write_bytes(content)


def an_index_that_runs(yard: Yard) -> None:
    """The code runs as soon as the index is unpickled."""
    replace(yard.run.checkpoint(STEPS) / INDEX_NAME, pickle.dumps(Touch(yard)))


def an_index_with_a_part_that_runs(yard: Yard) -> None:
    """A good index, except for a part that no tensor needs."""
    index = index_of(yard)
    index.planner_data = Touch(yard)
    replace(yard.run.checkpoint(STEPS) / INDEX_NAME, pickle.dumps(index))


def an_entry_that_is_no_tensor(yard: Yard) -> None:
    """torch unpickles such an entry without checking what it would run; the index itself is harmless."""
    index = index_of(yard)
    content = io.BytesIO()
    torch.save(Touch(yard), content)
    path = yard.run.checkpoint(STEPS) / "__0_0.distcp"
    before = path.read_bytes()
    replace(path, before + content.getvalue())
    for name in index.state_dict_metadata:
        places = [key for key in index.storage_data if key.fqn == name]
        place = index.storage_data[places[0]]
        index.state_dict_metadata[name] = BytesStorageMetadata()
        place.offset, place.length = len(before), len(content.getvalue())
        index.storage_data[MetadataIndex(name)] = place
    replace(yard.run.checkpoint(STEPS) / INDEX_NAME, pickle.dumps(index))


def a_tensor_that_runs(yard: Yard) -> None:
    """The index is good; a pickle that runs is at the place of its tensors."""
    index = index_of(yard)
    content = io.BytesIO()
    torch.save(Touch(yard), content)
    path = yard.run.checkpoint(STEPS) / "__0_0.distcp"
    before = path.read_bytes()
    replace(path, before + content.getvalue())
    for place in index.storage_data.values():
        place.offset, place.length = len(before), len(content.getvalue())
    replace(yard.run.checkpoint(STEPS) / INDEX_NAME, pickle.dumps(index))


PLANTS = (an_index_that_runs, an_index_with_a_part_that_runs, an_entry_that_is_no_tensor, a_tensor_that_runs)


@pytest.fixture
def yard(yards: dict[str, Yard]) -> Iterator[Yard]:
    copy = yards["plain"].copy_to(yards["plain"].path.parent / "copy of plain")
    yield copy
    shutil.rmtree(copy.path)


def checkpoint(yard: Yard) -> str:
    return str(yard.run.checkpoint(STEPS))


def trained(yard: Yard, *more: str) -> Answer:
    return call("train", "--config", str(yard.run.config_file), *more, within=yard.path)


def go_on(yard: Yard) -> Answer:
    """Resume the run from its newest checkpoint, as if it had not ended."""
    run = json.loads(yard.run.run_file.read_bytes())
    del run["outcome"]
    put(yard.run.run_file, json.dumps(run))
    more = ("--set", f"training.max_steps={STEPS}")
    return trained(yard, "--run-dir", str(yard.run.path), "--resume", "auto", *more)


def begin_from(yard: Yard) -> Answer:
    return trained(yard, "--run-dir", str(yard.path / "of its own"), "--resume", checkpoint(yard))


def weights_from(yard: Yard) -> Answer:
    of_its_own = ("--run-dir", str(yard.path / "of its own"))
    return trained(yard, *of_its_own, "--set", f"model.path={checkpoint(yard)}")


def export(yard: Yard, *more: str) -> Answer:
    flags = ("--run-dir", str(yard.run.path), "--to", str(yard.path / "model"))
    return call("export", *flags, *more, within=yard.path)


def prove_fetched(yard: Yard) -> Answer:
    """Prove the run without the checkpoint on disk, so that it is downloaded to be read."""
    shutil.rmtree(yard.run.checkpoint(STEPS))
    return prove(yard)


REFUSING = {
    "resume of a checkpoint": begin_from,
    "weights of a checkpoint": weights_from,
    "export of a step": lambda yard: export(yard, "--step", str(STEPS)),
    "prove": prove,
    "prove what is fetched": prove_fetched,
}
"""Commands that need the tensors: they refuse."""
BYTES_ONLY = {"resume": go_on, "export the newest": export, "verify": verify, "restore": restore}
"""Commands that pass over such a checkpoint, or read it as bytes."""


@pytest.mark.parametrize("plant", PLANTS)
def test_nothing_runs_what_a_checkpoint_asks_for(yard: Yard, plant: Callable[[Yard], None]) -> None:
    plant(yard)
    mend(yard)
    yard.store_anew()
    others = {**DISK, **STORE} if plant is an_index_that_runs else {}
    for name, ask in (REFUSING | BYTES_ONLY | others).items():
        whole = yard.copy_to(yard.path.parent / "asked")
        try:
            answer = ask(whole)
        finally:
            shutil.rmtree(whole.path)
        assert not (yard.path / RAN).exists(), name
        assert answer.code in ((1,) if name in REFUSING else (0, 1)), (name, answer)
        if name in REFUSING:
            assert f"step-{STEPS:08}" in answer.said or "trainyard-" in answer.said, (name, answer)


def test_the_planted_code_would_run(yard: Yard) -> None:
    """torch's own reader runs it."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    an_index_with_a_part_that_runs(yard)
    FileSystemReader(yard.run.checkpoint(STEPS)).read_metadata()
    assert (yard.path / RAN).exists()
