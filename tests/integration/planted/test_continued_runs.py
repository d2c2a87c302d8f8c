"""Each way to continue a run is proven; a checkpoint on the disk that is not the run's is not.

The finished runs are trained once; each test continues a run of its own or damages a copy.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.planted.judging import prove
from tests.integration.planted.yard import NEXT, STEPS, Yard

from trainyard.artifacts.store.store_address import open_store
from trainyard.artifacts.upload.sync import sync_run
from trainyard.run.checkpoint_manifest import (
    CheckpointManifest,
    describe_files,
    read_manifest,
    write_manifest,
)


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
