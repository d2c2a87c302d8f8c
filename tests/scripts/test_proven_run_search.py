"""The search before a training: only a proven run of the same commit, configuration and data is found."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.scripts.conftest import ROOT

from trainyard import proven_run_search
from trainyard.artifacts.store.store_address import open_store
from trainyard.artifacts.upload.sync import sync_run
from trainyard.config.load import load_config
from trainyard.errors import ServiceError
from trainyard.run.directory import RunDirectory
from trainyard.training.data import tokenize_corpus

HEX = "0123456789abcdef" * 4
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
    found: Callable[..., str],
    finished_run: RunDirectory,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    sync(finished_run)

    def refuse(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(proven_run_search, "judge", refuse)
    assert found(*SAME) == ""
