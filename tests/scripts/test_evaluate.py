"""trainyard evaluate on a run and on a stored one: what its thresholds decide, and what gets a name."""

import hashlib
import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1
from tests.unit.artifacts.record.test_signature import Pair

from trainyard.artifacts.store.store_address import open_store
from trainyard.artifacts.upload.sync import sync_run
from trainyard.command.handler import exit_code_of
from trainyard.commands import evaluate, prove, store_promote, store_verify
from trainyard.gateways.model_signing import KEY, signer_from
from trainyard.run.directory import RunDirectory
from trainyard.run.records import read_rows

PRINT = (
    "import json, sys; print('loading'); print(json.dumps(json.loads(sys.argv[2]) | {'path': sys.argv[1]}))"
)
Call = Callable[..., tuple[int, str]]


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Call:
    """Call a command in this process; return its exit code and its stdout."""

    def call(main: Any, *words: object) -> tuple[int, str]:
        capfd.readouterr()
        code = exit_code_of(lambda: main([str(word) for word in words]))
        found = capfd.readouterr()
        return code, found.out + found.err

    return call


def configure(run: RunDirectory, figures: object, thresholds: dict[str, str], **more: Any) -> None:
    """Give the run an evaluation that prints `figures`."""
    values = yaml.safe_load(run.config_file.read_text())
    command = [sys.executable, "-c", PRINT, "{checkpoint}", json.dumps(figures)]
    values["evaluation"] = {"command": command, "data": None, "thresholds": thresholds} | more
    run.config_file.write_text(yaml.safe_dump(values))
    facts = json.loads(run.run_file.read_text())
    facts["config_sha256"] = hashlib.sha256(run.config_file.read_bytes()).hexdigest()
    run.run_file.write_text(json.dumps(facts))


def test_an_evaluation_is_recorded_and_decides_the_proof(
    finished_run: RunDirectory, tmp_path: Path, call: Call
) -> None:
    where = ("--run-dir", finished_run.path)
    store, data = (tmp_path / "store").as_uri(), tmp_path / "tasks.jsonl"
    data.write_text("{}\n")
    figures = {"accuracy": 0.41, "task": {"exact match": 1}}
    configure(finished_run, figures, {"accuracy": ">= 0.60"}, data=[str(data)])
    assert call(evaluate.main, *where, "--dry-run")[0] == 0
    assert not finished_run.evaluations_file.exists()
    sync_run(open_store(store), finished_run, None)
    proven = ("--store", store, "--only", "learned")
    code, text = call(prove.main, *where, *proven)
    assert code == 1
    assert "its last checkpoint was not evaluated" in text
    assert "trainyard evaluate --run-dir" in text

    code, text = call(evaluate.main, *where, "--json")
    assert code == 1
    assert "trained, but not good enough: accuracy 0.41 (needs >= 0.60)" in text
    (row,) = read_rows(finished_run.evaluations_file)
    assert row["step"] == 20
    assert row["figures"] == {"accuracy": 0.41, "task.exact match": 1}
    assert row["command"][-2] == "{checkpoint}"
    assert row["data"]["files"] == 1
    checkpoint = json.loads(finished_run.run_file.read_text())["outcome"]["checkpoint"]
    assert checkpoint["manifest_sha256"] == row["checkpoint_sha256"]

    sync_run(open_store(store), finished_run, None)
    code, text = call(prove.main, *where, *proven, "--json")
    assert code == 1
    proof = json.loads(text[text.index("{\n") : text.rindex("}") + 1])
    learned, stored = (next(p for p in proof["parts"] if p["name"] == name) for name in ("learned", "stored"))
    assert (learned["passed"], stored["passed"]) == (False, True)
    figure = {"name": "accuracy", "value": 0.41, "baseline": None, "threshold": ">= 0.60", "is_missed": True}
    assert figure in proof["figures"]
    name = ("--store", store, "--run-number", 1, "--step", 20, "--name", "best")
    code, text = call(store_promote.main, *name)
    assert code == 1
    assert "not good enough: accuracy 0.41" in text
    assert not (tmp_path / "store" / "promoted").exists()


def test_a_good_evaluation_of_a_stored_checkpoint_lets_it_be_promoted(
    finished_run: RunDirectory, tmp_path: Path, call: Call
) -> None:
    store = (tmp_path / "store").as_uri()
    configure(finished_run, {"accuracy": 0.7}, {"accuracy": ">= 0.60"})
    sync_run(open_store(store), finished_run, None)
    name = ("--store", store, "--run-number", 1, "--step", 10, "--name", "best")
    code, text = call(store_promote.main, *name)
    assert code == 1
    assert f"trainyard evaluate --store {store} --run-number 1 --step 10" in text
    for step, code in ((20, 1), (10, 0)):  # each checkpoint needs its own
        words = ("--store", store, "--run-number", 1, "--step", step, "--allow-command")
        assert call(evaluate.main, *words)[0] == 0
        assert call(store_promote.main, *name)[0] == code
    assert len((tmp_path / "store" / "evaluations" / "run-1.jsonl").read_text().splitlines()) == 2
    assert call(prove.main, "--run-dir", finished_run.path, "--store", store, "--only", "stored")[0] == 0


def test_the_command_of_a_store_runs_only_where_it_is_allowed(
    finished_run: RunDirectory, tmp_path: Path, call: Call
) -> None:
    """Somebody's store names a command that leaves a file behind on this machine."""
    mark, url, signed = tmp_path / "ran", (tmp_path / "store").as_uri(), (tmp_path / "signed").as_uri()
    pair, other = (Pair(tmp_path / name, SECP256R1()) for name in ("own.pub", "other.pub"))
    configure(finished_run, {}, {}, command=["sh", "-c", f"touch {mark}; echo '{{\"accuracy\": 1}}'"])
    sync_run(open_store(url), finished_run, None)
    sync_run(open_store(signed), finished_run, None, signer=signer_from({KEY: pair.secret}))
    wrong = []
    for store, words, code, is_run in (
        (url, (), 2, False),
        (url, ("--dry-run",), 0, False),
        (url, ("--allow-command",), 0, True),
        (url, ("--public-key", pair.public), 1, False),
        (url, ("--public-key", pair.public, "--allow-command"), 1, False),
        (signed, (), 2, False),
        (signed, ("--public-key", other.public), 1, False),
        (signed, ("--public-key", pair.public), 0, True),
    ):
        for step in ((), ("--step", 10)):
            mark.unlink(missing_ok=True)
            found, text = call(evaluate.main, "--store", store, "--run-number", 1, *step, *words)
            is_printed = f"touch {mark}" in text or "--public-key" in words
            if (found, mark.exists(), is_printed) != (code, is_run, True):
                wrong.append(f"{store} {step} {words}: {found} {mark.exists()} {text}")
    assert not wrong, "\n".join(wrong)
    assert call(evaluate.main, "--run-dir", finished_run.path, "--allow-command")[0] == 2
    assert call(evaluate.main, "--run-dir", finished_run.path)[0] == 0
    values, own = yaml.safe_load(finished_run.config_file.read_text()), tmp_path / "own.yaml"
    values["evaluation"]["command"] = ["sh", "-c", "echo '{\"accuracy\": 2}'"]
    own.write_text(yaml.safe_dump(values))
    assert evaluate.evaluate_run(finished_run.path, config=own) == 0
    row = read_rows(finished_run.evaluations_file)[-1]
    assert (row["figures"], row["command"]) == ({"accuracy": 2}, values["evaluation"]["command"]), "what ran"


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        (None, 2, "has no evaluation.command"),
        (["/no/such/program"], 2, "No such file"),
        ([sys.executable, "-c", "import sys; print('{}'); sys.exit(3)"], 1, "exit code 3"),
        ([sys.executable, "-c", "print('accuracy 0.7')"], 1, "no JSON object with a number"),
        ([sys.executable, "-c", "print('[1]')"], 1, "no JSON object with a number"),
        ([sys.executable, "-c", "print('{\"a\": NaN}')"], 1, "no JSON object with a number"),
    ],
)
def test_what_is_no_evaluation(
    finished_run: RunDirectory, call: Call, command: list[str] | None, code: int, words: str
) -> None:
    configure(finished_run, {}, {}, command=command)
    found, text = call(evaluate.main, "--run-dir", finished_run.path)
    assert (found, words in text) == (code, True), text
    assert not finished_run.evaluations_file.exists()


def test_a_damaged_checkpoint_is_not_evaluated(finished_run: RunDirectory, call: Call) -> None:
    configure(finished_run, {"accuracy": 1}, {})
    file = next(finished_run.checkpoint(20).rglob("state.bin"))
    file.write_bytes(b"x" * file.stat().st_size)
    assert call(evaluate.main, "--run-dir", finished_run.path)[0] == 1
    assert call(evaluate.main, "--run-dir", finished_run.path, "--step", 10)[0] == 0
    assert call(evaluate.main, "--run-dir", finished_run.path, "--step", 7)[0] == 2


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
def shelf(finished_run: RunDirectory, tmp_path: Path, call: Call) -> Shelf:
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
