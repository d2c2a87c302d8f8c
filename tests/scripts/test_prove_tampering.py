"""trainyard prove over real, tiny runs: each way to continue is proven, each way to tamper is not.

The runs are trained once; every case damages a copy of a run and of the store it is in.
"""

import importlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from trainyard.artifacts.store.store_address import open_store
from trainyard.artifacts.upload.sync import sync_run
from trainyard.config.schema import Config
from trainyard.errors import StoppedError
from trainyard.run.atomic_files import sha256_of_file
from trainyard.run.checkpoint_manifest import (
    CheckpointManifest,
    describe_files,
    read_manifest,
    write_manifest,
)
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import collect_provenance
from trainyard.training.data.tokenize_corpus import prepare_data
from trainyard.training.loop import train
from trainyard.training.run.run_context import Request
from trainyard.training.runtime.stop_signals import StopRequest

ROOT = Path(__file__).resolve().parents[2]
GIT = {"commit": "3f2c1ab" + "0" * 33, "dirty": False, "branch": "main"}
STEPS = 20
NEXT = -1
ARCHITECTURE = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
}


class StopAt:
    """A listener that requests a stop once the row of `step` is written; `NEXT`: after one more step."""

    def __init__(self, step: int | None) -> None:
        self.step, self.stop = step, StopRequest(0.0 if step == NEXT else None)

    def on_row(self, row: dict[str, Any]) -> None:
        if row["step"] == self.step:
            self.stop.reason = "the test asked for it"

    def on_event(self, event: str, fields: dict[str, Any]) -> None:
        """Nothing is shown."""


@dataclass(frozen=True)
class Yard:
    """A folder with run directories, a store and a corpus."""

    path: Path

    @property
    def store(self) -> str:
        return (self.path / "store").as_uri()

    def run(self, name: str = "a") -> RunDirectory:
        return RunDirectory(self.path / "runs" / name)

    def train(self, name: str, *, resume: str = "auto", stop_at: int | None = None, **training: Any) -> None:
        """Train or resume the run `name`; with `stop_at`, until that step."""
        config = Config.model_validate(
            {
                "model": {"name": "tiny", "device": "cpu", "architecture": ARCHITECTURE},
                "training": {
                    "batch_size": 2,
                    "max_steps": STEPS,
                    "validation_steps": 8,
                    "validation_batches": 1,
                    "learning_rate": 1e-2,
                    **training,
                },
                "compute": {"threads": 1},
                "data": {
                    "train_path": str(self.path / "corpus" / "train"),
                    "validation_path": str(self.path / "corpus" / "validation"),
                    "prepared_directory": str(self.path / "prepared"),
                    "sequence_length": 16,
                },
                "checkpointing": {"save_steps": 5, "keep_last": 2},
                "monitoring": {"log_steps": 3, "tensorboard": False},
            }
        )
        facts = collect_provenance(
            GIT, lock=ROOT / "requirements-training.txt", config_file=Path("tiny.yaml")
        )
        data = prepare_data(config.data, config.model)
        listener = StopAt(stop_at)
        request = Request(config, self.run(name), data, resume, f"id-of-{name}", facts)
        try:
            train(request, stop=listener.stop, listener=listener)
        except StoppedError:
            assert stop_at is not None

    def sync(self, name: str = "a") -> None:
        sync_run(open_store(self.store), self.run(name), None)

    def prove(self, name: str = "a", *more: str) -> dict[str, Any]:
        """The proof as it is saved; the script's exit code must agree with it."""
        arguments = ["--run-dir", str(self.run(name).path), "--store", self.store, *more]
        code = prove_run().main(arguments)
        proof: dict[str, Any] = json.loads((self.run(name).report / "proof.json").read_text())
        assert (code == 0) is proof["proven"]
        return proof


def prove_run() -> Any:
    return importlib.import_module("trainyard.commands.prove")


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Yard:
    """Runs a and b with different seeds, complete and stored as numbers 1 and 2."""
    yard = Yard(tmp_path_factory.mktemp("yard"))
    for half in ("train", "validation"):
        (yard.path / "corpus" / half).mkdir(parents=True)
        lines = [f"the cat {number} sat on mat {number % 7}.\n" for number in range(60)]
        (yard.path / "corpus" / half / "text.txt").write_text("".join(lines))
    for name, seed in (("a", 42), ("b", 7)):
        yard.train(name, seed=seed)
        yard.sync(name)
    return yard


@pytest.fixture(autouse=True)
def outside_actions(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("GITHUB_ACTIONS", "GITHUB_OUTPUT"):
        monkeypatch.delenv(name, raising=False)
    yield


@pytest.fixture
def yard(trained: Yard, tmp_path: Path) -> Yard:
    """A copy that a test may damage."""
    copy = Yard(tmp_path / "yard")
    shutil.copytree(trained.path, copy.path)
    return copy


def failing(proof: dict[str, Any]) -> list[str]:
    return [part["name"] for part in proof["parts"] if not part["passed"]]


def evidence(proof: dict[str, Any]) -> str:
    return "\n".join(part["evidence"] for part in proof["parts"] if not part["passed"])


def next_steps(proof: dict[str, Any]) -> str:
    return "\n".join(part["fix"] for part in proof["parts"] if not part["passed"])


def logged_steps(run: RunDirectory) -> list[int]:
    return [json.loads(line)["step"] for line in run.metrics_file.read_text().splitlines()]


def change_json(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


@pytest.mark.parametrize("stops", [[3], [16, 18], [6, NEXT, NEXT]])
def test_a_run_that_was_stopped_and_went_on_is_proven(yard: Yard, stops: list[int]) -> None:
    for stop_at in stops:
        yard.train("c", stop_at=stop_at)
        yard.sync("c")
    assert failing(yard.prove("c")) == ["trained"]
    yard.train("c")
    yard.sync("c")
    proof = yard.prove("c")
    assert proof["proven"], evidence(proof)


def test_a_run_that_lost_its_newest_checkpoint_and_made_it_again_is_proven(yard: Yard) -> None:
    yard.train("c", stop_at=12)
    yard.sync("c")
    newest = max(yard.run("c").checkpoint_steps())
    next(yard.run("c").checkpoint(newest).glob("*.distcp")).write_bytes(b"")
    yard.train("c")
    yard.sync("c")
    proof = yard.prove("c")
    assert proof["proven"], evidence(proof)


def test_a_run_from_another_runs_checkpoint_is_proven(yard: Yard) -> None:
    yard.train("c", resume=str(yard.run().checkpoint(15)))
    yard.sync("c")
    proof = yard.prove("c")
    assert proof["proven"], evidence(proof)
    assert logged_steps(yard.run("c")) == [16, 18, 20]


def test_a_run_from_a_checkpoint_whose_row_was_not_written_yet_is_proven(yard: Yard) -> None:
    for stop_at in (6, NEXT, NEXT):
        yard.train("c", stop_at=stop_at)
    assert logged_steps(yard.run("c")) == [3, 6]
    yard.train("d", resume=str(yard.run("c").checkpoint(8)))
    yard.sync("d")
    proof = yard.prove("d")
    assert proof["proven"], evidence(proof)
    assert logged_steps(yard.run("d")) == [8, 9, 12, 15, 16, 18, 20]


def test_a_finished_run_with_more_steps_trained_all_of_them_but_is_two_configurations(yard: Yard) -> None:
    yard.train("a", max_steps=25)
    yard.sync()
    proof = yard.prove()
    assert failing(proof) == ["repeatable"], evidence(proof)
    assert "until step 20 it ran with another config" in evidence(proof)


# Checkpoints that are not the run's, on the disk.


def of_another_run(yard: Yard) -> None:
    shutil.rmtree(yard.run().checkpoint(20))
    shutil.copytree(yard.run("b").checkpoint(20), yard.run().checkpoint(20))


def of_another_run_under_this_name(yard: Yard) -> None:
    of_another_run(yard)
    change_json(yard.run().checkpoint(20) / "manifest.json", lambda value: value.update(run_id="id-of-a"))


def of_an_older_step(yard: Yard) -> None:
    shutil.rmtree(yard.run().checkpoint(20))
    shutil.copytree(yard.run().checkpoint(15), yard.run().checkpoint(20))


def with_another_byte(yard: Yard, step: int = 20) -> None:
    path = yard.run().checkpoint(step)
    victim, before = next(path.glob("*.distcp")), read_manifest(path)
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    write_manifest(path, CheckpointManifest(step, before.run_id, before.created, describe_files(path)))


def with_another_byte_before_the_last(yard: Yard) -> None:
    with_another_byte(yard, 15)


REPLACED = [
    of_another_run,
    of_another_run_under_this_name,
    with_another_byte,
    with_another_byte_before_the_last,
]


def test_a_folder_of_another_steps_name_is_not_stored(yard: Yard) -> None:
    of_an_older_step(yard)
    report = sync_run(open_store(yard.store), yard.run(), None)
    assert ["checkpoint-20 was not uploaded" in problem for problem in report.problems] == [True]
    proof = yard.prove()
    assert failing(proof) == ["stored"]
    assert "the copy on this disk is damaged" in evidence(proof)


@pytest.mark.parametrize("replace", REPLACED, ids=lambda value: value.__name__)
@pytest.mark.parametrize("is_synced", [False, True])
def test_a_checkpoint_that_is_not_the_runs_is_not_proven_and_replaces_none_in_the_store(
    yard: Yard, replace: Callable[[Yard], None], is_synced: bool
) -> None:
    replace(yard)
    if is_synced:
        report = sync_run(open_store(yard.store), yard.run(), None)
        assert ["was not uploaded" in problem for problem in report.problems] == [True]
    proof = yard.prove()
    assert failing(proof) == ["stored"]
    assert "the store has the complete run, but the copy on this disk is damaged" in evidence(proof)
    move = next_steps(proof).partition(" && ")[0].split()
    assert move[0] == "mv"
    Path(move[1]).rename(move[2])
    assert yard.prove()["proven"]


def test_the_trainer_names_each_checkpoint_that_it_saved(yard: Yard) -> None:
    events = [json.loads(line) for line in yard.run().events_file.read_text().splitlines()]
    saved = {e["step"]: e["manifest_sha256"] for e in events if e["event"] == "checkpoint_saved"}
    assert sorted(saved) == [5, 10, 15, 20]
    assert saved[20] == sha256_of_file(yard.run().checkpoint(20) / "manifest.json")
