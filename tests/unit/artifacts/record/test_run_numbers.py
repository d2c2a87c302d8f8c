"""Run numbers and ids: each belongs to one run, which claims it before anything else."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from trainyard.artifacts.record.run_numbers import (
    begin_attempt,
    claim_run,
    newest_attempt,
    number_of_run,
    parse_run_number,
    stored_claim,
)
from trainyard.artifacts.store.object_store import Store
from trainyard.errors import (
    ConfigError,
    ExitCode,
    NumberTakenError,
    RunConflictError,
    UnsupportedOperationError,
    VerificationError,
)
from trainyard.gateways.local_store.folder import LocalStore

KEY, OTHER_KEY = "5" * 32, "a" * 32


def claim(store: Store, run_id: str, wanted: int | None = None, *, key: str = KEY, attempt: int = 1) -> int:
    return claim_run(store, run_id=run_id, key=key, wanted=wanted, attempt=attempt).number


def test_what_belongs_to_another_run_is_refused_with_whose_it_is_and_what_to_do(store: Store) -> None:
    claim(store, "a", 5)
    before = {found.key for found in store.list_objects("")}
    refused = {
        ("b", KEY, 5): (
            "number 5",
            "belongs to run a; this is run b",
            "--run-number 6",
            "auto",
        ),
        ("a", OTHER_KEY, 5): (
            "The id a",
            "another run",
            "stored as run 5",
            "TRAINYARD_RUN_ID",
            "--resume",
        ),
        ("a", OTHER_KEY, 6): ("The id a", "another run", "run 5"),
        ("a", OTHER_KEY, None): ("The id a", "another run", "run 5"),
        ("a", "", None): ("The id a", "another run", "run 5"),
    }
    for (run_id, key, wanted), words in refused.items():
        with pytest.raises(NumberTakenError) as error:
            claim(store, run_id, wanted, key=key)
        message = str(error.value)
        assert [word for word in (*words, store.url) if word not in message] == [], message
        assert error.value.exit_code == ExitCode.USAGE
    assert {found.key for found in store.list_objects("")} == before


def test_a_damaged_record_belongs_to_nobody_we_know(store: Store, folder: Path) -> None:
    claim(store, "a", 1)
    record, by_id = folder / "run-1/identity.json", folder / "ids/a.json"
    (whole, whole_id), damages = (record.read_bytes(), by_id.read_bytes()), (b"{", b"{}", b'{"run_id": 3}')
    for damage in damages:
        by_id.write_bytes(damage)
        with pytest.raises(VerificationError, match=r"ids/a\.json"):
            claim(store, "a", None)
        by_id.write_bytes(whole_id)
        record.write_bytes(damage)
        with pytest.raises(VerificationError, match=r"run-1/identity\.json.*damaged.*--run-number auto"):
            claim(store, "a", 1)
        record.write_bytes(whole)
    by_id.write_bytes(whole_id.replace(b'"a"', b'"b"'))
    with pytest.raises(VerificationError, match="is the record of run b"):
        stored_claim(store, "a")


@pytest.mark.parametrize("run_id", ["..", "a/../../b", "grün", "a b%2F", "a" * 128])
def test_an_id_is_the_name_of_one_object_whatever_it_contains(
    store: Store, folder: Path, run_id: str
) -> None:
    assert claim(store, run_id) == claim(store, run_id) == 1
    assert len(list((folder / "ids").iterdir())) == 1


def test_an_attempt_begins_once_and_ends_those_before_it(store: Store) -> None:
    first = claim_run(store, run_id="a", key=KEY, wanted=None)
    assert (first.attempt, newest_attempt(store, 1)) == (1, 1)
    begin_attempt(store, first, 2)
    assert newest_attempt(store, 1) == 2
    with pytest.raises(RunConflictError, match="attempt 2 has started"):
        begin_attempt(store, first, 2)
    assert claim(store, "a", attempt=2) == 1
    with pytest.raises(RunConflictError, match=r"attempt 2 has started .* this is attempt 1\. Nothing more"):
        claim(store, "a", attempt=1)
    begin_attempt(store, first, 10)
    assert newest_attempt(store, 1) == 10


class ForgetfulStore(LocalStore):
    """Ignores conditions, as `rclone serve s3` does."""

    def put_new(self, key: str, content: bytes, *, metadata: Mapping[str, str]) -> bool:
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return True


def test_a_store_that_ignores_conditions_is_refused_at_the_claim(folder: Path) -> None:
    with pytest.raises(UnsupportedOperationError, match="is not conditional: it ignores If-None-Match"):
        claim(ForgetfulStore(folder), "a")


class LostAnswers(LocalStore):
    """Stores what it is given, and responds as to the second of two equal requests."""

    def put_new(self, key: str, content: bytes, *, metadata: Mapping[str, str]) -> bool:
        super().put_new(key, content, metadata=metadata)
        return False


def test_a_claim_whose_response_was_lost_holds(folder: Path) -> None:
    store = LostAnswers(folder)
    first = claim_run(store, run_id="a", key=KEY, wanted=None)
    begin_attempt(store, first, 2)
    assert (first.number, newest_attempt(store, 1)) == (1, 2)


class RacedStore(LocalStore):
    """Another run takes each number just before we do."""

    def put_new(self, key: str, content: bytes, *, metadata: Mapping[str, str]) -> bool:
        if key.startswith("run-"):
            super().put_new(key, b'{"run_id": "faster"}', metadata={})
        return super().put_new(key, content, metadata=metadata)


def test_a_race_that_is_lost_every_time_ends(folder: Path) -> None:
    with pytest.raises(RunConflictError, match="other runs took 200 in a row"):
        claim(RacedStore(folder), "slow")


class InterruptedStore(LocalStore):
    """Stops the process before the claim that is the next one to be put, as a kill does."""

    def put_new(self, key: str, content: bytes, *, metadata: Mapping[str, str]) -> bool:
        if key.startswith("run-"):
            raise KeyboardInterrupt
        return super().put_new(key, content, metadata=metadata)


def test_a_claim_that_was_interrupted_goes_on_with_its_number_or_the_next(folder: Path) -> None:
    store = LocalStore(folder)
    for run_id in ("a", "b"):
        with pytest.raises(KeyboardInterrupt):
            claim(InterruptedStore(folder), run_id)
        assert (stored_claim(store, run_id), number_of_run(store, run_id)) == (None, None)
    assert claim(store, "a") == 1
    assert claim(store, "b") == 2  # its id named 1, too
    assert (number_of_run(store, "a"), number_of_run(store, "b")) == (1, 2)
    with pytest.raises(NumberTakenError, match="The id b"):
        claim(store, "b", key=OTHER_KEY)


class SameRunElsewhere(LocalStore):
    """Another process of the run claims its id just before this one does."""

    def put_new(self, key: str, content: bytes, *, metadata: Mapping[str, str]) -> bool:
        if key.startswith("ids/"):
            claim(LocalStore(self._root), "a", 7)
        return super().put_new(key, content, metadata=metadata)


def test_two_processes_of_one_run_have_one_number(folder: Path) -> None:
    assert claim(SameRunElsewhere(folder), "a") == 7


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "1.0", "one", "", "١", "9" * 5000, "x" * 300])
def test_what_is_no_run_number_is_a_usage_error_and_said_briefly(text: str) -> None:
    with pytest.raises(ConfigError, match="neither a whole number above 0 nor auto") as error:
        parse_run_number(text)
    assert len(str(error.value)) < 200


def test_auto_is_no_number() -> None:
    assert parse_run_number("auto") is None
    assert parse_run_number("812") == 812
