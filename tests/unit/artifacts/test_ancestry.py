"""The chain from a run to its parent checkpoint, data and code, and every way it can be broken."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainyard.artifacts.ancestry import Lineage, walk_lineage
from trainyard.artifacts.retention.pruning import prune
from trainyard.artifacts.retention.pruning_plan import RetentionRules, plan_pruning
from trainyard.artifacts.store.object_store import Store
from trainyard.artifacts.upload.sync import sync_run
from trainyard.artifacts.verify.comparison import Depth
from trainyard.run.atomic_files import sha256_of_file
from trainyard.run.directory import RunDirectory

Descend = Callable[..., RunDirectory]


@pytest.fixture
def descend(store: Store, make_run: Any) -> Descend:
    """Stores a run that was started from a checkpoint (None: from none)."""

    def make(name: str, number: int, parent: Path | None, **facts: Any) -> RunDirectory:
        run: RunDirectory = make_run(name)
        record = json.loads(run.run_file.read_text()) | facts
        if parent is not None:
            record["parent"] = {
                "checkpoint": str(parent),
                "manifest_sha256": sha256_of_file(parent / "manifest.json"),
            }
        run.run_file.write_text(json.dumps(record))
        assert sync_run(store, run, number).problems == ()
        return run

    return make


@pytest.fixture
def three(store: Store, descend: Descend) -> RunDirectory:
    """Run 3 came from step 200 of run 2, which came from step 100 of run 1."""
    first = descend("a", 1, None, data={"fingerprint": "e01c"})
    second = descend("b", 2, first.checkpoint(100), git={"commit": "c", "dirty": True, "diff_sha256": "d1"})
    return descend("c", 3, second.checkpoint(200), git={"commit": "c", "dirty": True})


def lines(lineage: Lineage) -> list[str]:
    return [link.line() for link in lineage.links]


@pytest.mark.parametrize("depth", list(Depth))
def test_it_is_walked_to_the_end(store: Store, three: RunDirectory, depth: Depth) -> None:
    found = walk_lineage(store, 3, depth=depth)
    assert lines(found) == [
        f"run 3 ← parent: checkpoint-200 of run 2, {depth} (held)",
        "run 3 ← data: no fingerprint (missing)",
        "run 3 ← code: commit c with changes whose hash is not recorded (missing)",
        f"run 2 ← parent: checkpoint-100 of run 1, {depth} (held)",
        "run 2 ← data: no fingerprint (missing)",
        "run 2 ← code: commit c with changes d1 (on record)",
        "run 1 ← data: fingerprint e01c (on record)",
        f"run 1 ← code: commit {'3f2c1ab' * 5} (on record)",
    ]
    assert found.ok
    assert found.summary() == "2 parent checkpoints; data and code missing, on record"
    assert found.to_json()["links"][0]["status"] == "held"


def test_a_parent_that_is_not_what_it_was_is_named(store: Store, three: RunDirectory, folder: Path) -> None:
    (folder / "run-1/checkpoint-100/.metadata").write_bytes(os.urandom(100))
    found = walk_lineage(store, 3, depth=Depth.LISTING)
    assert not found.ok
    assert len(found.problems) == 1
    assert "run 2 ← parent: checkpoint-100 of run 1: run-1/checkpoint-100/.metadata: " in found.problems[0]


def test_a_parent_whose_manifests_are_damaged_is_broken(
    store: Store, three: RunDirectory, folder: Path
) -> None:
    path = folder / "manifests/run-2-manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"run_id": "other"}))
    assert "belongs to run other" in walk_lineage(store, 3, depth=Depth.LISTING).problems[0]


def test_a_parent_that_retention_removed_is_on_record(store: Store, three: RunDirectory) -> None:
    rules = RetentionRules(keep_last=1, even_parents=True)
    [plan] = plan_pruning(store, [1], rules)
    prune(store, plan, by="ada", rules=rules)
    found = walk_lineage(store, 3, depth=Depth.FULL)
    assert found.ok
    expected = (
        "checkpoint-100 of run 1, by ada: no rule keeps it; run 2 was started from it and loses its parent"
    )
    assert f"run 2 ← parent: {expected} (removed)" in lines(found)
    assert any(line.startswith("run 1 ← data") for line in lines(found))


def test_a_parent_from_elsewhere_is_not_here(store: Store, descend: Descend, make_run: Any) -> None:
    foreign = make_run("foreign")
    descend("child", 1, foreign.checkpoint(100))
    found = walk_lineage(store, 1, depth=Depth.FULL)
    assert found.ok
    assert lines(found)[0].endswith("(not here)")


def test_a_run_that_is_its_own_parent_ends_the_walk(store: Store, make_run: Any) -> None:
    run = make_run("a")
    digest = sha256_of_file(run.checkpoint(100) / "manifest.json")
    record = json.loads(run.run_file.read_text()) | {"parent": {"manifest_sha256": digest}}
    run.run_file.write_text(json.dumps(record))
    sync_run(store, run, 1)
    assert len(walk_lineage(store, 1, depth=Depth.LISTING).links) == 5


def test_no_manifest_no_lineage(store: Store, three: RunDirectory, folder: Path) -> None:
    assert walk_lineage(store, 9, depth=Depth.LISTING).summary() == "not known"
    assert (
        walk_lineage(store, 1, depth=Depth.LISTING).summary()
        == "no parent checkpoint; data and code on record"
    )
