"""The list of a store's contents: complete runs, broken ones, prices."""

from collections.abc import Callable
from typing import Any

import pytest

from trainyard.artifacts import inventory
from trainyard.artifacts.inventory import inventory_table, list_runs
from trainyard.artifacts.promotion import find_promotable, promote
from trainyard.artifacts.store.object_store import Store
from trainyard.artifacts.upload.sync import sync_run
from trainyard.artifacts.verify.comparison import Depth
from trainyard.run.identity import write_outcome


def test_runs_are_listed_with_their_checkpoints(make_run: Callable[..., Any], store: Store) -> None:
    sync_run(store, make_run("one"), 1)
    sync_run(store, make_run("two", steps=(300,)), 2)
    one, two = list_runs(store, [1, 2], judge=lambda *_: ())
    assert one.ok
    assert two.ok
    text = inventory_table([one, two])
    assert "run-1" in text or "1" in text.split()
    assert "300" in text
    assert [len(run.to_json()["checkpoints"]) for run in (one, two)] == [2, 1]


def test_many_runs_take_one_listing_and_the_newest_are_read_and_judged(
    make_run: Callable[..., Any], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, listings, list_objects = list[int](), list[str](), type(store).list_objects
    read, read_object = set[str](), type(store).read_object
    for number in range(1, 5):
        run = make_run(f"run-{number}", steps=(100,))
        write_outcome(run.run_file, {"status": "succeeded"})
        sync_run(store, run, number)

    def judge(_: Store, number: int) -> tuple[str, ...]:
        asked.append(number)
        return ()

    def noted(self: Any, prefix: str) -> Any:
        listings.append(prefix)
        return list_objects(self, prefix)

    def noted_read(self: Any, key: str) -> Any:
        read.add(key)
        return read_object(self, key)

    _, checkpoint = find_promotable(store, 2, 100, depth=Depth.LISTING)
    promote(store, "best", checkpoint, run_id="run-2", by="ada", depth=Depth.LISTING)
    store.delete("run-1/identity.json")
    monkeypatch.setattr(type(store), "list_objects", noted)
    monkeypatch.setattr(type(store), "read_object", noted_read)
    monkeypatch.setattr(inventory, "MOST_JUDGED", 1)
    runs = list_runs(store, [1, 2, 3, 4], judge=judge, most_read=2)
    assert [run.proof for run in runs] == ["not judged", "not judged", "not judged", "proven"]
    assert (asked, listings) == ([4], [""])
    assert len(read) == 5 and not [key for key in read if "run-1" in key or "run-2" in key]
    assert [run.ok for run in runs] == [False, True, True, True]
    assert "not read" in inventory_table(runs).splitlines()[2]
    monkeypatch.setattr(inventory, "MOST_JUDGED", 3)
    every = list_runs(store, [2, 3, 4], judge=judge)
    assert [run.proof for run in every] == ["proven"] * 3
    assert [each.step for each in runs[1].checkpoints] == [100] and runs[1].bytes == every[0].bytes
    assert runs[1].checkpoints[0].promoted == every[0].checkpoints[0].promoted == ("best",)
    assert runs[1].checkpoints[0].bytes == every[0].checkpoints[0].bytes


def test_a_run_that_lost_an_object_is_named_and_not_ok(make_run: Callable[..., Any], store: Store) -> None:
    sync_run(store, make_run("one"), 1)
    lost = next(found.key for found in store.list_objects("run-1/") if "checkpoint-200" in found.key)
    store.delete(lost)
    (listed,) = list_runs(store, [1], judge=lambda *_: ())
    assert not listed.ok
    assert listed.proof == "not proven"
    assert any(lost in problem for problem in listed.problems)
