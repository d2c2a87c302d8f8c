"""Claim run numbers: one conditional put before anything else is stored decides which run owns a number.

A number belongs to one run permanently; the same run may sync under it any number of times.
"""

import json
import logging
import shlex
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from trainyard.artifacts.record.manifest import read_chain
from trainyard.artifacts.store.layout import identity_key, run_number_of
from trainyard.artifacts.store.object_store import Store
from trainyard.errors import ConfigError, DamagedFileError, RunConflictError, VerificationError
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import read_run
from trainyard.run.suggested_commands import trainyard_command
from trainyard.run.untrusted_files import parse_json_object

_MOST_DIGITS = 15
# A store with more runs shows its newest.
_MOST_LISTED = 10
_RACES = 20
"""Give up after other runs have taken the next free number this many times."""
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


def claim_number(store: Store, run_id: str, wanted: int | None) -> int:
    """Claim `wanted` (None: the number the run has, else the next free one) for `run_id`, and return it.

    Raises RunConflictError, with nothing stored, when the number belongs to another run.
    """
    if wanted is not None:
        _claim(store, run_id, wanted)
        return wanted
    for _ in range(_RACES):
        number = number_of_run(store, run_id) or next_free_number(store)
        try:
            _claim(store, run_id, number)
            return number
        except RunConflictError as lost:
            _logger.info("run number %d was taken meanwhile: %s", number, lost)
    raise RunConflictError(
        f"{store.url}: no number could be claimed, other runs took {_RACES} in a row. Try again"
    )


def owner_of(store: Store, number: int) -> str | None:
    """Return the run that owns the number; None if it is free, empty if its record cannot be read."""
    content = store.read_object(identity_key(number))
    if content is None:
        return None
    try:
        owner = parse_json_object(content, identity_key(number)).get("run_id")
    except DamagedFileError:
        return ""
    return owner if isinstance(owner, str) else ""


def number_of_run(store: Store, run_id: str) -> int | None:
    """Return the number that belongs to `run_id`, or None; the newest numbers are checked first.

    Raises VerificationError when a number with a damaged claim has a manifest of this run: a second copy
    under a new number would hide the first.
    """
    numbers, damaged = sorted(used_numbers(store), reverse=True), list[int]()
    with ThreadPoolExecutor(8) as pool:
        for start in range(0, len(numbers), 64):
            block = numbers[start : start + 64]
            owners = pool.map(lambda number: owner_of(store, number), block)
            for number, owner in zip(block, owners, strict=True):
                if owner == run_id:
                    return number
                if owner == "":
                    damaged.append(number)
    for number in damaged:
        _require_of_another_run(store, number, run_id, free=numbers[0] + 1)
    return None


def _require_of_another_run(store: Store, number: int, run_id: str, *, free: int) -> None:
    key, chain = identity_key(number), read_chain(store, number)
    if chain and chain[-1].manifest.run_id == run_id:
        raise VerificationError(
            f"{key}: damaged, and {chain[-1].key} is of this run, {run_id}. Nothing was stored. Put the "
            f"object back from a copy, or store the run once more: --run-number {free}."
        )
    _logger.warning("%s: damaged, so it is not known which run has number %d", key, number)


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


def _claim(store: Store, run_id: str, number: int) -> None:
    owner = owner_of(store, number)
    if owner is None:
        content = json.dumps({"run_id": run_id, "claimed": time.time()}).encode()
        key, metadata = identity_key(number), {"run-id": run_id, "run-number": str(number)}
        if store.put_new(key, content, metadata=metadata):
            _warn_if_conditions_are_ignored(store, key, content)
        owner = owner_of(store, number)
    if owner != run_id:
        raise RunConflictError(
            f"Run number {number} in {store.url} belongs to run {owner or '(unreadable record)'}; "
            f"this is run {run_id}. Nothing was uploaded.\n"
            f"Take a free one: --run-number {next_free_number(store)}, or --run-number auto."
        )


def _warn_if_conditions_are_ignored(store: Store, key: str, content: bytes) -> None:
    """Put the same bytes again, which a store with conditional writes must refuse."""
    if store.put_new(key, content, metadata={}):
        _logger.warning(
            "%s ignores conditional writes: when two runs claim one number at the same time, "
            "only reading it back shows which run has it",
            store.url,
        )
