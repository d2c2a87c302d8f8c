"""A checkpoint gets a name only where the stored records of its run are intact and show that it is good."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.scripts.test_evaluate import Call, call, configure  # noqa: F401 - `call` is a fixture

from trainyard.artifacts.store.store_address import open_store
from trainyard.artifacts.upload.sync import sync_run
from trainyard.commands import evaluate, store_promote, store_verify
from trainyard.run.directory import RunDirectory
from trainyard.run.records import read_rows

Change = Callable[[bytes], bytes | None]
NEEDS = {"accuracy": ">= 0.60"}


class Shelf:
    """A stored run of 20 steps and the command that promotes its checkpoints."""

    def __init__(self, run: RunDirectory, folder: Path, caller: Call) -> None:
        self.run, self.folder, self.call = run, folder, caller
        self.url = folder.as_uri()

    def evaluate(self, *words: object) -> int:
        return self.call(evaluate.main, *(words or ("--run-dir", self.run.path)))[0]

    def store(self) -> None:
        sync_run(open_store(self.url), self.run, None)

    def promote(self, *words: object, step: object = 20) -> tuple[int, str]:
        where = ("--store", self.url, "--run-number", 1, "--step", step, "--name", "best")
        code, text = self.call(store_promote.main, *where, *words)
        assert (self.folder / "promoted" / "best.json").exists() is (code == 0), text
        return code, text


@pytest.fixture
def shelf(finished_run: RunDirectory, tmp_path: Path, call: Call) -> Shelf:  # noqa: F811
    configure(finished_run, {"accuracy": 0.7}, NEEDS)
    return Shelf(finished_run, tmp_path / "store", call)


def replaced(old: bytes, new: bytes) -> Change:
    return lambda content: content.replace(old, new)


DAMAGES: dict[str, Change] = {
    "removed": lambda _: None,
    "empty": lambda _: b"",
    "cut": lambda content: content[: len(content) // 2],
    "longer": lambda content: content + b"{}\n",
    "one bit": lambda content: bytes([content[0] ^ 1]) + content[1:],
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl", "events.jsonl", "evaluations.jsonl"])
def test_a_damaged_record_of_the_run_promotes_nothing(shelf: Shelf, name: str, damage: str) -> None:
    assert shelf.evaluate() == 0
    shelf.store()
    file = shelf.folder / "run-1" / name
    content = DAMAGES[damage](file.read_bytes())
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    code, text = shelf.promote()
    assert code == 1
    assert f"run-1/{name} " in text
    words = shlex.split(text.partition("trainyard store verify ")[2].partition(" lists")[0])
    assert store_verify.parse_args(words).store == shelf.url


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("config.yaml", replaced(b">= 0.60", b">= 0.10")),
        ("evaluations.jsonl", replaced(b'"accuracy": 0.4', b'"accuracy": 0.9')),
    ],
)
def test_a_record_that_was_changed_for_the_better_promotes_nothing(
    shelf: Shelf, name: str, change: Change
) -> None:
    configure(shelf.run, {"accuracy": 0.4}, NEEDS)
    assert shelf.evaluate() == 1
    shelf.store()
    assert "not good enough: accuracy 0.40" in shelf.promote()[1]
    file = shelf.folder / "run-1" / name
    changed = change(file.read_bytes())
    assert changed not in (None, file.read_bytes())
    file.write_bytes(changed or b"")
    code, text = shelf.promote()
    assert (code, "differs" in text) == (1, True), text
    configure(shelf.run, {"accuracy": 0.4}, {"accuracy": ">= 0.10"})  # the local file decides nothing
    assert shelf.promote()[0] == 1


CHANGES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "another step": lambda row: row | {"step": 10},
    "another checkpoint": lambda row: row | {"checkpoint_sha256": "ab" * 32},
    "no checkpoint": lambda row: {key: row[key] for key in row if key != "checkpoint_sha256"},
    "another command": lambda row: row | {"command": ["echo", '{"accuracy": 1}']},
    "no command": lambda row: {key: row[key] for key in row if key != "command"},
    "no figure": lambda row: row | {"figures": {}},
    "a figure that is no number": lambda row: row | {"figures": {"accuracy": "0.9"}},
    "thresholds of its own": lambda row: row | {"figures": {"accuracy": 0.4}, "thresholds": {}},
}


@pytest.mark.parametrize("name", CHANGES)
def test_only_the_evaluation_of_this_checkpoint_counts(shelf: Shelf, name: str) -> None:
    """An evaluation of a stored checkpoint is kept beside the run, and no manifest lists it."""
    shelf.store()
    assert shelf.evaluate("--store", shelf.url, "--run-number", 1, "--allow-command") == 0
    file = shelf.folder / "evaluations" / "run-1.jsonl"
    [row] = read_rows(file)
    file.write_text(json.dumps(CHANGES[name](row)) + "\n")
    assert shelf.promote()[0] == 1
    file.write_text(json.dumps(row) + "\n")
    assert shelf.promote()[0] == 0


def test_the_newest_evaluation_counts_wherever_it_is(shelf: Shelf) -> None:
    shelf.store()
    assert shelf.evaluate("--store", shelf.url, "--run-number", 1, "--allow-command") == 0
    file = shelf.folder / "evaluations" / "run-1.jsonl"
    [row] = read_rows(file)
    worse = row | {"figures": {"accuracy": 0.1}, "time": row["time"] + 60}
    shelf.run.evaluations_file.write_text(json.dumps(worse) + "\n")
    shelf.store()
    assert "accuracy 0.10" in shelf.promote()[1]
    file.write_text(json.dumps(row | {"time": row["time"] + 120}) + "\n")
    intact = file.read_text()
    file.write_text(intact + '{"step": 20, "figures": {"accu')
    assert "cannot be read" in shelf.promote()[1]
    file.write_text(intact)
    assert shelf.promote()[0] == 0


@pytest.mark.parametrize(
    ("early", "late", "good", "bad", "why"),
    [
        (lambda step: 5.0 / step, lambda step: 6.0 + step % 3, 10, 20, "worse than it started"),
        (lambda step: 5.0 + step % 3, lambda step: 1.0 + step % 2 / 10, 20, 10, "did not get better"),
    ],
)
def test_a_checkpoint_is_judged_by_the_rows_up_to_its_step(
    shelf: Shelf, early: Any, late: Any, good: int, bad: int, why: str
) -> None:
    configure(shelf.run, {"accuracy": 0.7}, {})
    rows = list(read_rows(shelf.run.metrics_file))
    for row in rows:
        row["loss"] = (early if row["step"] <= 10 else late)(row["step"])
    shelf.run.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    shelf.store()
    assert why in shelf.promote(step=bad)[1]
    assert shelf.promote(step=good)[0] == 0


def test_an_evaluation_can_be_required(shelf: Shelf) -> None:
    configure(shelf.run, {"accuracy": 0.7}, {})
    assert shelf.evaluate() == 0
    shelf.store()
    code, text = shelf.promote("--require", "evaluation")
    assert (code, "sets no evaluation.thresholds" in text) == (1, True), text
    assert shelf.promote()[0] == 0


def test_a_proof_can_be_required(shelf: Shelf) -> None:
    """The tree of this run had changes that no commit holds, so the run cannot be repeated."""
    assert shelf.evaluate() == 0
    facts = json.loads(shelf.run.run_file.read_text())
    facts["git"]["dirty"] = True
    shelf.run.run_file.write_text(json.dumps(facts))
    shelf.store()
    code, text = shelf.promote("--require", "evaluation,proof")
    assert (code, "its run is not proven: repeatable" in text) == (1, True), text
    assert shelf.promote("--require", "evaluation")[0] == 0


def test_a_comparison_that_the_run_failed_is_judged_again(shelf: Shelf) -> None:
    values = yaml.safe_load(shelf.run.config_file.read_text())
    values["evaluation"] = None
    values["proof"] = {"learned": {"compare_with": "run:7"}}
    shelf.run.config_file.write_text(yaml.safe_dump(values))
    shelf.store()
    code, text = shelf.promote()
    assert (code, "run 7 is not compared" in text) == (1, True), text
