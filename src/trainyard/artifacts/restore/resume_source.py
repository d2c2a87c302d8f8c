"""Find the checkpoint to resume from, on a machine that may never have seen the run.

    segment or attempt       the run directory, unless the store has a newer checkpoint, which is then fetched
    manifest of another run  that run's checkpoint, in a directory of its own, as the parent of a new run

The answer is a value for the trainer's `--resume`. Nothing is trained. An existing directory is at most
renamed, and only to replace it with a complete and newer one from the store.
"""

import logging
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from trainyard.artifacts.record.chain import newest_manifest
from trainyard.artifacts.record.checkpoints import checkpoints_of
from trainyard.artifacts.record.manifest import RunManifest, parse_run_manifest
from trainyard.artifacts.record.run_numbers import number_of_run
from trainyard.artifacts.restore.restore import restore
from trainyard.artifacts.restore.selection import Selection
from trainyard.artifacts.store.layout import manifest_prefix
from trainyard.artifacts.store.object_store import Store
from trainyard.errors import CheckpointError, ServiceError, VerificationError
from trainyard.run.atomic_files import sync_directory
from trainyard.run.checkpoint_manifest import MANIFEST_NAME, is_complete, verify_checkpoint
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import read_run
from trainyard.run.node_folder import keeps_parts
from trainyard.run.progress import UNSEEN, Progress
from trainyard.run.segment import ManifestPlace, manifest_place

_POLL_SECONDS = 2.0
OpenStore = Callable[[str], Store]
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ResumeRequest:
    """A run that is about to be trained on this machine."""

    directory: RunDirectory
    run_id: str
    """Empty: that of the run that has `run_number`."""
    resume: str
    """auto, none, the address of a manifest, or the path of a checkpoint."""
    store: str
    run_number: int | None
    """Its number in the store; None to search for the number that belongs to `run_id`."""
    segment: int
    """Counted from 1. Above 1 an earlier one's checkpoint must exist, unless `allow_missing_checkpoint`."""
    may_fetch: bool
    """Whether a run that has no earlier segment may continue from the store, too."""
    allow_missing_checkpoint: bool = False
    """Whether a later segment may start from scratch, because no earlier one has stored anything."""
    progress: Progress = UNSEEN
    """Receives the progress of downloads."""
    wait_seconds: float = 0.0
    """Seconds to wait until the main machine lists a checkpoint of which this machine has a part."""


@dataclass(frozen=True)
class Resumption:
    """The checkpoint to resume from."""

    resume: str
    """Value for the trainer: auto, none or a checkpoint's directory."""
    reason: str
    """One line for people."""


def fetch_resume_source(wanted: ResumeRequest, open_store: OpenStore) -> Resumption:
    """Make sure that the checkpoint to resume from is on this machine.

    Raises VerificationError when a later segment finds no checkpoint although there should be one, or when
    the store's manifests of the run cannot be trusted; ServiceError when the store cannot be reached.
    """
    if wanted.segment > 1 or (wanted.may_fetch and wanted.resume != "none"):
        own = _update_run(wanted, open_store)
        if own is not None:
            return own
        if wanted.segment > 1 and not wanted.allow_missing_checkpoint:
            raise VerificationError(
                f"Segment {wanted.segment} finds nothing to resume from: {wanted.directory.path} has no "
                f"complete checkpoint on this machine, and {wanted.store} has none of run "
                f"{wanted.run_number or wanted.run_id}. "
                "Nothing was started. Check the store's address, or start a new run."
            )
        if wanted.resume == "auto":
            return Resumption("auto", "there is no checkpoint yet")
    return _resolve_requested(wanted, open_store)


def _resolve_requested(wanted: ResumeRequest, open_store: OpenStore) -> Resumption:
    """Resolve `--resume` for a run that has no checkpoint of its own."""
    place = manifest_place(wanted.resume)
    if place is not None:
        return _restore_parent(wanted, place, open_store(place.store))
    if wanted.resume in ("auto", "none"):
        return Resumption(wanted.resume, "the newest checkpoint on this machine, if any")
    path = wanted.resume.removesuffix(f"/{MANIFEST_NAME}")
    return Resumption(path, "the checkpoint that was named")


def _update_run(wanted: ResumeRequest, open_store: OpenStore) -> Resumption | None:
    """Update the run directory from the store; return None if neither has a checkpoint.

    If the store has none, a first segment with an explicit `--resume` is left to the trainer.
    """
    here = newest_step_here(wanted.directory)
    try:
        stored = _newest_listed(wanted, open_store(wanted.store))
    except ServiceError as error:
        # A folder that does not exist yet holds nothing. A bucket that does not answer may hold hours of
        # work.
        must_exist = wanted.segment > 1 and not wanted.allow_missing_checkpoint
        if here is None and (must_exist or not wanted.store.startswith("file://")):
            raise
        _logger.warning("%s\nContinuing with what is on this machine.", error)
        stored = None
    if stored is not None and (here is None or here < stored):
        return _restore_run(wanted, open_store(wanted.store), here=here)
    if here is not None and stored is not None and keeps_parts(wanted.directory):
        _set_aside_parts(wanted.directory, after=here)
    if here is not None and (stored is not None or wanted.segment > 1 or wanted.resume == "auto"):
        return Resumption("auto", f"step {here} in {wanted.directory.path}")
    return None


def newest_step_here(directory: RunDirectory) -> int | None:
    """Return the newest step whose local checkpoint verifies; every byte of it is read."""
    if not directory.run_file.is_file():
        return None
    for step in reversed(directory.checkpoint_steps()):
        try:
            verify_checkpoint(directory.checkpoint(step))
        except (CheckpointError, OSError) as error:
            _logger.warning("checkpoint of step %d passed over: %s", step, error)
        else:
            return step
    return None


def _newest_listed(wanted: ResumeRequest, store: Store) -> int | None:
    """Return `_newest_stored`; wait first if this machine has a part of a newer checkpoint.

    The main machine lists that checkpoint once every machine has stored its part.
    """
    deadline = time.monotonic() + wanted.wait_seconds
    part = _newest_part(wanted.directory)
    while (stored := _newest_stored(wanted, store)) is None or stored < part:
        if time.monotonic() >= deadline or not part:
            break
        time.sleep(min(_POLL_SECONDS, max(0.0, deadline - time.monotonic())))
    return stored


def _newest_part(directory: RunDirectory) -> int:
    """Return the newest step of which this machine has at least its own part; 0 without any."""
    if not keeps_parts(directory):
        return 0
    steps = directory.checkpoint_steps()
    return max((step for step in steps if is_complete(directory.checkpoint(step))), default=0)


def _newest_stored(wanted: ResumeRequest, store: Store) -> int | None:
    """Return the newest stored step of this run; None when the number is free or belongs to another run.

    Raises VerificationError for damaged manifests: they do not mean that there are none.
    """
    number = _number(wanted, store)
    if number is None or next(iter(store.list_objects(manifest_prefix(number))), None) is None:
        return None
    _, manifest, problems = newest_manifest(store, number)
    if manifest is None or problems:
        raise VerificationError(
            "\n".join(problems)
            + f"\nThe manifests of run {number} in {wanted.store} cannot be trusted, and the "
            "store may be ahead of this machine. Nothing was started. Fix it first: "
            f"trainyard store verify --store {wanted.store} --run-number {number} prints what is wrong."
        )
    return _newest_step(manifest) if wanted.run_id in ("", manifest.run_id) else None


def _number(wanted: ResumeRequest, store: Store) -> int | None:
    return number_of_run(store, wanted.run_id) if wanted.run_number is None else wanted.run_number


def _newest_step(manifest: RunManifest) -> int | None:
    return max((each.step for each in checkpoints_of(manifest) if each.step is not None), default=None)


def _restore_run(wanted: ResumeRequest, store: Store, *, here: int | None) -> Resumption:
    """Restore the run from the store beside the local one, which is then moved aside if it is older."""
    path = wanted.directory.path
    beside = path.with_name(f"{path.name}.from-store")
    shutil.rmtree(beside, ignore_errors=True)  # of a start that was killed before it took this name
    number = _number(wanted, store)
    assert number is not None, "the store has a checkpoint of the run"
    report = restore(store, Selection(number, newest=True), beside, progress=wanted.progress)
    restored = max(report.steps)
    if here is not None and restored <= here:
        shutil.rmtree(beside)
        return Resumption("auto", f"step {here} in {path}: nothing newer in the store verifies")
    _remove_parts(RunDirectory(path), until=restored)
    _move_aside(path, here)
    beside.rename(path)
    sync_directory(path.parent)
    return Resumption("auto", replace(report, directory=str(path)).summary())


def _remove_parts(directory: RunDirectory, *, until: int) -> None:
    """Remove this machine's parts of checkpoints up to step `until`, which was restored completely.

    Otherwise each restart would leave a copy of them on the disk of the machine.
    """
    for step in directory.checkpoint_steps() if keeps_parts(directory) else ():
        if step <= until:
            shutil.rmtree(directory.checkpoint(step))


def _set_aside_parts(directory: RunDirectory, *, after: int) -> None:
    """Hide this machine's parts of checkpoints after step `after`, which no store has completely."""
    for step in directory.checkpoint_steps():
        path = directory.checkpoint(step)
        if step > after:
            aside = path.with_name(f".set-aside-{path.name}")
            shutil.rmtree(aside, ignore_errors=True)
            _logger.warning(
                "%s is a part of a checkpoint that is not completely stored: moved to %s", path, aside
            )
            path.rename(aside)


def _move_aside(path: Path, step: int | None) -> None:
    """Rename the directory `path`, unless it is missing or has nothing of a run; that is then removed."""
    if not path.exists():
        return
    if {entry.name for entry in path.iterdir()} <= {"config.yaml", ".identity.json"}:
        shutil.rmtree(path)
        return
    aside = path.with_name(f"{path.name}.until-{step or 0}")
    number = 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}.until-{step or 0}-{number}")
    _logger.warning("%s is older than the store: moved to %s", path, aside)
    path.rename(aside)


def _restore_parent(wanted: ResumeRequest, place: ManifestPlace, store: Store) -> Resumption:
    """Restore the newest checkpoint that the named manifest lists, in a directory beside the run's."""
    content = store.read_object(place.key)
    if content is None:
        raise VerificationError(f"--resume: {place.store} has no {place.key}. Nothing was started.")
    manifest = parse_run_manifest(content, place.key)
    step = _newest_step(manifest)
    if step is None:
        raise VerificationError(f"--resume: {place.key} lists no checkpoint. Nothing was started.")
    beside = RunDirectory(wanted.directory.path.with_name(f"from-{manifest.run_id}-step-{step}"))
    checkpoint = beside.checkpoint(step)
    if beside.run_file.is_file() and read_run(beside.run_file)["run_id"] == manifest.run_id:
        return Resumption(str(checkpoint), f"step {step} of run {place.run_number}, fetched earlier")
    selection = Selection(place.run_number, step=step)
    report = restore(store, selection, beside.path, progress=wanted.progress)
    return Resumption(str(checkpoint), report.summary())
