"""Names for checkpoints: a checkpoint is verified first, and a name moves at once and stays true."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from trainyard.artifacts.promotion import (
    Promotion,
    find_promotable,
    list_promotions,
    promote,
    read_promotion,
    withdraw,
)
from trainyard.artifacts.restore.restore import restore
from trainyard.artifacts.restore.selection import parse_selection
from trainyard.artifacts.retention.pruning import prune
from trainyard.artifacts.retention.pruning_plan import RetentionRules, plan_pruning
from trainyard.artifacts.store.object_store import Store
from trainyard.artifacts.upload.sync import sync_run
from trainyard.artifacts.verify.comparison import Depth
from trainyard.errors import ConfigError, RunConflictError, ServiceError, VerificationError
from trainyard.gateways.local_store.folder import LocalStore
from trainyard.run.directory import RunDirectory


def give(store: Store, name: str, step: int | None, by: str = "ada") -> Promotion:
    run_id, checkpoint = find_promotable(store, 1, step, depth=Depth.FULL)
    return promote(store, name, checkpoint, run_id=run_id, by=by, depth=Depth.FULL)


def test_restore_takes_the_name_and_notices_when_it_no_longer_fits(
    store: Store, run: RunDirectory, tmp_path: Path, folder: Path
) -> None:
    give(store, "production", 100)
    assert restore(store, parse_selection(store, None, "production"), tmp_path / "back").steps == (100,)
    with pytest.raises(
        ConfigError, match="the name belongs to step 100 of run 1, not to a checkpoint of run 2"
    ):
        parse_selection(store, 2, "production")
    pointer = folder / "promoted/production.json"
    pointer.write_text(json.dumps(json.loads(pointer.read_text()) | {"digest": "0" * 64}))
    with pytest.raises(VerificationError, match=r"000000000000… was promoted"):
        restore(store, parse_selection(store, 1, "production"), tmp_path / "again")


def test_what_does_not_verify_is_not_promoted(store: Store, run: RunDirectory, folder: Path) -> None:
    (folder / "run-1/checkpoint-200/.metadata").write_bytes(os.urandom(100))
    with pytest.raises(VerificationError, match=r"(?s)checkpoint-200/\.metadata: .*was not promoted"):
        give(store, "best", 200)
    with pytest.raises(VerificationError, match=r"no checkpoint of step 300\. Steps: 100, 200"):
        give(store, "best", 300)
    assert list(list_promotions(store)) == []


@pytest.mark.parametrize("name", ["", "newest", "Best", "a/b", "../x", "9", "a" * 64, "a\n"])
def test_a_name_that_is_none(store: Store, run: RunDirectory, name: str) -> None:
    with pytest.raises(ConfigError, match="not a valid checkpoint name"):
        give(store, name, 100)


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"schema": 9}'])
def test_a_torn_pointer_is_named(store: Store, run: RunDirectory, folder: Path, content: str) -> None:
    give(store, "best", 100)
    (folder / "promoted/best.json").write_text(content)
    with pytest.raises(VerificationError, match=r"promoted/best\.json:.* (damaged|not a readable)"):
        read_promotion(store, "best")


def test_a_pointer_under_another_name_is_none(store: Store, run: RunDirectory, folder: Path) -> None:
    give(store, "best", 100)
    (folder / "promoted/production.json").write_bytes((folder / "promoted/best.json").read_bytes())
    with pytest.raises(VerificationError, match=r"production\.json: is the pointer of 'best'"):
        read_promotion(store, "production")


def test_a_name_taken_back_is_nobodys_until_given_again(store: Store, run: RunDirectory) -> None:
    first = give(store, "production", 100)
    give(store, "best", 100)
    gone = withdraw(store, "production", by="bob")
    assert (gone.by, gone.previous["digest"]) == ("bob", first.digest)
    assert read_promotion(store, "production") is None
    assert [promotion.name for promotion in list_promotions(store)] == ["best"]
    with pytest.raises(ConfigError, match="neither a step, nor newest, nor a name that was promoted"):
        parse_selection(store, None, "production")
    with pytest.raises(ConfigError, match="no checkpoint has this name, so there is nothing to withdraw"):
        withdraw(store, "production", by="bob")
    assert give(store, "production", 200).previous == {}
    assert parse_selection(store, None, "production").step == 200


@pytest.mark.parametrize("first", [True, False])
def test_who_loses_the_race_for_a_name_is_told(folder: Path, run: RunDirectory, first: bool) -> None:
    class Raced(LocalStore):
        def swap(self, key: str, old: bytes, new: bytes, **rest: Any) -> bool:
            give(LocalStore(folder), "best", 200, by="eve")
            return super().swap(key, old, new, **rest)

        def put_new(self, key: str, content: bytes, **rest: Any) -> bool:
            give(LocalStore(folder), "best", 200, by="eve")
            return super().put_new(key, content, **rest)

    if not first:
        give(LocalStore(folder), "best", 100)
    with pytest.raises(RunConflictError, match="moved by somebody else meanwhile"):
        give(Raced(folder), "best", 100)
    found = read_promotion(LocalStore(folder), "best")
    assert found is not None
    assert found.by == "eve"


class Meanwhile(LocalStore):
    """Calls the next of `happens`, as another process, each time after it has put or swapped the pointer."""

    def __init__(self, folder: Path, *happens: Callable[[], object]) -> None:
        super().__init__(folder)
        self._happens = list(happens)

    def put_new(self, key: str, content: bytes, **rest: Any) -> bool:
        done = super().put_new(key, content, **rest)
        self._happens.pop(0)()
        return done

    def swap(self, key: str, old: bytes, new: bytes, **rest: Any) -> bool:
        done = super().swap(key, old, new, **rest)
        if self._happens:
            self._happens.pop(0)()
        return done


@pytest.fixture
def race(store: Store, make_run: Any, folder: Path) -> Callable[..., str]:
    """Promotes step 200 to `best`, which is of step `had` before, during `happens`; returns the refusal."""
    sync_run(store, make_run(steps=(100, 200, 300)), 1)

    def run(*happens: Callable[[], object], had: int | None) -> str:
        if had:
            give(store, "best", had)
        with pytest.raises((RunConflictError, ServiceError)) as refused:
            give(Meanwhile(folder, *happens), "best", 200)
        return str(refused.value)

    return run


def remove(store: Store, **rules: Any) -> None:
    """Prune as another process that read the names before this promotion."""
    with (
        patch("trainyard.artifacts.retention.pruning_plan.names_by_digest", lambda _: {}),
        patch("trainyard.artifacts.retention.pruning.names_by_digest", lambda _: {}),
    ):
        for plan in plan_pruning(store, [1], RetentionRules(**rules)):
            prune(store, plan, by="eve")


GONE = "run-1/checkpoint-200/ was removed by retention, or stored again, while it was promoted: "


@pytest.mark.parametrize("had", [None, 300])
def test_a_checkpoint_that_is_removed_while_it_is_promoted_does_not_keep_the_name(
    race: Callable[..., str], store: Store, had: int | None
) -> None:
    message = race(lambda: remove(store, keep_every=100_000), had=had)
    assert message == f"{GONE}best means what it meant before. Promote another one."
    found = read_promotion(store, "best")
    assert (found and (found.step, found.by, found.previous)) == ((300, "ada", {}) if had else None)


def test_its_own_manifest_that_is_gone_is_enough(race: Callable[..., str], folder: Path) -> None:
    assert GONE in race((folder / "run-1/checkpoint-200/manifest.json").unlink, had=300)


def test_a_name_that_is_moved_meanwhile_stays_where_it_is(race: Callable[..., str], store: Store) -> None:
    def move() -> None:
        remove(store, keep_every=100_000)
        give(store, "best", 300, by="eve")

    race(move, had=100)
    found = read_promotion(store, "best")
    assert found is not None
    assert (found.step, found.by) == (300, "eve")
