"""Each way to continue a run is proven; a checkpoint that is not the run's, or would run code, is not."""

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
from tests.integration.planted.judging import DISK, STORE, Answer, call, prove, restore, verify
from tests.integration.planted.situations import mend, put
from tests.integration.planted.yard import NEXT, STEPS, Yard
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, MetadataIndex

from trainyard.artifacts.store.store_address import open_store
from trainyard.artifacts.upload.sync import sync_run
from trainyard.run.checkpoint_manifest import (
    CheckpointManifest,
    describe_files,
    read_manifest,
    write_manifest,
)
from trainyard.training.checkpoint.stored_index import INDEX_NAME


@pytest.fixture
def yard(yards: dict[str, Yard], tmp_path: Path) -> Yard:
    """A copy of a finished run whose files may be written into."""
    shutil.copytree(yards["plain"].path, tmp_path / "yard")
    return Yard(tmp_path / "yard")


@pytest.fixture
def begin(yards: dict[str, Yard]) -> Iterator[Callable[[str], Yard]]:
    """Gives a yard without a run, beside the prepared data."""
    begun: list[Yard] = []

    def give(name: str) -> Yard:
        begun.append(Yard(yards["plain"].path.parent / name))
        return begun[-1]

    yield give
    for each in begun:
        shutil.rmtree(each.path)


def proof_of(yard: Yard) -> dict[str, Any]:
    """Store and prove the run; the exit code must agree with the proof that is saved."""
    answer = prove(yard)
    proof: dict[str, Any] = json.loads((yard.run.report / "proof.json").read_text())
    assert (answer.code == 0) is proof["proven"]
    return proof


def failing(proof: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {part["name"]: part for part in proof["parts"] if not part["passed"]}


def logged_steps(yard: Yard) -> list[int]:
    return [json.loads(line)["step"] for line in yard.run.metrics_file.read_text().splitlines()]


@pytest.mark.parametrize("stops", [[2], [4, 6], [2, NEXT, NEXT]])
def test_a_run_that_was_stopped_and_went_on_is_proven(begin: Callable[[str], Yard], stops: list[int]) -> None:
    yard = begin("stopped")
    for stop_at in stops:
        yard.train(stop_at=stop_at)
        yard.sync()
    assert failing(proof_of(yard)).keys() == {"trained"}
    yard.train()
    yard.sync()
    assert failing(proof_of(yard)) == {}


def test_a_run_that_lost_its_newest_checkpoint_and_made_it_again_is_proven(
    begin: Callable[[str], Yard],
) -> None:
    yard = begin("lost")
    yard.train(stop_at=6)
    yard.sync()
    newest = max(yard.run.checkpoint_steps())
    next(yard.run.checkpoint(newest).glob("*.distcp")).write_bytes(b"")
    yard.train()
    yard.sync()
    assert failing(proof_of(yard)) == {}


def test_a_run_from_another_runs_checkpoint_is_proven(begin: Callable[[str], Yard]) -> None:
    """The first one stopped while it validated step 4, before it wrote the row of that step."""
    first, second = begin("first"), begin("second")
    for stop_at in (2, NEXT, NEXT):
        first.train(stop_at=stop_at)
    assert logged_steps(first) == [2]
    second.train(resume=str(first.run.checkpoint(4)))
    second.sync()
    assert failing(proof_of(second)) == {}
    assert logged_steps(second) == [4, 6, 8]


def test_a_finished_run_with_more_steps_trained_all_of_them_but_is_two_configurations(
    begin: Callable[[str], Yard],
) -> None:
    yard = begin("more")
    yard.train(steps=4)
    yard.train()
    yard.sync()
    wrong = failing(proof_of(yard))
    assert wrong.keys() == {"repeatable"}
    assert "until step 4 it ran with another config" in wrong["repeatable"]["evidence"]


# Checkpoints that are not the run's, on the disk.


def of_another_run(yard: Yard, other: Yard) -> None:
    shutil.rmtree(yard.run.checkpoint(STEPS))
    shutil.copytree(other.run.checkpoint(STEPS), yard.run.checkpoint(STEPS))


def of_another_run_under_this_name(yard: Yard, other: Yard) -> None:
    of_another_run(yard, other)
    path = yard.run.checkpoint(STEPS) / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"run_id": "id-of-plain"}))


def with_another_byte(yard: Yard, _other: Yard, step: int = STEPS) -> None:
    path = yard.run.checkpoint(step)
    victim, before = next(path.glob("*.distcp")), read_manifest(path)
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    write_manifest(path, CheckpointManifest(step, before.run_id, before.created, describe_files(path)))


def with_another_byte_before_the_last(yard: Yard, other: Yard) -> None:
    with_another_byte(yard, other, 4)


def of_an_older_step(yard: Yard, _other: Yard) -> None:
    shutil.rmtree(yard.run.checkpoint(STEPS))
    shutil.copytree(yard.run.checkpoint(4), yard.run.checkpoint(STEPS))


def test_a_checkpoint_that_is_not_the_runs_is_not_proven_and_replaces_none_in_the_store(
    yard: Yard, begin: Callable[[str], Yard], tmp_path: Path
) -> None:
    other = begin("other")
    other.train(seed=7)
    for replace in (
        of_another_run,
        of_another_run_under_this_name,
        with_another_byte,
        with_another_byte_before_the_last,
        of_an_older_step,
    ):
        copy = Yard(shutil.copytree(yard.path, tmp_path / replace.__name__))
        replace(copy, other)
        for is_synced in (False, True):
            if is_synced:
                (problem,) = sync_run(open_store(copy.store), copy.run, None).problems
                assert "was not uploaded" in problem, replace
            wrong = failing(proof_of(copy))
            assert wrong.keys() == {"stored"}, replace
            evidence = wrong["stored"]["evidence"]
            assert "the store has the complete run, but the copy on this disk is damaged" in evidence, replace
        if replace is of_an_older_step:
            continue  # its folder has no manifest of its step, so the checkpoint is restored
        move = wrong["stored"]["fix"].partition(" && ")[0].split()
        assert move[0] == "mv", replace
        Path(move[1]).rename(move[2])
        assert failing(proof_of(copy)) == {}, replace


# The bytes of these checkpoints would run code when they are unpickled, and no script that reads one runs it.
# All digests are recomputed and the run is stored again, so that only the form of the bytes can be refused.
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
def linked(yards: dict[str, Yard]) -> Iterator[Yard]:
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
def test_nothing_runs_what_a_checkpoint_asks_for(linked: Yard, plant: Callable[[Yard], None]) -> None:
    plant(linked)
    mend(linked)
    linked.store_anew()
    others = {**DISK, **STORE} if plant is an_index_that_runs else {}
    for name, ask in (REFUSING | BYTES_ONLY | others).items():
        whole = linked.copy_to(linked.path.parent / "asked")
        try:
            answer = ask(whole)
        finally:
            shutil.rmtree(whole.path)
        assert not (linked.path / RAN).exists(), name
        assert answer.code in ((1,) if name in REFUSING else (0, 1)), (name, answer)
        if name in REFUSING:
            assert f"step-{STEPS:08}" in answer.said or "trainyard-" in answer.said, (name, answer)


def test_the_planted_code_would_run(linked: Yard) -> None:
    """torch's own reader runs it."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    an_index_with_a_part_that_runs(linked)
    FileSystemReader(linked.run.checkpoint(STEPS)).read_metadata()
    assert (linked.path / RAN).exists()
