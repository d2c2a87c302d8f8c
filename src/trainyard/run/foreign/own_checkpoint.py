"""Find a program's own newest complete checkpoint, and take it into the run directory with a manifest.

Its files are linked, not copied, where the file system can do that, and hashed as they are then. So the
manifest vouches for the bytes from that moment on, and not for what happened between the program's write
and the hashing.
"""

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trainyard.run.checkpoint_manifest import (
    MANIFEST_NAME,
    CheckpointManifest,
    describe_files,
    write_manifest,
)
from trainyard.run.directory import RunDirectory
from trainyard.run.untrusted_files import read_bytes
from trainyard.run.whole_files import sha256_of_file

NameOf = Callable[[str], tuple[int, str] | None]
"""Step and folder of the newest checkpoint, from the tracker's text or from the names in the folder."""
_LONGEST_TRACKER = 4096


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
    """Return the newest complete checkpoint below `folder`, as the program itself tells it.

    With a `tracker` that is what this file names. Without one it is chosen from the names in the folder,
    those of `.metadata`-less folders left out, because torch writes that file last.
    """
    if not folder.is_dir():
        return None
    found = name_of(_tracked(folder / tracker) if tracker else _names(folder))
    if found is None or not (folder / found[1]).is_dir():
        return None
    return OwnCheckpoint(found[0], folder / found[1])


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
    if not (target / MANIFEST_NAME).is_file():
        shutil.rmtree(target, ignore_errors=True)  # a link that was cut off, or of an earlier segment
        shutil.copytree(own.path, target, copy_function=_linked, symlinks=False)
        manifest = CheckpointManifest(own.step, run_id, time.time(), describe_files(target))
        write_manifest(target, manifest)
    return TakenCheckpoint(own.step, sha256_of_file(target / MANIFEST_NAME))


def _linked(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without hard links
        shutil.copyfile(source, target)
    return target
