"""The checkpoints of one run of a program: those written since the run started, and those taken.

    program.checkpoints ──pattern, or a search below its folder──> those written since the run was created
    run directory       ──manifest──> those that were taken

The folder of the program may hold checkpoints of other runs, which are older and do not count.
"""

import glob
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trainyard.errors import CheckpointError, ConfigError
from trainyard.programs.checkpoints.found_checkpoint import CheckpointFormat
from trainyard.programs.checkpoints.program_checkpoints import (
    ASIDE,
    ProgramCheckpoint,
    ProgramCheckpoints,
    find_program_checkpoints,
    is_numbered,
    state_of,
)
from trainyard.programs.checkpoints.taken_checkpoint import restorable_path
from trainyard.run.atomic_files import sha256_of_file
from trainyard.run.checkpoint_manifest import MANIFEST_NAME, read_manifest
from trainyard.run.directory import RunDirectory
from trainyard.run.run_advice import checkpoint_advice

AUTO = "auto"
_FILES = (".pt", ".pth", ".ckpt", ".safetensors")
"""Endings of files that a search takes for checkpoints; other files need a pattern."""
_OF_PROGRAMS = frozenset(CheckpointFormat) - {CheckpointFormat.TRAINYARD}
_NEVER_CHECKPOINTS = frozenset(("__pycache__", "node_modules", "site-packages", "wandb", ASIDE))
_MOST_DEPTH = 6
_MOST_PLACES = 2_000
"""The most folders that a search reads."""


@dataclass(frozen=True)
class ResumePoint:
    """A checkpoint to resume from."""

    step: int
    path: Path
    """The folder or file for the program's argument."""
    state: str | None = None
    """A digest that changes if the program writes it again; None in the run directory."""
    parent_sha256: str | None = None
    """The digest of its manifest, if it is of another run."""


def find_run_checkpoints(
    directory: Path,
    pattern: str,
    *,
    since: float,
    ignored: Collection[Path],
    formats: Collection[CheckpointFormat] | None = None,
    quiet_seconds: float = 2.0,
) -> ProgramCheckpoints:
    """Return the checkpoints that the program has written since `since` (Unix seconds)."""
    patterns = [pattern] if pattern != AUTO else [f"{each}/*" for each in _places(directory, since, ignored)]
    complete: list[ProgramCheckpoint] = []
    partial: list[ProgramCheckpoint] = []
    unrecognized: list[Path] = []
    for each in patterns:
        found = find_program_checkpoints(directory, each, formats=formats, quiet_seconds=quiet_seconds)
        complete += [one for one in found.complete if written_at(one) >= since]
        partial += [one for one in found.partial if written_at(one) >= since]
        unrecognized += found.unrecognized if pattern != AUTO else ()
    folders = {one.path for one in (*complete, *partial)}

    def sort(found: list[ProgramCheckpoint]) -> tuple[ProgramCheckpoint, ...]:
        outer = [one for one in found if not folders.intersection(one.path.parents)]
        return tuple(sorted(outer, key=_order, reverse=True))

    return ProgramCheckpoints(sort(complete), sort(partial), tuple(unrecognized))


def numbered_of_before(
    directory: Path, pattern: str, *, before: float, ignored: Collection[Path]
) -> Path | None:
    """Return the newest complete folder `checkpoint-N` that is older than `before` (Unix seconds), if any.

    A program that resumes from the highest number in its folder would resume from it.
    """
    found = find_run_checkpoints(directory, pattern, since=0.0, ignored=ignored, quiet_seconds=0)
    older = [one for one in found.complete if is_numbered(one.path) and written_at(one) < before]
    return older[0].path if older else None


def _places(directory: Path, since: float, ignored: Collection[Path]) -> Iterator[Path]:
    """Yield the folders that hold something written since `since` that may be a checkpoint."""
    skipped = {path.absolute() for path in ignored}
    waiting, seen = [(directory, 0)], 0
    while waiting and seen < _MOST_PLACES:
        folder, depth = waiting.pop(0)
        seen += 1
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:  # removed meanwhile, or not readable
            continue
        if any(entry.name == "pyvenv.cfg" for entry in entries):
            continue
        holds = False
        for entry in entries:
            path = folder / entry.name
            with suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    hidden = entry.name.startswith(".") or entry.name in _NEVER_CHECKPOINTS
                    if hidden or path.absolute() in skipped:
                        continue
                    holds = holds or entry.stat().st_mtime >= since
                    if depth < _MOST_DEPTH:
                        waiting.append((path, depth + 1))
                elif entry.name.endswith(_FILES):
                    holds = holds or entry.stat().st_mtime >= since
        if holds:
            yield folder


def written_at(each: ProgramCheckpoint) -> float:
    """Return in Unix seconds when its newest file was written, or its folder created if it has none."""
    times = [file.modified for file in each.found.files]
    with suppress(OSError):  # it was removed
        return max(times) if times else each.path.stat().st_mtime
    return 0.0


def _order(each: ProgramCheckpoint) -> tuple[bool, int, float]:
    return each.step is not None, each.step or 0, written_at(each)


def resume_point(found: ProgramCheckpoint, known: Mapping[str, int], *, logged: int) -> ResumePoint:
    """Return the resume point of a checkpoint of the program.

    If it shows no step, it has the one in `known`, by its state, with which it was copied; if it was never
    copied it was written just before the end, and has `logged`, the last step on record.
    """
    state = state_of(found)
    step = known.get(state, logged) if found.step is None else found.step
    return ResumePoint(step, found.path, state)


def newest_taken(directory: RunDirectory) -> ResumePoint | None:
    """Return the newest checkpoint in the run directory that training can resume from, or None.

    It has a manifest. A checkpoint of an unknown format counts, because it may have an optimizer.
    """
    for step in reversed(directory.checkpoint_steps()):
        with suppress(CheckpointError, OSError):
            path = restorable_path(directory.checkpoint(step))
            name = glob.escape(path.name)
            found = find_program_checkpoints(path.parent, name, formats=_OF_PROGRAMS, quiet_seconds=0)
            if not any(each.found.resumable is False for each in found.complete):
                return ResumePoint(step, path)
    return None


def named_point(path: Path) -> ResumePoint:
    """Return the resume point of a checkpoint of another run. Raises ConfigError if it has no manifest."""
    try:
        manifest = read_manifest(path)
        return ResumePoint(
            manifest.step, restorable_path(path), parent_sha256=sha256_of_file(path / MANIFEST_NAME)
        )
    except (CheckpointError, OSError) as error:
        raise ConfigError(
            f"--resume {path} is not a checkpoint of a run ({error}); {checkpoint_advice(path)}. "
            "Name a checkpoint of the program itself in program.command."
        ) from None
