"""Find a program's own newest complete checkpoint, and take it into the run directory with a manifest.

Its files are linked where the file system allows it, else copied, and then hashed. The manifest therefore
vouches for the bytes from that moment on, and not for the time between the program's write and the hashing.
"""

import contextlib
import hashlib
import logging
import os
import shutil
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from trainyard.errors import CheckpointError
from trainyard.programs.checkpoints.checkpoint_formats import find_checkpoints
from trainyard.programs.checkpoints.found_checkpoint import CheckpointFormat, FoundCheckpoint
from trainyard.programs.checkpoints.volume_listing import VolumeListing
from trainyard.programs.program_records import TakenCheckpoint
from trainyard.run.atomic_files import sha256_of_file
from trainyard.run.checkpoint_manifest import (
    MANIFEST_NAME,
    CheckpointManifest,
    describe_files,
    verify_checkpoint,
    write_manifest,
)
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import read_run

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class OwnCheckpoint:
    """A complete checkpoint in the program's own layout."""

    step: int
    path: Path


@dataclass(frozen=True)
class OwnCheckpoints:
    """A program's checkpoints: the newest complete one, and newer ones that are not complete."""

    newest: OwnCheckpoint | None
    skipped: tuple[FoundCheckpoint, ...] = ()

    def notes(self) -> tuple[str, ...]:
        """A line for each newer checkpoint that does not count, with the missing part."""
        instead = "there is no complete one" if self.newest is None else f"{self.newest.path.name} is newest"
        return tuple(f"{each.path} is not complete: {each.why}; {instead}" for each in self.skipped)


def find_own_checkpoints(
    folder: Path, listing: VolumeListing, formats: Collection[CheckpointFormat]
) -> OwnCheckpoints:
    """Return the newest complete checkpoint directly in `folder`, by the files that its format owes.

    `listing` has the files below the folder.
    """
    found = [
        each
        for each in find_checkpoints(listing)
        if each.format in formats and each.run == "." and each.step is not None
    ]
    complete = [(each.step or 0, each.path) for each in found if each.is_complete]
    step, name = max(complete, default=(-1, ""))
    skipped = tuple(each for each in found if not each.is_complete and (each.step or 0) > step)
    return OwnCheckpoints(OwnCheckpoint(step, folder / name) if name else None, skipped)


def state_of(own: OwnCheckpoint) -> str:
    """Return a digest of the names, sizes and times of its files; it changes when they are written again."""
    digest = hashlib.sha256()
    for path in sorted(path for path in own.path.rglob("*") if path.is_file()):
        with contextlib.suppress(OSError):  # it is being removed
            found = path.stat()
            digest.update(f"{path.relative_to(own.path)}\0{found.st_size}\0{found.st_mtime_ns}\0".encode())
    return digest.hexdigest()


def take_newest(own: OwnCheckpoint | None, directory: RunDirectory) -> TakenCheckpoint | None:
    """Take the checkpoint into the run directory; if that fails, log why and return None."""
    if own is None:
        return None
    try:
        return take(own, directory, str(read_run(directory.run_file)["run_id"]))
    except (OSError, CheckpointError) as error:
        _logger.error("%s: the checkpoint was not taken into the run directory (%s)", own.path, error)
        return None


def take(own: OwnCheckpoint, directory: RunDirectory, run_id: str) -> TakenCheckpoint:
    """Link the checkpoint into `checkpoints/`, write its manifest last, and return its digest."""
    target = directory.checkpoint(own.step)
    if (own.path / MANIFEST_NAME).exists():
        raise CheckpointError(f"{own.path / MANIFEST_NAME}: our own manifest of the checkpoint has this name")
    if not _is_taken(own, target, run_id):
        (target / MANIFEST_NAME).unlink(missing_ok=True)
        shutil.rmtree(target, ignore_errors=True)  # a link that was cut off, or of an earlier segment
        shutil.copytree(own.path, target, copy_function=_linked, symlinks=False)
        manifest = CheckpointManifest(own.step, run_id, time.time(), describe_files(target))
        write_manifest(target, manifest)
    return TakenCheckpoint(own.step, sha256_of_file(target / MANIFEST_NAME))


def _is_taken(own: OwnCheckpoint, target: Path, run_id: str) -> bool:
    """Whether `target` has what the program has now; an earlier segment may have had other bytes."""
    try:
        taken = verify_checkpoint(target, run_id=run_id)
        return taken.files == describe_files(own.path)
    except (CheckpointError, OSError):
        return False


def _linked(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without hard links
        shutil.copyfile(source, target)
    return target
