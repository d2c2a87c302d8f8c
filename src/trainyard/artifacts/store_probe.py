"""Check whether a store can be used now, by the calls with which a run is stored later.

    list ─> put if absent, read ─> send a small file, send a file in two parts, read ─> abort ─> remove

The objects have fixed keys in each store (`layout.READINESS`), outside every run, so that checks do not pile
up when the role may not delete. What another check left there is replaced; anything else is not changed. The
run number is looked up and not claimed: the first sync claims it.
"""

import contextlib
import json
import random
import secrets
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from trainyard.artifacts.record.run_numbers import next_free_number, number_of_run, owner_of
from trainyard.artifacts.store.layout import READINESS, READINESS_PARTS, READINESS_SMALL
from trainyard.artifacts.store.object_store import Store
from trainyard.errors import (
    PermissionRefusedError,
    ServiceError,
    TrainyardError,
    UnsupportedOperationError,
    VerificationError,
)

_BY = "trainyard doctor"
_TRIES = 12
"""Attempts, because simultaneous checks of one store replace and remove each other's object."""
_SENDS = 6
"""Attempts for the larger objects. All checks write the same bytes, so only a removal disturbs others."""
_LONGEST_PAUSE = 0.3
PART_BYTES = 5 << 20
"""S3's least size of a part that is not the last; a store to be checked is opened with it."""
_REST_BYTES = 1 << 10
_SIZES = {READINESS_SMALL: _REST_BYTES, READINESS_PARTS: PART_BYTES + _REST_BYTES}
_JOINED_BYTES = 1
"""Size of the object that `can_abort` leaves where it may not abort its upload."""


@dataclass(frozen=True)
class Probe:
    """The result of the check of a store."""

    problems: tuple[str, ...]
    """Why the store cannot be used, in words for the person who can fix it; empty if it can."""
    notes: tuple[str, ...]
    """Remarks that are not problems."""
    answers: bool = True
    """Whether the store answers, even if it does not allow everything."""
    is_able: bool = True
    """False if the store does not support a call that storing a run needs."""


@dataclass(frozen=True)
class StoreAnswer:
    """Whether a run can be stored, and its number; empty if the store does not answer."""

    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    number: int | None = None
    owner: str | None = None
    """The run that owns the number; None if it is free, empty if its record cannot be read."""
    free: int | None = None
    """The next free number, if this one belongs to another run."""
    is_able: bool = True
    """False if the store does not support a call that storing a run needs."""


def query_store(
    open_store: Callable[[], Store],
    run_id: str,
    wanted: int | None,
    *,
    may_be_stored: bool,
    writes: bool,
    for_files: Callable[[], Store] | None = None,
) -> StoreAnswer:
    """Open the store, test it and look up the run number, as `standing_of` does.

    With `writes`, objects are written as a sync does; `for_files` opens the store for calls that send a file,
    which may need more time than others. Failures are problems in the answer.
    """
    answer = StoreAnswer()
    try:
        store = open_store()
        probe = probe_store(store, secrets.token_hex(8) if writes else None, for_files=for_files)
        answer = StoreAnswer(probe.problems, probe.notes, is_able=probe.is_able)
        if probe.answers:
            standing = standing_of(store, run_id, wanted, may_be_stored=may_be_stored)
            answer = replace(standing, problems=probe.problems, notes=probe.notes, is_able=probe.is_able)
    except TrainyardError as error:
        answer = replace(answer, problems=tuple(dict.fromkeys((*answer.problems, str(error)))))
    return answer


def probe_store(store: Store, token: str | None, *, for_files: Callable[[], Store] | None = None) -> Probe:
    """Make each call that storing a run needs, to report at once all that are refused.

    `token` distinguishes this check's object from those of simultaneous checks; with None nothing is written.
    `for_files` opens the store for calls that send a file.
    """
    attempts = _Attempts()
    attempts.run(lambda: next(iter(store.folders()), None))
    made: list[str] = []
    written = token is not None and attempts.run(lambda: _write_and_read(store, token, made))
    if not written:
        attempts.run(lambda: store.read_object(READINESS))
    elif attempts.run(lambda: _send_as_a_run(for_files() if for_files else store, made)) and not _can_abort(
        store
    ):
        attempts.notes.append(
            "an upload in parts cannot be aborted here: after one that failed, its parts stay until the "
            "bucket's lifecycle rule removes them"
        )
    if remaining := _delete(store, made):
        attempts.notes.append(
            f"{', '.join(remaining)}: stays in the store, at most 5 MiB, and the next check replaces it "
            "(this role may not delete, which is how it should be set up)"
        )
    return Probe(
        tuple(dict.fromkeys(attempts.problems)),
        tuple(attempts.notes),
        attempts.may_continue,
        is_able=attempts.is_able,
    )


def remove_probe(store: Store) -> None:
    """Abort and remove what an interrupted check has written, as far as that is permitted."""
    store.abort_uploads()
    with contextlib.suppress(ServiceError, VerificationError):
        there = store.read_object(READINESS)
        _delete(store, [READINESS] if there is not None and _is_ours(there) else [])
    for key in _SIZES:
        with contextlib.suppress(ServiceError, VerificationError):
            _require_ours(store, key)
            _delete(store, [key])


def _delete(store: Store, keys: Sequence[str]) -> list[str]:
    """Remove objects of a check; return those that could not be removed."""
    remaining = list(dict.fromkeys(keys))
    for key in tuple(remaining):
        with contextlib.suppress(ServiceError, VerificationError):
            store.delete(key)
            remaining.remove(key)
    return remaining


def _can_abort(store: Store) -> bool:
    try:
        return store.part_bytes is None or store.can_abort(READINESS_PARTS)
    except (ServiceError, VerificationError):
        return False


def standing_of(store: Store, run_id: str, wanted: int | None, *, may_be_stored: bool) -> StoreAnswer:
    """Return the number `wanted` (None: the number the run has, else the next free one) and its owner.

    If `may_be_stored` is False, the run is new, so no claim is read to find its number.
    """
    if wanted is None:
        had = number_of_run(store, run_id) if may_be_stored else None
        return StoreAnswer(number=had or next_free_number(store), owner=run_id if had else None)
    owner = owner_of(store, wanted)
    free = None if owner in (None, run_id) else next_free_number(store)
    return StoreAnswer(number=wanted, owner=owner, free=free)


@dataclass
class _Attempts:
    """Runs one call after another, until a failure shows that all further ones would fail too."""

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    may_continue: bool = True
    is_able: bool = True

    def run(self, attempt: Callable[[], object]) -> bool:
        """Return whether the call succeeded; record the reason if not."""
        if not self.may_continue:
            return False
        try:
            attempt()
        except TrainyardError as error:
            self.problems.append(str(error))
            self.may_continue = isinstance(error, PermissionRefusedError | UnsupportedOperationError)
            self.is_able = self.is_able and not isinstance(error, UnsupportedOperationError)
            return False
        return True


def _write_and_read(store: Store, token: str, made: list[str]) -> None:
    """Write a small object and read it back; add its key to `made` as soon as it exists."""
    content = json.dumps({"written_by": _BY, "token": token}).encode()
    found: bytes | None = None
    for _ in range(_TRIES):
        if _put(store, content):
            made.append(READINESS)
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


def _send_as_a_run(store: Store, made: list[str]) -> None:
    """Send a file in one request and one in two parts, if the store has parts, and read from both.

    Add their keys to `made` before they are sent.
    """
    with tempfile.TemporaryDirectory(prefix="trainyard-readiness-") as folder:
        for key, size in _SIZES.items():
            if key == READINESS_PARTS and store.part_bytes is None:
                continue
            path = Path(folder, key)
            path.write_bytes(_content(size))
            _require_ours(store, key)
            made.append(key)
            _send_and_read(store, path)


def _content(size: int) -> bytes:
    """Return the same bytes for every check, so that simultaneous checks do not disturb each other."""
    line = f"written by {_BY}\n".encode()
    return (line * (size // len(line) + 1))[:size]


def _require_ours(store: Store, key: str) -> None:
    there = store.describe(key)
    if there is not None and there.size not in (_SIZES[key], _JOINED_BYTES):
        raise VerificationError(
            f"{key} in {store.url} was not written by a check, and was not changed. "
            "Move it away: this name is reserved for checks."
        )


def _send_and_read(store: Store, path: Path) -> None:
    """Send the file and read it back; try again when another check has removed the object meanwhile."""
    key, end = path.name, _content(_SIZES[path.name])[-2 * _REST_BYTES :]
    for attempt in range(1, _SENDS + 1):
        try:
            upload = store.stage(path, key, metadata={"written-by": _BY})
            try:
                upload.commit()
            except TrainyardError:
                upload.abort()
                raise
            described = store.describe(key)
            if described is None or described.size != _SIZES[key]:
                raise VerificationError(
                    f"{key} was written into {store.url}, and its description (HeadObject) is missing or "
                    "wrong. The store loses or changes data; no run can be proven there."
                )
            start = max(0, _SIZES[key] - len(end))  # in the first part; the second one follows
            if b"".join(store.read_chunks(key, start=start)) == end:
                return
            raise VerificationError(
                f"{key} was written into {store.url}, and has other bytes when it is read back. "
                "The store loses or changes data; no run can be proven there."
            )
        except (VerificationError, FileNotFoundError) as error:
            if attempt == _SENDS:
                raise VerificationError(str(error)) from None
        time.sleep(random.uniform(0, _LONGEST_PAUSE))  # noqa: S311 - another check is at work


def _put(store: Store, content: bytes) -> bool:
    """Put the object; return whether it is ours now. False when another check was quicker."""
    if store.put_new(READINESS, content, metadata={}):
        return True
    there = store.read_object(READINESS)
    if there is None:
        return False
    if not _is_ours(there):
        raise VerificationError(
            f"{READINESS} in {store.url} was not written by a check, and was not changed. "
            "Move it away: this name is reserved for checks."
        )
    return store.swap(READINESS, there, content, metadata={})


def _is_ours(content: bytes) -> bool:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and value.get("written_by") == _BY
