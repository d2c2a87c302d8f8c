"""What a run goes on from on a machine that may never have seen it: its own directory, or the store.

    segment of a lineage     the directory if it is as far as the store, else the newest checkpoint stored
    manifest of another run  that run's checkpoint in a directory of its own, as the parent of a new run

The answer is what the trainer's `--resume` takes. Nothing is trained, and no directory is ever removed.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from trainyard.artifacts.chain import newest_manifest
from trainyard.artifacts.checkpoints import checkpoints_of
from trainyard.artifacts.manifest import RunManifest, parse_manifest
from trainyard.artifacts.restore import restore
from trainyard.artifacts.selection import Selection
from trainyard.artifacts.store import Store, read_object
from trainyard.errors import ServiceError, VerificationError
from trainyard.run.checkpoints import MANIFEST_NAME
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import read_run
from trainyard.run.segment import ManifestPlace, manifest_place

OpenStore = Callable[[str], Store]
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Wanted:
    """A run on this machine that is about to be trained."""

    directory: RunDirectory
    run_id: str
    resume: str
    """auto, none, the address of a manifest, or the path of a checkpoint."""
    store: str
    run_number: int
    segment: int
    """From 1; a later one must find what the one before left."""
    look_in_store: bool


@dataclass(frozen=True)
class Resumption:
    """What was found."""

    resume: str
    """For the trainer: auto, none or a checkpoint's directory."""
    reason: str
    """One line for people."""


def bring(wanted: Wanted, open_store: OpenStore) -> Resumption:
    """Have what the run goes on from on this machine.

    Raises VerificationError when a later segment finds nothing, ServiceError when the store that holds it
    cannot be reached.
    """
    place = manifest_place(wanted.resume)
    if wanted.segment > 1 or (wanted.look_in_store and place is None and wanted.resume == "auto"):
        return _same_run(wanted, open_store)
    if place is not None:
        return _parent(wanted, place, open_store(place.store))
    if wanted.resume in ("auto", "none"):
        return Resumption(wanted.resume, "what is on this machine, if anything")
    path = wanted.resume.removesuffix(f"/{MANIFEST_NAME}")
    return Resumption(path, "the checkpoint that was named")


def _same_run(wanted: Wanted, open_store: OpenStore) -> Resumption:
    """The directory of the run, brought up to what the store has."""
    here = _newest_here(wanted.directory)
    try:
        stored = _newest_stored(wanted, open_store(wanted.store))
    except ServiceError as error:
        # A folder that is not there yet holds nothing; a bucket that does not answer may hold hours of work.
        if here is None and (wanted.segment > 1 or not wanted.store.startswith("file://")):
            raise
        _logger.warning("%s\nGoing on with what is on this machine.", error)
        stored = None
    if stored is not None and (here is None or here < stored):
        return _restored(wanted, open_store(wanted.store), instead_of=here)
    if here is not None:
        return Resumption("auto", f"step {here} in {wanted.directory.path}")
    if wanted.segment > 1:
        raise VerificationError(
            f"Segment {wanted.segment} finds nothing to go on from: {wanted.directory.path} is not on this "
            f"machine, and {wanted.store} has no checkpoint of run {wanted.run_number}. Nothing was started."
        )
    return Resumption("auto", "nothing is there yet")


def _newest_here(directory: RunDirectory) -> int | None:
    """The newest step that has a whole checkpoint on this machine."""
    if not directory.run_file.is_file():
        return None
    steps = [s for s in directory.checkpoint_steps() if (directory.checkpoint(s) / MANIFEST_NAME).is_file()]
    return max(steps, default=None)


def _newest_stored(wanted: Wanted, store: Store) -> int | None:
    """The newest step that the store has of this very run; None when the number is another's or nobody's."""
    _, manifest, _ = newest_manifest(store, wanted.run_number)
    return _newest_step(manifest) if manifest is not None and manifest.run_id == wanted.run_id else None


def _newest_step(manifest: RunManifest) -> int | None:
    return max((each.step for each in checkpoints_of(manifest) if each.step is not None), default=None)


def _restored(wanted: Wanted, store: Store, *, instead_of: int | None) -> Resumption:
    """The run from the store; what this machine has of it is older, and is moved aside."""
    path = wanted.directory.path
    if path.exists() and any(path.iterdir()):
        aside = path.with_name(f"{path.name}.until-{instead_of or 0}")
        number = 1
        while aside.exists():
            number += 1
            aside = path.with_name(f"{path.name}.until-{instead_of or 0}-{number}")
        _logger.warning("%s is older than the store: moved to %s", path, aside)
        path.rename(aside)
    report = restore(store, Selection(wanted.run_number, newest=True), path)
    return Resumption("auto", report.summary())


def _parent(wanted: Wanted, place: ManifestPlace, store: Store) -> Resumption:
    """The newest checkpoint that the named manifest lists, in a directory beside the run's."""
    content = read_object(store, place.key)
    if content is None:
        raise VerificationError(f"--resume: {place.store} has no {place.key}. Nothing was started.")
    manifest = parse_manifest(content, place.key)
    step = _newest_step(manifest)
    if step is None:
        raise VerificationError(f"--resume: {place.key} lists no checkpoint. Nothing was started.")
    beside = RunDirectory(wanted.directory.path.with_name(f"from-{manifest.run_id}-step-{step}"))
    checkpoint = beside.checkpoint(step)
    if beside.run_file.is_file() and read_run(beside.run_file)["run_id"] == manifest.run_id:
        return Resumption(str(checkpoint), f"step {step} of run {place.run_number}, brought earlier")
    report = restore(store, Selection(place.run_number, step=step), beside.path)
    return Resumption(str(checkpoint), report.summary())
