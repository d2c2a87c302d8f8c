"""Check whether a store can be used now, by the calls with which a run is stored later.

    list ─> put if absent, read ─> send a small file, send a file in two parts, read
            put and join once more, which a store with conditional writes refuses

The objects have fixed keys in each store (`layout.READINESS`), outside every run. All checks write the same
bytes and none removes them: simultaneous checks cannot disturb each other, and a further check stores nothing
new, not even an old version in a bucket with versioning. The run number is looked up and not claimed: the
first sync claims it.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from trainyard.artifacts.record.run_numbers import (
    next_free_number,
    not_conditional,
    number_of_run,
    owner_of,
)
from trainyard.artifacts.store.layout import READINESS, READINESS_PARTS, READINESS_SMALL
from trainyard.artifacts.store.object_store import Store
from trainyard.errors import (
    PermissionRefusedError,
    TrainyardError,
    UnsupportedOperationError,
    VerificationError,
)

# S3's least size of a part that is not the last; a store to be checked is opened with it.
PART_BYTES = 5 << 20
_REST_BYTES = 1 << 10
_LINE = b'{"written_by": "trainyard doctor"}\n'


@dataclass
class Probe:
    """The calls of a check, made one after another, and what they showed."""

    problems: list[str] = field(default_factory=list)
    """Why the store cannot be used, in words for the person who can fix it; empty if it can."""
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
    return replace(standing, problems=tuple(dict.fromkeys(probe.problems)), is_able=probe.is_able)


def probe_store(store: Store, *, writes: bool, for_files: Callable[[], Store] | None = None) -> Probe:
    """Make each call that storing a run needs, to report at once all that are refused.

    `for_files` opens the store for calls that send a file.
    """
    probe = Probe()
    probe.run(lambda: next(iter(store.folders()), None))
    if writes and probe.run(lambda: _put_and_read(store)):
        probe.run(lambda: _send_files(for_files() if for_files else store))
    else:
        probe.run(lambda: store.read_object(READINESS))
    return probe


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


def _put_and_read(store: Store) -> None:
    """Put a small object, read it back, and put it once more, which has to be refused."""
    store.put_new(READINESS, _LINE, metadata={})
    if store.read_object(READINESS) != _LINE:
        raise _wrong_bytes(store, READINESS)
    if store.accepts_again(READINESS, _LINE):
        raise UnsupportedOperationError(not_conditional(store))


def _send_files(store: Store) -> None:
    """Send a file in one request and one in two parts, if the store has parts, and read from both."""
    sizes = {READINESS_SMALL: _REST_BYTES}
    if store.part_bytes is not None:
        sizes[READINESS_PARTS] = PART_BYTES + _REST_BYTES
    with tempfile.TemporaryDirectory(prefix="trainyard-readiness-") as folder:
        for key, size in sizes.items():
            path = Path(folder, key)
            path.write_bytes((_LINE * (size // len(_LINE) + 1))[:size])
            _send_and_read(store, path)


def _send_and_read(store: Store, path: Path) -> None:
    """Send the file, and read its end from the store, from the first part on."""
    content, key = path.read_bytes(), path.name
    upload = store.stage(path, key, metadata={"written-by": "trainyard doctor"})
    try:
        upload.commit()
    except TrainyardError:
        upload.abort()
        raise
    described, start = store.describe(key), max(0, len(content) - 2 * _REST_BYTES)
    try:
        is_read = b"".join(store.stream(key, start, len(content))) == content[start:]
    except FileNotFoundError:
        is_read = False
    if not is_read or described is None or described.size != len(content):
        raise _wrong_bytes(store, key)
    if key == READINESS_PARTS and not store.refuses_to_join(key):
        raise UnsupportedOperationError(not_conditional(store))


def _wrong_bytes(store: Store, key: str) -> VerificationError:
    return VerificationError(
        f"{key} was written into {store.url}, and when it is read back it is missing or has other bytes. "
        "The store loses or changes data, and no run can be proven there; or the object is not of a check: "
        "move it away, this name is reserved."
    )
