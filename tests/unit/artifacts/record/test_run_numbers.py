"""Run numbers: each belongs to one run, which claims it before anything else."""

import logging
from collections.abc import Mapping
from pathlib import Path

import pytest

from trainyard.artifacts.record.run_numbers import (
    claim_number,
    next_free_number,
    number_of_run,
    parse_run_number,
)
from trainyard.artifacts.store.object_store import Store
from trainyard.errors import ConfigError, RunConflictError
from trainyard.gateways.local_store.folder import LocalStore


def test_numbers_start_at_one_and_go_on(store: Store) -> None:
    assert [claim_number(store, f"run-{name}", None) for name in "abc"] == [1, 2, 3]
    assert next_free_number(store) == 4


def test_the_same_run_comes_back_to_its_number(store: Store) -> None:
    claim_number(store, "a", None)
    claim_number(store, "b", None)
    assert claim_number(store, "a", None) == 1
    assert claim_number(store, "a", 1) == 1
    assert number_of_run(store, "b") == 2
    assert number_of_run(store, "c") is None


def test_a_free_number_follows_the_highest_and_fills_no_gap(store: Store) -> None:
    claim_number(store, "a", 41)
    assert claim_number(store, "b", None) == 42


def test_a_number_of_another_run_is_refused_with_a_free_one(store: Store) -> None:
    claim_number(store, "a", 5)
    with pytest.raises(
        RunConflictError, match=r"number 5 .* belongs to run a; this is run b(.|\n)*--run-number 6"
    ):
        claim_number(store, "b", 5)


def test_a_claim_that_cannot_be_read_belongs_to_nobody_we_know(store: Store, folder: Path) -> None:
    claim_number(store, "a", 1)
    (folder / "run-1/identity.json").write_text("{")
    with pytest.raises(RunConflictError, match="unreadable record"):
        claim_number(store, "a", 1)


class ForgetfulStore(LocalStore):
    """Ignores conditions, as `rclone serve s3` does."""

    def put_new(self, key: str, content: bytes, *, metadata: Mapping[str, str]) -> bool:
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return True


def test_a_store_that_ignores_conditions_is_told_of(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = ForgetfulStore(folder)
    with caplog.at_level(logging.WARNING):
        assert claim_number(store, "a", None) == 1
    assert "ignores conditional writes" in caplog.text
    with pytest.raises(RunConflictError):
        claim_number(store, "b", 1)


class RacedStore(LocalStore):
    """Another run takes each number just before we do."""

    def put_new(self, key: str, content: bytes, *, metadata: Mapping[str, str]) -> bool:
        super().put_new(key, b'{"run_id": "faster"}', metadata={})
        return super().put_new(key, content, metadata=metadata)


def test_a_race_that_is_lost_every_time_ends(folder: Path) -> None:
    with pytest.raises(RunConflictError, match="other runs took 20 in a row"):
        claim_number(RacedStore(folder), "slow", None)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "one", "", "١"])
def test_what_is_no_run_number_is_a_usage_error(text: str) -> None:
    with pytest.raises(ConfigError, match="neither a whole number above 0 nor auto"):
        parse_run_number(text)


def test_auto_is_no_number() -> None:
    assert parse_run_number("auto") is None
    assert parse_run_number("812") == 812


@pytest.mark.parametrize("text", ["9" * 5000, "0", "-1", "1.0", "x" * 300, "", "١"])
def test_what_is_no_number_is_refused_briefly(text: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_run_number(text)
    assert len(str(error.value)) < 200
