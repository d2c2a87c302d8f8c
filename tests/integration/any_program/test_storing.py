"""Storing is not judging: what a program saved is stored while it trains, and whatever its verdict is."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.integration.any_program.test_any_program import Repository, repository

__all__ = ["repository"]
KILLED = ("--die", "5:step")
# The words of the program -> the status on record, and the steps that it saves.
ENDS = {(): ("succeeded", [2, 4, 6]), KILLED: ("failed", [2, 4]), ("--nan_at", "5"): ("failed", [2, 4, 6])}


def stored_steps(store: Path) -> list[int]:
    """Return the steps of the complete checkpoints in the store."""
    markers = store.glob("run-1/checkpoint-*/manifest.json")
    return sorted(int(marker.parent.name.partition("-")[2]) for marker in markers)


@pytest.mark.parametrize("stores_failed", [True, False])
def test_a_run_is_stored_whatever_its_verdict_unless_that_is_switched_off(
    repository: Repository, stores_failed: bool
) -> None:
    repository.set = ["program.data=[data]", f"artifacts.store_failed={str(stores_failed).lower()}"]
    ends = ENDS if stores_failed else {KILLED: ENDS[KILLED]}
    for number, (words, (status, saved)) in enumerate(ends.items()):
        store, run = repository.folder.parent / f"store-{number}", f"runs/{number}"
        where = ("--run-dir", run, "--store", store.absolute().as_uri())
        done = repository.run("--json", *where, "--", sys.executable, "train.py", *words)
        found: dict[str, Any] = json.loads(done.stdout)
        assert found["outcome"]["status"] == status, done.stderr
        assert (done.returncode == 0) is (status == "succeeded"), done.stderr
        subprocess.run(["rm", "-rf", "died", "out"], cwd=repository.folder, check=True)
        if not stores_failed:
            assert stored_steps(store) == []
            continue
        # All that were copied into the run directory; the program may save faster than they are copied.
        assert stored_steps(store)[-1:] == saved[-1:], done.stderr
        manifest = json.loads((store / "manifests" / "run-1-manifest.json").read_bytes())
        assert manifest["outcome"]["status"] == status
