"""interim"""

import fnmatch
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from trainyard.programs.checkpoints.checkpoint_formats import find_checkpoints
from trainyard.programs.checkpoints.found_checkpoint import CheckpointFormat
from trainyard.programs.checkpoints.taken_checkpoint import OwnCheckpoint, state_of
from trainyard.programs.checkpoints.taken_checkpoint import take_newest as _take
from trainyard.programs.checkpoints.volume_listing import list_checkpoint_folder
from trainyard.run.checkpoint_manifest import MANIFEST_NAME
from trainyard.run.directory import RunDirectory


@dataclass(frozen=True)
class ProgramCheckpoint:
    step: int | None
    path: Path

    @property
    def state(self) -> str:
        return state_of(OwnCheckpoint(self.step or 0, self.path))

    @property
    def restorable_path(self) -> Path:
        return self.path


@dataclass(frozen=True)
class ProgramCheckpoints:
    newest: ProgramCheckpoint | None
    skipped: tuple[str, ...] = ()

    @property
    def newest_resumable(self) -> ProgramCheckpoint | None:
        return self.newest

    def notes(self) -> tuple[str, ...]:
        return self.skipped


def find_program_checkpoints(
    directory: Path,
    pattern: str,
    *,
    formats: Collection[CheckpointFormat] | None = None,
    since: float = 0.0,
    ignored: Collection[Path] = (),
) -> ProgramCheckpoints:
    folder = directory / (os.path.dirname(pattern) if pattern != "auto" else ".")
    if not folder.is_dir():
        return ProgramCheckpoints(None)
    listing = list_checkpoint_folder(folder)
    found = [
        each
        for each in find_checkpoints(listing)
        if each.step is not None and (formats is None or each.format in formats)
    ]
    found = [
        each for each in found if pattern == "auto" or fnmatch.fnmatch(each.path, os.path.basename(pattern))
    ]
    found = [each for each in found if max((f.modified for f in each.files), default=0) >= since]
    complete = [(each.step or 0, each.path) for each in found if each.is_complete]
    step, name = max(complete, default=(-1, ""))
    skipped = tuple(
        f"{each.path}: {each.why}" for each in found if not each.is_complete and (each.step or 0) > step
    )
    return ProgramCheckpoints(ProgramCheckpoint(step, folder / name) if name else None, skipped)


def newest_taken(directory: RunDirectory) -> ProgramCheckpoint | None:
    steps = [s for s in directory.checkpoint_steps() if (directory.checkpoint(s) / MANIFEST_NAME).is_file()]
    return ProgramCheckpoint(steps[-1], directory.checkpoint(steps[-1])) if steps else None


def named_checkpoint(path: Path) -> ProgramCheckpoint:
    return ProgramCheckpoint(0, path)


def take(found: ProgramCheckpoint, step: int, directory: RunDirectory):
    return _take(OwnCheckpoint(step, found.path), directory)
