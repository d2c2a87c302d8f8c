"""Decide which directories of proven and stored runs a disk can lose, and remove them.

    entries ──> proven runs, others stay ──> the newest N stay ──> the store's copy verifies, else it stays
                                                                             └──> renamed, then deleted

Only the directory of a workflow's run is ever removed: named `gh-` and a number, with that name in its
`run.json`, finished, proven, not in use, with every checkpoint in the store, and with nothing that Trainyard
did not write. Anything else stays, and so does a directory that cannot be read. The caller reads the proof.
"""

import contextlib
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from trainyard.artifacts.record.chain import newest_manifest
from trainyard.artifacts.record.checkpoints import checkpoints_of
from trainyard.artifacts.store.object_store import Store
from trainyard.artifacts.verify.verify import Depth, verify_run
from trainyard.errors import ConfigError, DamagedFileError, ServiceError, TrainyardError
from trainyard.run.checkpoint_manifest import MANIFEST_NAME
from trainyard.run.directory import RunDirectory, step_of
from trainyard.run.identity import read_run
from trainyard.run.judged_records import RECORDS
from trainyard.run.run_lock import is_locked, locked
from trainyard.run.untrusted_files import read_bytes

_NAME = re.compile(r"gh-[0-9]{1,18}", re.ASCII)
_LAYOUT = frozenset(
    {
        *RECORDS,
        *("checkpoints", "logs", "tensorboard", "report"),
        *("slack.json", "node.json", ".lock"),
    }
)
"""The entries of a run directory that Trainyard writes; any other is somebody's, and is not in the store."""
_REMOVING = ".removing-"
"""Prefix of a directory whose removal has started; a later call finishes it."""


ProofOf = Callable[[RunDirectory, Mapping[str, Any]], tuple[int, str] | None]
"""Returns number and store of a run by its directory and `run.json`; None for a run that is not proven."""


@dataclass(frozen=True)
class DirectoryDecision:
    """Decision whether an entry of the folder stays, and why."""

    path: Path
    keep: bool
    reason: str
    size: int = 0
    """Bytes, of an entry to remove."""


@dataclass(frozen=True)
class _ProvenRun:
    directory: RunDirectory
    run_id: str
    finished: float
    number: int
    """Its number in the store."""


class _ObstacleError(Exception):
    """Reason why an entry stays."""


def plan_removal(
    folder: Path, store: Store, *, keep_last: int, current: Path | None, proof_of: ProofOf
) -> list[DirectoryDecision]:
    """Return a decision for each entry of `folder`; the newest `keep_last` proven runs and `current` stay.

    Raises ServiceError when the store cannot be reached."""
    decisions, proven = [], list[_ProvenRun]()
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if _is_leftover(path):
            decisions.append(DirectoryDecision(path, False, "its removal was interrupted", _size_of(path)))
            continue
        try:
            proven.append(_proven_run(path, store, proof_of))
        except _ObstacleError as obstacle:
            decisions.append(DirectoryDecision(path, True, str(obstacle)))
    proven.sort(key=lambda run: (run.finished, run.run_id), reverse=True)
    for position, run in enumerate(proven):
        path, reason = run.directory.path, ""
        if current is not None and path.resolve() == current.resolve():
            reason = "it is the run of this job"
        elif position < keep_last:
            reason = f"it is one of the newest {keep_last} proven runs"
        decisions.append(DirectoryDecision(path, True, reason) if reason else _decide(run, store))
    return sorted(decisions, key=lambda each: each.path)


def remove_directories(decisions: list[DirectoryDecision]) -> Iterator[tuple[DirectoryDecision, str]]:
    """Remove the directories that do not stay; yield each with the problem, empty if it is gone.

    A directory is renamed first, while it is locked, so that an interruption leaves no partial run.
    """
    for each in decisions:
        if each.keep:
            continue
        removals = each.path
        try:
            if not removals.name.startswith(_REMOVING):
                removals = each.path.with_name(f"{_REMOVING}{each.path.name}")
                with locked(each.path):
                    each.path.rename(removals)
            shutil.rmtree(removals)
        except (OSError, ConfigError) as error:
            yield each, f"{removals}: {error}"
        else:
            yield each, ""


def _decide(run: _ProvenRun, store: Store) -> DirectoryDecision:
    path = run.directory.path
    try:
        _require_stored(run, store)
    except _ObstacleError as obstacle:
        return DirectoryDecision(path, True, str(obstacle))
    reason = f"it is proven, and run {run.number} in {store.url} verifies"
    return DirectoryDecision(path, False, reason, _size_of(path))


def _is_leftover(path: Path) -> bool:
    is_ours = path.name.startswith(_REMOVING) and _NAME.fullmatch(path.name.removeprefix(_REMOVING))
    return bool(is_ours) and path.is_dir() and not path.is_symlink()


def _proven_run(path: Path, store: Store, proof_of: ProofOf) -> _ProvenRun:
    """Return the proven run in `path`. Raises _ObstacleError with the reason why there is none."""
    if path.is_symlink():
        raise _ObstacleError("it is a link")
    if not path.is_dir() or not _NAME.fullmatch(path.name):
        raise _ObstacleError("it is not the directory of a workflow's run")
    directory = RunDirectory(path)
    try:
        run = read_run(directory.run_file)
        in_use = is_locked(path)
    except (TrainyardError, OSError) as error:
        raise _ObstacleError(f"it cannot be read: {error}") from None
    if run["run_id"] != path.name:
        raise _ObstacleError(f"its run.json is of run {run['run_id']}")
    if in_use:
        raise _ObstacleError("it is in use")
    outcome = run.get("outcome") or {}
    if outcome.get("status") != "succeeded":
        raise _ObstacleError(f"the run has not succeeded: {outcome.get('status') or 'no outcome on record'}")
    finished = outcome.get("finished")
    proof = proof_of(directory, run)
    if proof is None or not isinstance(finished, (int, float)):
        raise _ObstacleError("no proof of this run is on record")
    number, url = proof
    if url.rstrip("/") != store.url.rstrip("/"):
        raise _ObstacleError(f"it is stored in {url}")
    return _ProvenRun(directory, path.name, float(finished), number)


def _require_stored(run: _ProvenRun, store: Store) -> None:
    """Raise _ObstacleError unless the store's copy verifies and has every checkpoint of the directory."""
    number = run.number
    try:
        verification = verify_run(store, number, depth=Depth.LISTING)
        manifest = newest_manifest(store, number)[1]
    except ServiceError:
        raise
    except TrainyardError as error:
        raise _ObstacleError(f"its copy in the store cannot be read: {error}") from None
    if manifest is None or not verification.ok:
        raise _ObstacleError(f"its copy in the store does not verify: {'; '.join(verification.problems[:1])}")
    if verification.run_id != run.run_id:
        raise _ObstacleError(f"run {number} in the store is {verification.run_id}")
    if others := [entry.name for entry in _entries_of(run.directory.path) if entry.name not in _LAYOUT]:
        raise _ObstacleError(f"{others[0]} is no file of Trainyard's, and is not in the store")
    stored = {each.step: each.marker.sha256 for each in checkpoints_of(manifest) if each.marker}
    checkpoints = run.directory.checkpoints
    if checkpoints.is_symlink():
        raise _ObstacleError("its checkpoints are behind a link")
    for entry in _entries_of(checkpoints) if checkpoints.is_dir() else ():
        step = step_of(entry.name)
        if step is None or entry.is_symlink() or stored.get(step) != _digest_of(entry / MANIFEST_NAME):
            raise _ObstacleError(f"checkpoints/{entry.name} is not in the store")


def _entries_of(folder: Path) -> list[Path]:
    """The entries of a folder, sorted. Raises _ObstacleError when it cannot be read."""
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise _ObstacleError(f"{folder.name}/ cannot be read: {error.strerror}") from None


def _digest_of(path: Path) -> str:
    """The SHA-256 of a checkpoint's manifest; empty if it cannot be read."""
    try:
        return sha256(read_bytes(path, links=False)).hexdigest()
    except (OSError, DamagedFileError):
        return ""


def _size_of(path: Path) -> int:
    """The bytes of the files below a folder; files that vanish meanwhile count as 0."""
    total = 0
    for file in path.rglob("*"):
        with contextlib.suppress(OSError):
            total += file.lstat().st_size if file.is_file() or file.is_symlink() else 0
    return total
