"""trainyard prove against a store in a folder, and the search for a proven run before a training."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.scripts.conftest import HEX, NO_ANSWER, ROOT, Call, require_success

from trainyard import proven_run_search
from trainyard.artifacts.store.store_address import open_store
from trainyard.artifacts.upload.sync import sync_run
from trainyard.commands.prove import store_of
from trainyard.config.load import load_config
from trainyard.errors import ServiceError
from trainyard.run.directory import RunDirectory
from trainyard.training.data import tokenize_corpus

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
    require_success(called(*words))
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
    done = called(*words, **NO_ANSWER)
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


COMMIT = HEX[:40]
SMOKE = str(ROOT / "configs" / "smoke.yaml")
SAME = ("training.max_steps=20",)


def change_outcome(layout: RunDirectory, **changes: Any) -> None:
    run = json.loads(layout.run_file.read_text())
    run["outcome"] = run["outcome"] | changes
    layout.run_file.write_text(json.dumps(run))


def change_record(layout: RunDirectory, **changes: Any) -> None:
    layout.run_file.write_text(json.dumps(json.loads(layout.run_file.read_text()) | changes))


def lose(store: Path, pattern: str) -> None:
    next(store.glob(pattern)).unlink()


def damage(store: Path, pattern: str, content: bytes | None = None) -> None:
    [path, *_] = store.glob(pattern)
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1] + b"?" if content is None else content)


BEFORE: dict[str, Callable[[RunDirectory], Any]] = {
    "failed": lambda run: change_outcome(run, status="failed", exit_code=1),
    "of a dirty tree": lambda run: change_record(
        run, git={"commit": COMMIT, "dirty": True, "diff_sha256": HEX}
    ),
    "of another commit": lambda run: change_record(run, git={"commit": "f" * 40, "dirty": False}),
    "of no commit": lambda run: change_record(run, git={}),
    "of other data": lambda run: change_record(run, data={"fingerprint": "f" * 64}),
    "of no known data": lambda run: change_record(run, data={}),
    "from a checkpoint of another run": lambda run: change_record(
        run, parent={"checkpoint": "/x", "manifest_sha256": HEX}
    ),
    "with an image": lambda run: change_record(run, image_digest=f"sha256:{HEX}"),
}
"""Changes to the run before it is stored: it is then not proven, or not the same run."""
AFTER: dict[str, Callable[[Path], Any]] = {
    "a lost manifest": lambda store: lose(store, "manifests/*"),
    "a lost shard": lambda store: lose(store, "run-1/checkpoint-*20/state.bin"),
    "a changed shard": lambda store: damage(store, "run-1/checkpoint-*20/state.bin"),
    "a damaged identity": lambda store: damage(store, "run-1/identity.json", b"{"),
    "no run": shutil.rmtree,
}
"""Damage to the store afterwards."""


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The commit that is checked out and the data that are prepared, as a test needs them."""
    known: dict[str, Any] = {"git": {"commit": COMMIT, "dirty": False}, "data": (HEX, None)}
    monkeypatch.setattr(proven_run_search, "git_facts", lambda _: known["git"])
    monkeypatch.setattr(tokenize_corpus, "prepared_data_of", lambda _: known["data"])
    return known


@pytest.fixture
def found(here: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Searches as a step of a workflow does; returns the number."""

    def run(*changes: str, runs: int = 9) -> str:
        monkeypatch.setenv("GITHUB_ACTIONS", "true")
        monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
        store = f"file://{tmp_path}/store"
        monkeypatch.setattr(proven_run_search, "RUNS", runs)
        found, reason, _ = proven_run_search.find_proven_run(Path(SMOKE), changes, store=store)
        assert bool(reason) is (found is None)
        return "" if found is None else str(found)

    return run


def sync(layout: RunDirectory, number: int | None = None) -> Path:
    store = layout.path.parent.parent / "store"
    sync_run(open_store(f"file://{store}"), layout, number)
    return store


def test_a_proven_run_of_the_same_is_found_and_named(
    found: Callable[..., str], finished_run: RunDirectory, tmp_path: Path
) -> None:
    sync(finished_run, 812)
    assert found(*SAME) == "812"
    summary = (tmp_path / "summary").read_text()
    assert summary.startswith("### Not trained again: run 812 in file:///")
    assert "- stored: " in summary and "- trained: 20 of 20 steps" in summary
    assert "gh workflow run training_ci.yml -f config=" in summary
    assert "-f set=training.max_steps=20" in summary


@pytest.mark.parametrize("state", BEFORE)
def test_a_run_that_is_not_proven_or_not_the_same_is_not_found(
    found: Callable[..., str], finished_run: RunDirectory, state: str
) -> None:
    BEFORE[state](finished_run)
    try:
        sync(finished_run)
    except Exception as error:  # noqa: BLE001 - a run that cannot be stored is not found either
        assert "not" in str(error)
    assert found(*SAME) == ""


@pytest.mark.parametrize("state", AFTER)
def test_a_run_whose_stored_copy_does_not_verify_is_not_found(
    found: Callable[..., str], finished_run: RunDirectory, state: str
) -> None:
    AFTER[state](sync(finished_run))
    assert found(*SAME) == ""


@pytest.mark.parametrize(
    ("change", "is_found"),
    [
        ({}, True),
        ({"git": {"commit": "f" * 40, "dirty": False}}, False),
        ({"git": {"commit": COMMIT, "dirty": True}}, False),
        ({"git": {"commit": COMMIT}}, False),
        ({"git": {}}, False),
        ({"data": ("f" * 64, None)}, False),
        ({"data": (None, None)}, False),
        ({"data": (None, "tokens.bin: its content changed")}, False),
    ],
)
def test_what_is_here_must_be_known_and_the_same(
    found: Callable[..., str],
    finished_run: RunDirectory,
    here: dict[str, Any],
    change: dict[str, Any],
    is_found: bool,
) -> None:
    sync(finished_run)
    here |= change
    assert bool(found(*SAME)) is is_found


@pytest.mark.parametrize(
    ("changes", "is_found"),
    [
        (["training.max_steps=20"], True),
        (["training.max_steps=20", "training.seed=42"], True),
        ([], False),
        (["training.max_steps=21"], False),
        (["training.max_steps=20", "training.seed=7"], False),
        (["training.max_steps=20", "monitoring.tensorboard=false"], False),
        (["training.max_steps=20", "model.dtype=bfloat16"], False),
    ],
)
def test_only_the_same_resolved_configuration_counts(
    found: Callable[..., str], finished_run: RunDirectory, changes: list[str], is_found: bool
) -> None:
    sync(finished_run)
    assert bool(found(*changes)) is is_found


def test_weights_are_not_compared_so_that_it_trains(
    found: Callable[..., str], finished_run: RunDirectory
) -> None:
    config = load_config(Path(SMOKE)).config
    model = config.model.model_copy(update={"path": "./weights.gguf"})
    clean = {"commit": COMMIT, "dirty": False}
    assert proven_run_search.incomparable(config, clean) == ""
    assert "weights" in proven_run_search.incomparable(config.model_copy(update={"model": model}), clean)


def test_the_search_continues_behind_a_damaged_run_and_ends_at_its_bound(
    found: Callable[..., str], finished_run: RunDirectory, tmp_path: Path
) -> None:
    store = sync(finished_run, 1)
    for number in (2, 3):
        (store / f"run-{number}").mkdir()
        (store / f"run-{number}" / "identity.json").write_text("{")
    assert found(*SAME) == "1"
    assert found(*SAME, runs=2) == ""


@pytest.mark.parametrize("error", [ServiceError("no answer"), OSError(28, "No space left on device")])
def test_a_store_that_cannot_be_searched_means_that_it_trains(
    found: Callable[..., str], finished_run: RunDirectory, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    sync(finished_run)

    def refuse(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(proven_run_search, "judge", refuse)
    assert found(*SAME) == ""
