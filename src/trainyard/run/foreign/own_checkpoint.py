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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trainyard.errors import CheckpointError
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
from trainyard.run.untrusted_files import read_bytes

NameOf = Callable[[str], tuple[int, str] | None]
"""Step and folder of the newest checkpoint, from the tracker's text or from the names in the folder."""
_LONGEST_TRACKER = 4096
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class OwnCheckpoint:
    """A complete checkpoint in the program's own layout."""

    step: int
    path: Path


@dataclass(frozen=True)
class TakenCheckpoint:
    """A checkpoint of the run directory."""

    step: int
    manifest_sha256: str


def newest_own_checkpoint(folder: Path, tracker: str, name_of: NameOf) -> OwnCheckpoint | None:
    """Return the newest complete checkpoint below `folder`.

    The program's own file `tracker` names it. A program without a tracker (empty) writes checkpoints with
    torch; then `name_of` chooses among the folders that hold `.metadata`, the file that torch writes last.
    """
    if not folder.is_dir():
        return None
    found = name_of(_tracked(folder / tracker) if tracker else _names(folder))
    if found is None or not (folder / found[1]).is_dir():
        return None
    return OwnCheckpoint(found[0], folder / found[1])


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


def _tracked(path: Path) -> str:
    try:
        return read_bytes(path, links=False)[:_LONGEST_TRACKER].decode(errors="replace").strip()
    except (OSError, ValueError):
        return ""


def _names(folder: Path) -> str:
    entries = sorted(entry for entry in folder.iterdir() if "\n" not in entry.name)
    return "\n".join(entry.name for entry in entries if entry.is_file() or _is_torchs(entry))


def _is_torchs(folder: Path) -> bool:
    return (folder / ".metadata").is_file() or (folder / "weights" / ".metadata").is_file()


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
