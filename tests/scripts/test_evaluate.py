"""trainyard evaluate on a run and on a stored one, and what its thresholds decide."""

import hashlib
import json
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
from trainyard.commands import evaluate, prove, store_promote
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
    configure(
        finished_run,
        {"accuracy": 0.41, "task": {"exact match": 1}},
        {"accuracy": ">= 0.60"},
        data=[str(data)],
    )
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
    assert (
        json.loads(finished_run.run_file.read_text())["outcome"]["checkpoint"]["manifest_sha256"]
        == (row["checkpoint_sha256"])
    )

    sync_run(open_store(store), finished_run, None)
    code, text = call(prove.main, *where, *proven, "--json")
    assert code == 1
    proof = json.loads(text[text.index("{\n") : text.rindex("}") + 1])
    learned, stored = (next(p for p in proof["parts"] if p["name"] == name) for name in ("learned", "stored"))
    assert (learned["passed"], stored["passed"]) == (False, True)
    assert {
        "name": "accuracy",
        "value": 0.41,
        "baseline": None,
        "threshold": ">= 0.60",
        "is_missed": True,
    } in proof["figures"]
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
