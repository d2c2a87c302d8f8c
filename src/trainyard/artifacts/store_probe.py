"""Check whether a store can be used now: list it, then write, read back and remove a small object.

The object has one key in each store (`layout.READINESS`), outside every run, so that checks do not pile up
when the role may not delete. What another check left there is replaced; anything else is left alone. The
run number is looked up and not claimed: the first sync claims it.
"""

import json
import random
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from trainyard.artifacts.record.run_numbers import next_free_number, number_of_run, owner_of
from trainyard.artifacts.store.layout import READINESS
from trainyard.artifacts.store.object_store import Store
from trainyard.errors import PermissionRefusedError, ServiceError, TrainyardError, VerificationError

_BY = "scripts/check_readiness.py"
_TRIES = 12
"""Attempts, because simultaneous checks of one store replace and remove each other's object."""
_LONGEST_PAUSE = 0.3


@dataclass(frozen=True)
class Probe:
    """The result of the check of a store."""

    problems: tuple[str, ...]
    """Why the store cannot be used, in words for the person who can fix it; empty if it can."""
    notes: tuple[str, ...]
    """Remarks that are not problems."""
    answers: bool = True
    """Whether the store answers, even if it does not allow everything."""


@dataclass(frozen=True)
class StoreAnswer:
    """Whether a run can be stored, and under which number; nothing is known if the store does not answer."""

    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    number: int | None = None
    owner: str | None = None
    """The run that owns the number; None if it is free, empty if its record cannot be read."""
    free: int | None = None
    """The next free number, if this one belongs to another run."""


def ask_store(
    opened: Callable[[], Store], run_id: str, wanted: int | None, *, may_be_stored: bool, writes: bool
) -> StoreAnswer:
    """Open the store, test it and look up the run number, as `standing_of` does.

    With `writes`, a small object is written to test the permissions. Failures are problems in the answer.
    """
    answer = StoreAnswer()
    try:
        store = opened()
        probe = probe_store(store, secrets.token_hex(8) if writes else None)
        answer = StoreAnswer(probe.problems, probe.notes)
        if probe.answers:
            standing = standing_of(store, run_id, wanted, may_be_stored=may_be_stored)
            answer = replace(standing, problems=probe.problems, notes=probe.notes)
    except TrainyardError as error:
        answer = replace(answer, problems=tuple(dict.fromkeys((*answer.problems, str(error)))))
    return answer


def probe_store(store: Store, token: str | None) -> Probe:
    """Test separately each permission that storing a run needs, to report all missing ones at once.

    `token` distinguishes this check's object from those of simultaneous checks; with None nothing is written.
    """
    asked = _Asked()
    asked.ask(lambda: next(iter(store.folders()), None))
    written = token is not None and asked.ask(lambda: _write_and_read(store, token))
    if not written:
        asked.ask(lambda: store.read_object(READINESS))
    if written:
        try:
            store.delete(READINESS)
        except ServiceError:
            asked.notes.append(
                f"{READINESS} stays in the store: a few bytes, which the next check replaces "
                "(this role may not delete, which is how it should be set up)"
            )
    return Probe(tuple(dict.fromkeys(asked.problems)), tuple(asked.notes), asked.may_go_on)


def standing_of(store: Store, run_id: str, wanted: int | None, *, may_be_stored: bool) -> StoreAnswer:
    """Return the owner of `wanted`; None is the number that the run has, else the next free one.

    `may_be_stored` False means that the run is new, so no claim is read to find its number.
    """
    if wanted is None:
        had = number_of_run(store, run_id) if may_be_stored else None
        return StoreAnswer(number=had or next_free_number(store), owner=run_id if had else None)
    owner = owner_of(store, wanted)
    free = None if owner in (None, run_id) else next_free_number(store)
    return StoreAnswer(number=wanted, owner=owner, free=free)


@dataclass
class _Asked:
    """Asks one question after another, until one fails in a way in which all others would fail too."""

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    may_go_on: bool = True

    def ask(self, question: Callable[[], object]) -> bool:
        """Return whether the question succeeded; record the reason if not."""
        if not self.may_go_on:
            return False
        try:
            question()
        except TrainyardError as error:
            self.problems.append(str(error))
            self.may_go_on = isinstance(error, PermissionRefusedError)
            return False
        return True


def _write_and_read(store: Store, token: str) -> None:
    content = json.dumps({"written_by": _BY, "token": token}).encode()
    found: bytes | None = None
    for _ in range(_TRIES):
        if _put(store, content):
            found = store.read_object(READINESS)
            if found == content:
                return
            if found is not None and not _is_ours(found):
                break
        time.sleep(random.uniform(0, _LONGEST_PAUSE))  # noqa: S311 - another check is at work
    state = "is not there" if found is None else "has other bytes"
    raise VerificationError(
        f"{READINESS} was written into {store.url}, and when it is read back it {state}. "
        "The store loses or changes data; no run can be proven there."
    )


def _put(store: Store, content: bytes) -> bool:
    """Return whether the object is ours now; False when another check was quicker."""
    if store.put_new(READINESS, content, metadata={}):
        return True
    there = store.read_object(READINESS)
    if there is None:
        return False
    if not _is_ours(there):
        raise VerificationError(
            f"{READINESS} in {store.url} was not written by a check, and was left alone. "
            "Move it away: this name is reserved for checks."
        )
    return store.swap(READINESS, there, content, metadata={})


def _is_ours(content: bytes) -> bool:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and value.get("written_by") == _BY
