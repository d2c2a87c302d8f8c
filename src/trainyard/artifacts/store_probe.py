"""Check whether a store can be used now, by the calls with which a run is stored later.

    list ─> put if absent, read ─> send a small file, send a file in two parts, read ─> abort ─> remove
            put and join once more, which a store with conditional writes refuses

The objects have fixed keys in each store (`layout.READINESS`), outside every run, so that checks do not pile
up when the role may not delete. All checks write the same bytes, so that simultaneous ones disturb each other
only by removing an object; anything that is not from a check is not changed. The run number is looked up and
not claimed: the first sync claims it.
"""

import contextlib
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from trainyard.artifacts.record.run_numbers import (
    next_free_number,
    not_conditional,
    number_of_run,
    owner_of,
)
from trainyard.artifacts.store.layout import READINESS, READINESS_PARTS, READINESS_SMALL
from trainyard.artifacts.store.object_store import Store, StoredObject
from trainyard.errors import (
    PermissionRefusedError,
    ServiceError,
    TrainyardError,
    UnsupportedOperationError,
    VerificationError,
)

# S3's least size of a part that is not the last; a store to be checked is opened with it.
PART_BYTES = 5 << 20
# Attempts to write an object and read it back, because another check may remove it in between.
_TRIES = 8
_LONGEST_PAUSE = 0.3
_REST_BYTES = 1 << 10
_SIZES = {READINESS_SMALL: _REST_BYTES, READINESS_PARTS: PART_BYTES + _REST_BYTES}
# Size of the object that `can_abort` leaves where it may not abort its upload.
_JOINED_BYTES = 1
_LINE = b'{"written_by": "trainyard doctor"}\n'


@dataclass
class Probe:
    """The calls of a check, made one after another, and what they showed."""

    problems: list[str] = field(default_factory=list)
    """Why the store cannot be used, in words for the person who can fix it; empty if it can."""
    notes: list[str] = field(default_factory=list)
    """Remarks that are not problems."""
    answers: bool = True
    """Whether the store answers, even if it does not allow everything; else no further call is made."""
    is_able: bool = True
    """False if the store does not support a call that storing a run needs."""

    def run(self, call: Callable[[], object]) -> bool:
        """Return whether the call succeeded; record the reason if not."""
        if not self.answers:
            return False
        try:
            call()
        except TrainyardError as error:
            if str(error) not in self.problems:
                self.problems.append(str(error))
            self.answers = isinstance(error, PermissionRefusedError | UnsupportedOperationError)
            self.is_able = self.is_able and not isinstance(error, UnsupportedOperationError)
            return False
        return True


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
    probe, standing = Probe(), StoreAnswer()
    try:
        store = open_store()
        probe = probe_store(store, writes=writes, for_files=for_files)
        if probe.answers:
            standing = standing_of(store, run_id, wanted, may_be_stored=may_be_stored)
    except TrainyardError as error:
        probe.problems.append(str(error))
    problems = tuple(dict.fromkeys(probe.problems))
    return replace(standing, problems=problems, notes=tuple(probe.notes), is_able=probe.is_able)


def probe_store(store: Store, *, writes: bool, for_files: Callable[[], Store] | None = None) -> Probe:
    """Make each call that storing a run needs, to report at once all that are refused.

    `for_files` opens the store for calls that send a file.
    """
    probe, made = Probe(), list[str]()
    probe.run(lambda: next(iter(store.folders()), None))
    if not writes or not probe.run(lambda: _put_and_read(store, made)):
        probe.run(lambda: store.read_object(READINESS))
    elif probe.run(lambda: _send_files(for_files() if for_files else store, made)) and not _can_abort(store):
        probe.notes.append(
            "an upload in parts cannot be aborted here: after one that failed, its parts stay until the "
            "bucket's lifecycle rule removes them"
        )
    if remaining := _delete(store, made):
        probe.notes.append(
            f"{', '.join(remaining)}: stays in the store, at most 5 MiB, and the next check replaces it "
            "(this role may not delete, which is how it should be set up)"
        )
    return probe


def remove_probe(store: Store) -> None:
    """Abort and remove what an interrupted check has written, as far as that is permitted."""
    store.abort_uploads()
    with contextlib.suppress(ServiceError, VerificationError):
        _delete(store, [READINESS] if store.read_object(READINESS) == _LINE else [])
        for key in _SIZES:
            _require_ours(store, key)
            _delete(store, [key])


def _delete(store: Store, keys: Sequence[str]) -> list[str]:
    """Remove objects of a check; return those that could not be removed."""
    remaining = list(keys)
    for key in keys:
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


def _put_and_read(store: Store, made: list[str]) -> None:
    """Put a small object and read it back; add its key to `made` when it is there."""

    def write_and_read() -> bool:
        if not store.put_new(READINESS, _LINE, metadata={}):
            there = store.read_object(READINESS)
            if there not in (None, _LINE):
                raise _not_ours(store, READINESS)
            if there is None or not store.swap(READINESS, _LINE, _LINE, metadata={}):
                return False
        if READINESS not in made:
            made.append(READINESS)
        return store.read_object(READINESS) == _LINE

    _try_repeatedly(store, READINESS, write_and_read)
    _require_refusal(store, lambda: not store.put_new(READINESS, _LINE, metadata={}))


def _require_refusal(store: Store, is_refused: Callable[[], bool]) -> None:
    """Raise UnsupportedOperationError when no attempt to take a name that is taken is refused.

    It is tried repeatedly, because another check may remove the object in between.
    """
    for _ in range(_TRIES):
        if is_refused():
            return
        time.sleep(random.uniform(0, _LONGEST_PAUSE))  # noqa: S311 - another check is at work
    raise UnsupportedOperationError(not_conditional(store))


def _send_files(store: Store, made: list[str]) -> None:
    """Send a file in one request and one in two parts, if the store has parts, and read from both.

    Add their keys to `made` before they are sent.
    """
    with tempfile.TemporaryDirectory(prefix="trainyard-readiness-") as folder:
        for key, size in _SIZES.items():
            if key == READINESS_PARTS and store.part_bytes is None:
                continue
            path = Path(folder, key)
            path.write_bytes((_LINE * (size // len(_LINE) + 1))[:size])
            _require_ours(store, key)
            made.append(key)
            _try_repeatedly(store, key, lambda path=path: _send_and_read(store, path))  # type: ignore[misc]
            if key == READINESS_PARTS:
                _require_refusal(store, lambda: store.refuses_to_join(READINESS_PARTS))


def _send_and_read(store: Store, path: Path) -> bool:
    """Send the file; return whether the store describes it and has its end, from the first part on."""
    content, key = path.read_bytes(), path.name
    there = _require_ours(store, key)
    replaces = there.identity if there is not None and there.size != len(content) else ""
    upload = store.stage(path, key, metadata={"written-by": "trainyard doctor"}, replaces=replaces)
    try:
        upload.commit()
    except TrainyardError:
        upload.abort()
        raise
    described = store.describe(key)
    start = max(0, len(content) - 2 * _REST_BYTES)
    is_described = described is not None and described.size == len(content)
    return is_described and b"".join(store.read_chunks(key, start=start)) == content[start:]


def _try_repeatedly(store: Store, key: str, write_and_read: Callable[[], bool]) -> None:
    """Raise VerificationError when no attempt reads back what it has written.

    One attempt may be refused, because another check has joined its upload of one byte.
    """
    refusal = VerificationError(
        f"{key} was written into {store.url}, and when it is read back it is missing or has other bytes. "
        "The store loses or changes data; no run can be proven there."
    )
    for _ in range(_TRIES):
        try:
            if write_and_read():
                return
        except FileNotFoundError:
            pass
        except VerificationError as error:
            refusal = error
        time.sleep(random.uniform(0, _LONGEST_PAUSE))  # noqa: S311 - another check is at work
    raise refusal


def _require_ours(store: Store, key: str) -> StoredObject | None:
    """Return the object that an earlier check left. Raises VerificationError for one of another origin."""
    there = store.describe(key)
    if there is not None and there.size not in (_SIZES[key], _JOINED_BYTES):
        raise _not_ours(store, key)
    return there


def _not_ours(store: Store, key: str) -> VerificationError:
    return VerificationError(
        f"{key} in {store.url} was not written by a check, and was not changed. "
        "Move it away: this name is reserved for checks."
    )
