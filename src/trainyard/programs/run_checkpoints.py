"""The checkpoints of a run's program: those that it writes, the one it resumes from, and their copies.

    program.checkpoints ──pattern, or a search below its folder──> those written since the run was created
    the newest complete one ──copy──> run directory ──manifest──> those that were taken

The folder of the program may hold checkpoints of other runs, which are older and do not count.
"""

import glob
import logging
import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trainyard.config.kind import RunKind
from trainyard.errors import CheckpointError, ConfigError, TrainyardError
from trainyard.programs.checkpoints.found_checkpoint import CheckpointFormat
from trainyard.programs.checkpoints.program_checkpoints import (
    ASIDE,
    ProgramCheckpoint,
    ProgramCheckpoints,
    find_program_checkpoints,
    is_numbered,
    move_partial_aside,
    state_of,
)
from trainyard.programs.checkpoints.taken_checkpoint import restorable_path, take_checkpoint
from trainyard.programs.program import Program
from trainyard.programs.program_records import (
    TakenCheckpoint,
    has_other_rows,
    note_checkpoint,
    steps_of_states,
)
from trainyard.run.atomic_files import sha256_of_file
from trainyard.run.checkpoint_manifest import MANIFEST_NAME, read_manifest
from trainyard.run.checkpoint_retention import remove_old_checkpoints
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import read_run
from trainyard.run.records import read_rows
from trainyard.run.run_advice import checkpoint_advice

LOG = logging.getLogger(__name__)
# How long the files of a checkpoint without a mark of its end must stay as they are.
_QUIET_SECONDS = 2.0
AUTO = "auto"
LOCAL_STORE = "trainyard-store"
"""The folder of the store that `trainyard run` uses where none is named."""
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


def own_folders(directory: RunDirectory) -> tuple[Path, ...]:
    """Return our own folders, in which checkpoints and metrics of the program are not searched."""
    return directory.path, Path(LOCAL_STORE).absolute()


class RunCheckpoints:
    """Finds the checkpoints of a program in its folder, and copies the newest into the run directory."""

    def __init__(self, directory: RunDirectory, program: Program, *, keep_last: int) -> None:
        self._directory, self._program, self._keep_last = directory, program, keep_last
        self._is_planned = program.kind is RunKind.PLANNED
        self._state = ""
        """The state of the checkpoint that was copied last."""
        self._steps: dict[str, int] = {}
        """State of a checkpoint that shows no step -> the step that it was given."""
        self._written: dict[str, float] = {}
        """State of such a checkpoint -> when it was written, in Unix seconds."""
        self._searched = 0.0
        self.taken: TakenCheckpoint | None = None
        """The newest copy."""
        self.taken_format: CheckpointFormat | None = None
        self.skipped: tuple[str, ...] = ()
        """Why newer checkpoints were not copied, a line each."""

    @property
    def created(self) -> float:
        """When the run was created, in Unix seconds; checkpoints that are older are of another run.

        0 for a planned program, whose folder has no checkpoints of other runs.
        """
        with suppress(OSError, TrainyardError):
            if not self._is_planned:
                return float(read_run(self._directory.run_file).get("created", 0.0)) - 1.0
        return 0.0

    def find(
        self, *, since: float | None = None, quiet_seconds: float = _QUIET_SECONDS
    ) -> ProgramCheckpoints:
        """Return the checkpoints that the program has written since then, by default in this run."""
        since = self.created if since is None else since
        place, pattern = self._program.directory, self._program.checkpoints
        is_searched = pattern == AUTO
        places = _places(place, since, own_folders(self._directory)) if is_searched else ()
        parts = [
            find_program_checkpoints(place, each, formats=self._program.formats, quiet_seconds=quiet_seconds)
            for each in ([f"{folder}/*" for folder in places] if is_searched else [pattern])
        ]
        complete = [one for part in parts for one in part.complete if written_at(one) >= since]
        partial = [one for part in parts for one in part.partial if written_at(one) >= since]
        folders = {one.path for one in (*complete, *partial)}

        def sort(found: list[ProgramCheckpoint]) -> tuple[ProgramCheckpoint, ...]:
            outer = [one for one in found if not folders.intersection(one.path.parents)]
            return tuple(sorted(outer, key=_order, reverse=True))

        unrecognized = () if is_searched else parts[0].unrecognized
        return ProgramCheckpoints(sort(complete), sort(partial), unrecognized)

    def move_partial(self) -> None:
        """Move this run's incomplete checkpoints aside, for a program that picks the newest one itself.

        A program with `program.resume` gets the path of a complete one. Checkpoints of other runs stay.
        """
        picks_itself = not self._program.resume and not self._is_planned
        if picks_itself and self._directory.run_file.is_file():
            for line in move_partial_aside(self.find(quiet_seconds=0)):
                LOG.warning("%s", line)

    def find_resume_point(self, resume: str) -> ResumePoint | None:
        """Return the checkpoint to resume from: the newest one for `auto`, or the one that is named.

        A run that began from the one that is named resumes from its own newest one, if it has any.
        """
        if resume == "none":
            return None
        if resume == "auto":
            return self._newest()
        named, run = named_point(Path(resume)), self._directory.run_file
        parent = read_run(run).get("parent", {}) if run.is_file() else {}
        began_there = parent.get("manifest_sha256") == named.parent_sha256
        return (self._newest() if began_there else None) or named

    def _newest(self) -> ResumePoint | None:
        """Return the newest checkpoint of the run; None without any."""
        points = []
        if self._is_planned or self._directory.run_file.is_file():
            found = self.find()
            for note in (*found.notes(), *(() if self._is_planned else found.resume_notes())):
                LOG.warning("%s", note)
            if (own := found.newest if self._is_planned else found.newest_resumable) is not None:
                points.append(self._point_of(own))
        # A planned program looks only into its own folder.
        if not self._is_planned and (taken := newest_taken(self._directory)) is not None:
            points.append(taken)
        return max(points, key=lambda point: point.step, default=None)

    def _point_of(self, checkpoint: ProgramCheckpoint) -> ResumePoint:
        """Return the resume point of a checkpoint of the program.

        If it shows no step, it has the one with which it was copied in this state; if it was never copied it
        was written just before the end, and has the last step on record.
        """
        state, step = state_of(checkpoint), checkpoint.step
        if step is None and (step := steps_of_states(self._directory).get(state)) is None:
            rows = read_rows(self._directory.metrics_file)
            step = int(rows[-1]["step"]) if rows else 0
        return ResumePoint(step, checkpoint.path, state)

    def resume_from(self, found: ResumePoint | None) -> None:
        """Remember the steps that earlier attempts gave to checkpoints, and that of `found`."""
        self._steps = steps_of_states(self._directory)
        if found is not None and found.state is not None:
            self._steps.setdefault(found.state, found.step)

    def warn_of_other_runs(self) -> None:
        """Warn of an earlier run's checkpoint, if a program that picks its checkpoint itself may take it."""
        found, created = self.find(since=0.0, quiet_seconds=0), self.created
        older = [one for one in found.complete if is_numbered(one.path) and written_at(one) < created]
        if older:
            LOG.warning(
                "%s is of an earlier run; a program that picks its newest checkpoint itself resumes from it. "
                "Remove it, or give each run an empty folder",
                older[0].path,
            )

    def take(self, step_at: Callable[[float], int], *, is_over: bool = False) -> None:
        """Copy the newest complete checkpoint into the run directory, unless that was done, and record it.

        A checkpoint that names no step is of the one that `step_at` returns for the time of its writing. It
        keeps it until it is written again. With `is_over` the program writes no more.
        """
        before, self._searched = self._searched, time.time()
        found = self.find(quiet_seconds=0 if is_over else _QUIET_SECONDS)
        self.skipped = found.rejections()
        newest = found.newest
        if newest is None or ((state := state_of(newest)) == self._state and not is_over):
            return
        if has_other_rows(self._directory, state):
            LOG.error("%s: not copied, because its steps were trained again after it was saved", newest.path)
            return
        if newest.step is None and state not in self._steps:
            if not (shown := step_at(self._time_of(newest, state, before))):
                return
            self._steps[state] = shown
        given, run_id = self._steps.get(state), str(read_run(self._directory.run_file)["run_id"])
        for each in found.complete:  # an older one without a step is skipped
            step = given if each is newest else None
            try:
                taken = take_checkpoint(each, self._directory, run_id, step=step)
            except (OSError, CheckpointError) as error:
                LOG.error("%s: the checkpoint was not taken into the run directory (%s)", each.path, error)
                continue
            self.taken, self._state, self.taken_format = taken, state, newest.found.format
            note_checkpoint(self._directory, taken, state if taken.step == given else None)
            remove_old_checkpoints(self._directory, self._keep_last, newest=taken.step)
            return

    def _time_of(self, checkpoint: ProgramCheckpoint, state: str, before: float) -> float:
        """Return when a checkpoint in this state was written; `before` is the time of the last search."""
        if state not in self._written:
            written = written_at(checkpoint)
            # A file server's clock may be slow, or fast: the search before would have found it.
            is_wrong = bool(before) and not before - _QUIET_SECONDS <= written <= self._searched
            self._written[state] = self._searched if is_wrong else written
        return self._written[state]


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
