"""Claim run numbers and run ids: conditional puts before anything else is stored decide which run owns them.

    run-<N>/identity.json    {run_id, key, claimed}: the number belongs to the run with this key
    ids/<run id>.json        {run_id, key, run_number}: so does the id, which is found with one read
    run-<N>/attempt-<K>.json {key, attempt, token}: start K of the run, which ends all earlier ones

A run is known by its random key (`run.json`), not by its id, which somebody may use twice. The same run may
claim its number any number of times. A record of a run without a key, as earlier versions wrote it, has the
empty key.
"""

import hashlib
import json
import logging
import secrets
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainyard.artifacts.store.layout import (
    attempt_key,
    attempt_of,
    attempt_prefix,
    id_key,
    identity_key,
    manifest_key,
    run_number_of,
)
from trainyard.artifacts.store.object_store import Store
from trainyard.errors import (
    AttemptEndedError,
    ConfigError,
    DamagedFileError,
    NumberTakenError,
    RunConflictError,
    UnsupportedOperationError,
    VerificationError,
)
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import read_run
from trainyard.run.suggested_commands import trainyard_command
from trainyard.run.untrusted_files import parse_json_object

_MOST_DIGITS = 15
# A store with more runs shows its newest.
_MOST_LISTED = 10
# Give up after other runs have taken the next free number this many times.
_RACES = 200
_DAMAGED = "Put the object back from a copy; a new run takes a number that is free: --run-number auto."
_logger = logging.getLogger(__name__)


def parse_run_number(text: str) -> int | None:
    """Parse a run number from a command line, None for `auto`. Raises ConfigError for anything else."""
    if text == "auto":
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > _MOST_DIGITS or int(text) < 1:
        raise ConfigError(f"--run-number {text[:80]}: neither a whole number above 0 nor auto")
    return int(text)


def find_run_number(store: Store, text: str | None, run_dir: Path | None) -> int:
    """Return the run number of a command line: `text`, else the number of the run in `run_dir`.

    Raises ConfigError when neither is given, VerificationError when the store does not hold that run.
    """
    number = parse_run_number(text or "auto")
    if number is None and run_dir is None:
        raise ConfigError("--run-number is missing. Give a number, or --run-dir")
    if number is None:
        run_id = str(read_run(RunDirectory(run_dir or Path()).run_file)["run_id"])
        number = number_of_run(store, run_id)
        if number is None:
            raise VerificationError(f"{store.url} holds no run {run_id}; sync it first")
    return number


@dataclass(frozen=True)
class Claim:
    """A run's number in a store, and the run that owns it."""

    number: int
    run_id: str
    key: str
    """The run's random key, 32 hex digits; empty for a run of an earlier version."""
    attempt: int = 1
    """Which start of the run this is; a claim that was read from a store says 1 (see `newest_attempt`)."""

    def is_of(self, run_id: str, key: str) -> bool:
        """Return whether the claim is of this very run."""
        return (self.run_id, self.key) == (run_id, key)


def claim_of_run(store: Store, run: Mapping[str, Any], wanted: int | None) -> Claim:
    """Claim a number as `claim_run` does, for the run of a `run.json`."""
    of = claim_in(run, wanted or 0)
    return claim_run(store, run_id=of.run_id, key=of.key, wanted=wanted, attempt=of.attempt)


def claim_in(run: Mapping[str, Any], number: int) -> Claim:
    """Return the claim that the run of a `run.json` has to the number. Nothing is read or written."""
    attempt = run.get("attempt")
    known = attempt if isinstance(attempt, int) else 1
    return Claim(number, str(run["run_id"]), str(run.get("key") or ""), known)


def claim_run(store: Store, *, run_id: str, key: str, wanted: int | None, attempt: int = 1) -> Claim:
    """Claim `wanted` (None: the number that the run has, else the next free one) and the id for one run.

    It costs a few small requests, so that every sync can ask whether the run is still its own. Raises
    NumberTakenError, with nothing stored, when the number or the id belongs to another run, AttemptEndedError
    when a later attempt of the run has started (both are RunConflictError), and UnsupportedOperationError
    when the store ignores conditional writes.
    """
    mine = Claim(wanted or 0, run_id, key, attempt)
    had = _claim_of_id(store, mine)
    if had is not None and wanted is None:
        mine = replace(mine, number=had.number)
    owner = stored_claim_of_number(store, mine.number) if mine.number else None
    for _ in range(_RACES):
        if owner is not None and owner.is_of(run_id, key):
            if had is None:
                _point_id(store, None, mine)
            require_newest(store, mine)
            return mine
        if owner is not None and wanted is not None:
            raise NumberTakenError(_taken_number(store, owner, mine))
        if owner is not None or not mine.number:
            mine = replace(mine, number=max(next_free_number(store), mine.number + 1))
        # The id first: a claim that is interrupted in between continues with the same number.
        had = _point_id(store, had, mine)
        if had.number != mine.number and wanted is None:
            mine = replace(mine, number=had.number)  # of another process of this run
        owner = _put_claim(store, mine)
    raise RunConflictError(
        f"{store.url}: no number could be claimed, other runs took {_RACES} in a row. Try again"
    )


def require_newest(store: Store, claim: Claim) -> None:
    """Raise AttemptEndedError when a later attempt of the run has started than the one of the claim."""
    if (newest := newest_attempt(store, claim.number)) > claim.attempt:
        raise AttemptEndedError(
            f"Run {claim.run_id} is being continued elsewhere: its attempt {newest} has started in "
            f"{store.url} (run {claim.number}), and this is attempt {claim.attempt}. Nothing more was stored "
            "from here."
        )


def stored_claim(store: Store, run_id: str) -> Claim | None:
    """Return the claim of the run with this id, or None. Raises VerificationError if a record is damaged."""
    had = _read_id(store, run_id)
    owner = None if had is None else stored_claim_of_number(store, had.number)
    # Between the two, a claim may have been interrupted.
    return owner if owner is not None and had is not None and owner.is_of(run_id, had.key) else None


def has_id(store: Store, run_id: str, key: str) -> bool:
    """Return whether the record of the id is the one that the run with this key wrote, to the byte.

    Raises VerificationError if it is damaged.
    """
    claim = stored_claim(store, run_id)
    return claim is not None and claim.key == key and store.read_object(id_key(run_id)) == _id_record(claim)


def stored_claim_of_number(store: Store, number: int) -> Claim | None:
    """Return whose number it is; None if it is free. Raises VerificationError if its record is damaged."""
    content = store.read_object(identity_key(number))
    return None if content is None else _parse(content, identity_key(number), number)


def begin_attempt(store: Store, claim: Claim, attempt: int) -> None:
    """Begin start `attempt` (2 or above) of the claimed run; all earlier starts then store nothing more.

    Raises RunConflictError when another start has this number.
    """
    key = attempt_key(claim.number, attempt)
    value = {"key": claim.key, "attempt": attempt, "started": time.time(), "token": secrets.token_hex(16)}
    content = json.dumps(value).encode()
    # A put whose response was lost is refused when it is sent again, so the object is read back.
    if not store.put_new(key, content, metadata={}) and store.read_object(key) != content:
        raise RunConflictError(
            f"Run {claim.run_id} in {store.url} is being continued elsewhere: its attempt {attempt} has "
            "started. Nothing was started here."
        )


def newest_attempt(store: Store, number: int) -> int:
    """Return the highest attempt of the run that has started, from 1; one listing."""
    found = store.list_objects(attempt_prefix(number))
    return max((attempt_of(each.key) for each in found), default=1) or 1


def owner_of(store: Store, number: int) -> str | None:
    """Return the run that owns the number; None if it is free, empty if its record cannot be read."""
    try:
        claim = stored_claim_of_number(store, number)
    except VerificationError:
        return ""
    return None if claim is None else claim.run_id


def number_of_run(store: Store, run_id: str) -> int | None:
    """Return the number of the run `run_id`, or None. Raises VerificationError if its record is damaged."""
    claim = stored_claim(store, run_id)
    return None if claim is None else claim.number


def key_of_digest(text: str) -> str:
    """Return the key of something that is no run, such as a single checkpoint: the same for the same text."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def runs_in_question(store: Store, text: str | None) -> list[int]:
    """Return the run numbers that a command line names: one, or (None) all used ones, in order.

    Raises ConfigError for an invalid number, VerificationError when the store has nothing under it.
    """
    used = sorted(used_numbers(store))
    if text is None:
        return used
    number = parse_run_number(text)
    if number is None:
        raise ConfigError("--run-number auto needs a run; give its number")
    if number not in used:
        raise VerificationError(missing_run(store, number, used))
    return [number]


def missing_run(store: Store, number: int, used: Sequence[int]) -> str:
    """Return the message for a number without a run: the numbers in use, and the command that lists them."""
    address = shlex.quote(store.url)
    if not used:
        return (
            f"Run {number} is not in {store.url}, which holds no run. Name the store of the run, or "
            f"store it: {trainyard_command('store sync')} --run-dir RUN --store {address} --once"
        )
    ordered = sorted(used)
    first = "… " if len(ordered) > _MOST_LISTED else ""
    *others, last = [str(each) for each in ordered[-_MOST_LISTED:]]
    names = f"{', '.join(others)} and {last}" if others else last
    return (
        f"Run {number} is not in {store.url}; it has {first}{names}. "
        f"{trainyard_command('store ls')} --store {address} lists them."
    )


def next_free_number(store: Store) -> int:
    """Return the highest used number plus one."""
    return max(used_numbers(store), default=0) + 1


def used_numbers(store: Store) -> list[int]:
    """Return every run number that has objects."""
    return [number for folder in store.folders() if (number := run_number_of(folder)) is not None]


def _read_id(store: Store, run_id: str) -> Claim | None:
    content = store.read_object(id_key(run_id))
    claim = None if content is None else _parse(content, id_key(run_id))
    if claim is not None and claim.run_id != run_id:
        raise VerificationError(f"{id_key(run_id)}: is the record of run {claim.run_id[:200]}")
    return claim


def _claim_of_id(store: Store, mine: Claim) -> Claim | None:
    """Return what the store has under the id. Raises NumberTakenError when it belongs to another run."""
    had = _read_id(store, mine.run_id)
    if had is not None and had.key != mine.key:
        raise NumberTakenError(_taken_id(store, had))
    return had


def _point_id(store: Store, had: Claim | None, mine: Claim) -> Claim:
    """Let the id name the number, unless another process of the run was first; return what it names."""
    name, content = id_key(mine.run_id), _id_record(mine)
    if had is None:
        store.put_new(name, content, metadata={"run-id": mine.run_id})
    elif had.number != mine.number:
        store.swap(name, _id_record(had), content, metadata={"run-id": mine.run_id})
    return _claim_of_id(store, mine) or mine


def _id_record(claim: Claim) -> bytes:
    return json.dumps({"run_id": claim.run_id, "key": claim.key, "run_number": claim.number}).encode()


def _parse(content: bytes, name: str, number: int | None = None) -> Claim:
    """Read a claim. `number` is in the name of the record or, if None, in its content."""
    try:
        value = parse_json_object(content, name)
    except DamagedFileError as error:
        raise VerificationError(f"{error}. {_DAMAGED}") from None
    run_id, key = value.get("run_id"), value.get("key", "")
    number = value.get("run_number") if number is None else number
    if not isinstance(run_id, str) or not isinstance(key, str) or type(number) is not int or number < 1:
        raise VerificationError(f"{name}: damaged, so it is not known whose it is. {_DAMAGED}")
    return Claim(number, run_id, key)


def _put_claim(store: Store, mine: Claim) -> Claim | None:
    """Claim the number if it is free, and return whose it is then."""
    name = identity_key(mine.number)
    content = json.dumps({"run_id": mine.run_id, "key": mine.key, "claimed": time.time()}).encode()
    metadata = {"run-id": mine.run_id, "run-number": str(mine.number)}
    # It is put once more, under its own condition: some stores accept it and ignore the condition.
    if store.put_new(name, content, metadata=metadata) and store.accepts_again(name, content):
        raise UnsupportedOperationError(not_conditional(store))
    # Reading it back also decides when the response to our own put was lost.
    return stored_claim_of_number(store, mine.number)


def not_conditional(store: Store) -> str:
    """Return why nothing can be proven in a store that ignores conditions of writes, and what to do."""
    return (
        f"{store.url} is not conditional: it ignores If-None-Match, so one run can overwrite what another "
        "stored, and nothing in it can be proven. Use a store with conditional writes: S3 has them, and so "
        "have current versions of MinIO, Ceph and SeaweedFS."
    )


def _taken_number(store: Store, owner: Claim, mine: Claim) -> str:
    this = "another run with this id" if owner.run_id == mine.run_id else f"run {mine.run_id}"
    return (
        f"Run number {mine.number} in {store.url} belongs to run {owner.run_id}; this is {this}. "
        "Nothing was stored.\n"
        f"Take a free one: --run-number {next_free_number(store)}, or --run-number auto."
    )


def _taken_id(store: Store, had: Claim) -> str:
    return (
        f"The id {had.run_id} in {store.url} belongs to another run, stored as run {had.number}. "
        "Nothing was stored.\n"
        "Give this run another id (TRAINYARD_RUN_ID; without it, each has its own), "
        "or continue that one with all its inputs: --resume auto. To begin a new one from its newest "
        f"checkpoint: --resume {store.url}/{manifest_key(had.number)}"
    )
