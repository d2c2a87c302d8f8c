"""Pruning all runs works, dry and applied: every shape of a manifest that we write × every rule.

The rule: only checkpoints of a known step are removed; a run without checkpoints is no problem.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainyard.artifacts.record.run_numbers import claim_run, runs_in_question
from trainyard.artifacts.retention.pruning import prune
from trainyard.artifacts.retention.pruning_plan import plan_pruning
from trainyard.artifacts.retention.retention_rules import RetentionRules
from trainyard.artifacts.store.object_store import Store
from trainyard.artifacts.upload import standalone_checkpoint
from trainyard.artifacts.upload.sync import sync_run
from trainyard.artifacts.upload.unfinished_run import RunningRun
from trainyard.artifacts.verify.comparison import Depth
from trainyard.artifacts.verify.verify import verify_run
from trainyard.run.directory import RunDirectory


class Shapes:
    """Stores a run of each shape; `store` returns the run's known steps."""

    def __init__(self, store: Store, make_run: Callable[..., RunDirectory], root: Path) -> None:
        self._store, self._make_run, self._root = store, make_run, root

    def store(self, shape: str) -> set[int]:
        kind, _, steps = shape.partition(" ")
        known = {int(step) for step in steps.split(",") if step}
        getattr(self, f"_{kind}")(tuple(sorted(known)))
        return known

    def _run(self, steps: tuple[int, ...]) -> None:
        sync_run(self._store, self._make_run(steps=steps), 1)

    def _running(self, steps: tuple[int, ...]) -> None:
        directory = self._make_run(steps=steps)
        claim_run(self._store, run_id="run-run", key="", wanted=1)
        running = RunningRun(self._store, directory, 1)
        while running.store_newest(frozenset()) is not None:
            pass

    def _file(self, steps: tuple[int, ...]) -> None:
        self._loose(self._root / (f"step-{steps[0]}.pt" if steps else "latest.pt"))

    def _folder(self, steps: tuple[int, ...]) -> None:
        folder = self._root / (f"step-{steps[0]}" if steps else "final")
        folder.mkdir()
        self._loose(folder / "model.bin", checkpoint=folder)

    def _loose(self, file: Path, *, checkpoint: Path | None = None) -> None:
        file.write_bytes(os.urandom(2000))
        metrics = self._root / "metrics.json"
        metrics.write_text("{}")
        standalone_checkpoint.sync_files(self._store, checkpoint or file, metrics, 1, provenance={})


SHAPES = ("run 100,200", "run 100", "run", "running 100,200", "file 100", "file", "folder 100", "folder")
RULES = {
    "last": RetentionRules(keep_last=1),
    "every": RetentionRules(keep_every=1000),
    "age": RetentionRules(max_age=0.0),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("shape", SHAPES)
def test_pruning_all_runs_removes_known_steps_only_and_reports_no_problem(
    shape: str, rule: str, store: Store, make_run: Any, tmp_path: Path
) -> None:
    steps = Shapes(store, make_run, tmp_path).store(shape)
    before = verify_run(store, 1, depth=Depth.FULL).problems
    plans = plan_pruning(store, runs_in_question(store, None), RULES[rule])
    assert [plan.problem for plan in plans] == [""]
    removed = {each.checkpoint.step for plan in plans for each in plan.removals}
    assert removed == steps - {max(steps, default=0)}, "the newest one always stays"
    problems = [
        problem for plan in plans if plan.changes for problem in prune(store, plan, by="a", rules=RULES[rule])
    ]
    assert problems == []
    assert verify_run(store, 1, depth=Depth.FULL).problems == before
