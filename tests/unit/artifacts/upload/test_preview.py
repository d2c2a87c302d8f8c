"""The plan of a sync."""

from typing import Any

import pytest

from trainyard.artifacts.store.object_store import Store
from trainyard.artifacts.upload.preview import preview_run
from trainyard.artifacts.upload.sync import sync_run
from trainyard.errors import RunConflictError


def test_a_plan_sends_only_what_is_new(store: Store, make_run: Any) -> None:
    run = make_run()
    sync_run(store, run, None)
    assert preview_run(store, run, None).send == ()
    make_run(steps=(300,))
    plan = preview_run(store, run, None)
    assert {key for key in plan.send if "checkpoint-300" in key} == set(plan.send[:3])
    assert len(plan.there) == 9


def test_a_plan_names_what_is_not_whole(store: Store, make_run: Any) -> None:
    run = make_run()
    (run.checkpoint(200) / ".metadata").unlink()
    assert "checkpoint-200 was not uploaded" in preview_run(store, run, 1).text()


def test_a_plan_for_another_runs_number_is_refused(store: Store, make_run: Any) -> None:
    sync_run(store, make_run(), 1)
    with pytest.raises(RunConflictError):
        preview_run(store, make_run("other"), 1)
