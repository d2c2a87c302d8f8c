"""trainyard prove against a store in a folder: green only when all five parts hold."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.scripts.conftest import Call

from trainyard.artifacts.store.store_address import open_store
from trainyard.artifacts.upload.sync import sync_run
from trainyard.commands.prove import store_of
from trainyard.run.directory import RunDirectory

NAMES = ["trained", "learned", "network", "stored", "repeatable"]


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store"


@pytest.fixture
def stored_run(finished_run: RunDirectory, store: str) -> RunDirectory:
    sync_run(open_store(store), finished_run, None)
    return finished_run


def proof_of(layout: RunDirectory) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((layout.report / "proof.json").read_text())
    return value


def failing(proof: dict[str, Any]) -> list[str]:
    return [part["name"] for part in proof["parts"] if not part["passed"]]


@pytest.mark.parametrize("number", ["auto", "1"])
def test_a_whole_run_is_proven(called: Call, stored_run: RunDirectory, store: str, number: str) -> None:
    done = called("prove", "--run-dir", stored_run.path, "--store", store, "--run-number", number)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    proof = proof_of(stored_run)
    assert proof["proven"] is True
    assert [part["name"] for part in proof["parts"]] == NAMES
    assert (proof["run_number"], proof["store"], proof["run_id"]) == (1, store, stored_run.path.name)
    lines = [line.split("INFO  ")[1] for line in done.stderr.splitlines()]
    assert lines[0] == "sample: def f(x):⏎return x"
    assert lines[1] == "proven trained: 20 of 20 steps, every loss finite, no retries [ok]"
    assert "objects: SHA-256 equal on disk, in the store and in the manifest [ok]" in lines[4]


def test_the_exit_code_may_speak_of_some_parts(called: Call, stored_run: RunDirectory, store: str) -> None:
    """Other programs cannot show all five; the verdict itself is still about all five."""
    run = json.loads(stored_run.run_file.read_bytes())
    del run["seed"]
    stored_run.run_file.write_text(json.dumps(run))
    for only, code in (("trained,network", 0), ("trained,stored", 1), ("repeatable", 1)):
        place = ("--run-dir", stored_run.path, "--store", store)
        done = called("prove", *place, "--only", only, "--json")
        assert done.returncode == code, (only, done.stderr)
        assert json.loads(done.stdout)["proven"] is False


def test_a_dry_run_writes_nothing(called: Call, stored_run: RunDirectory, store: str) -> None:
    done = called("prove", "--run-dir", stored_run.path, "--store", store, "--dry-run", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["proven"] is True
    assert not (stored_run.report / "proof.json").exists()


def test_the_store_of_the_last_proof_is_used(called: Call, stored_run: RunDirectory, store: str) -> None:
    """Otherwise proving again without an address would make a proven run red."""
    words = ("prove", "--run-dir", stored_run.path)
    assert called(*words, "--store", store).returncode == 0
    again = called(*words)
    assert again.returncode == 0, again.stderr
    assert proof_of(stored_run)["store"] == store
    (stored_run.report / "proof.json").unlink()
    claimed = {"run_id": "a", "stored_as": {"file:///old": 3, "file:///new": 1}}
    assert store_of(stored_run, None, claimed) == "file:///new", "where it has its number"


def test_the_store_of_another_runs_proof_is_not_used(
    called: Call, stored_run: RunDirectory, store: str
) -> None:
    words = ("prove", "--run-dir", stored_run.path)
    assert called(*words, "--store", store).returncode == 0
    path = stored_run.report / "proof.json"
    path.write_text(path.read_text().replace('"run_id": "', '"run_id": "another-'))
    assert called(*words).returncode == 1
    assert failing(proof_of(stored_run)) == ["stored"]


def test_a_store_that_does_not_answer_is_a_refusal(called: Call, finished_run: RunDirectory) -> None:
    words = ["prove", "--run-dir", finished_run.path, "--store", "s3://ml-runs", "--run-number", "3"]
    done = called(
        *words,
        AWS_ENDPOINT_URL="http://127.0.0.1:9",
        AWS_ACCESS_KEY_ID="a",
        AWS_SECRET_ACCESS_KEY="b",
        AWS_MAX_ATTEMPTS="1",
    )
    assert done.returncode == 4, done.stderr
    assert failing(proof_of(finished_run)) == ["stored"]
    assert "not proven: stored: " in done.stderr


def test_in_actions_what_fails_is_annotated(called: Call, finished_run: RunDirectory, tmp_path: Path) -> None:
    output = tmp_path / "output"
    variables = {"GITHUB_ACTIONS": "true", "GITHUB_OUTPUT": str(output)}
    done = called("prove", "--run-dir", finished_run.path, **variables)
    assert done.returncode == 1
    assert "::error title=Not proven%3A stored::no store was named%0ANext: " in done.stderr
    assert "proven<<" in output.read_text()
    assert "\nfalse\n" in output.read_text()


def test_a_folder_that_is_no_run_is_named(called: Call) -> None:
    done = called("prove", "--run-dir", "missing")
    assert done.returncode == 2
    assert "run.json: missing, so missing is not a run directory" in done.stderr
