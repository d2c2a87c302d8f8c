"""The checkpoints of a run's program: those that it writes, the one it resumes from, and their copies.

    program.checkpoints ──pattern, or output/, or a search below its folder──> those that the run has written
    the newest complete one ──copy──> run directory ──manifest──> those that were taken

The folder of the program may hold checkpoints of other runs, and given weights. Those that were there before
the run do not count (`own_files`), and none counts whose step lies beyond the rows.
"""

import glob
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
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
from trainyard.programs.checkpoints.taken_checkpoint import (
    TakenCheckpoint,
    restorable_path,
    take_checkpoint,
    tensors_of,
)
from trainyard.programs.checkpoints.tensor_facts import Tensors
from trainyard.programs.own_files import AUTO, OwnFiles, in_run
from trainyard.programs.program import Program
from trainyard.programs.program_events import WrittenCheckpoint
from trainyard.programs.program_records import (
    Reach,
    has_other_rows,
    note_checkpoint,
    steps_of_states,
    trains_again,
)
from trainyard.run.atomic_files import sha256_of_file
from trainyard.run.checkpoint_manifest import MANIFEST_NAME, read_manifest
from trainyard.run.checkpoint_retention import remove_old_checkpoints
from trainyard.run.directory import RunDirectory, is_run_directory
from trainyard.run.identity import read_run
from trainyard.run.records import read_rows
from trainyard.run.run_advice import checkpoint_advice

LOG = logging.getLogger(__name__)
# How long the files of a checkpoint without a mark of its end must stay as they are.
_QUIET_SECONDS = 2.0
LOCAL_STORE = "trainyard-store"
"""The folder of the store that `trainyard run` uses where none is named."""
_FILES = (".pt", ".pth", ".ckpt", ".safetensors")
"""Endings of files that a search takes for checkpoints; other files need a pattern."""
_OF_PROGRAMS = frozenset(CheckpointFormat) - {CheckpointFormat.TRAINYARD}
_NEVER_CHECKPOINTS = frozenset(("__pycache__", "node_modules", "site-packages", "wandb", ASIDE))
_WEIGHTS = (*_FILES, ".bin", ".distcp", ".pkl")
_FROM_NAME = (CheckpointFormat.TORCH_SAVE, CheckpointFormat.SAFETENSORS)
"""Formats whose step is only a number in a name."""
_MOST_DEPTH = 6
_MOST_PLACES, _MOST_SECONDS = (2_000, 20_000), (2.0, 60.0)
"""The most folders that a search reads, and for how long: while the program trains, and at its end."""
_MANY_FOLDERS = 100
"""A folder with so many others in it is one of data; they are searched last."""


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

    def __init__(
        self, directory: RunDirectory, program: Program, *, keep_last: int, own: OwnFiles | None = None
    ) -> None:
        """`own`: which files the run has written; None counts all, as for a planned program."""
        self._directory, self._program, self._keep_last = directory, program, keep_last
        self._is_planned = program.kind is RunKind.PLANNED
        self.own = own
        self.declared: Mapping[Path, WrittenCheckpoint] = {}
        """The checkpoints that the program has reported as complete, by their path."""
        self._searched = 0.0
        self._state: str | None = None
        self._steps: dict[str, int] = {}
        """The step of each checkpoint that shows none, by its state."""
        self._written: dict[str, float] = {}
        self.taken: TakenCheckpoint | None = None
        self.taken_format: CheckpointFormat | None = None
        self.skipped: tuple[str, ...] = ()
        """Why newer checkpoints were not copied, a line each."""
        self.first: Tensors | None = None
        """The tensors of the first save, if it was not copied."""
        self._count = 0
        """The number of copies."""
        self.beyond: str | None = None
        """Why the step of the checkpoint that was taken cannot be right; None if it can."""

    @property
    def created(self) -> float:
        """When the run was created, in Unix seconds; 0 for a planned program."""
        with suppress(OSError, TrainyardError):
            if not self._is_planned:
                return float(read_run(self._directory.run_file).get("created", 0.0)) - 1.0
        return 0.0

    def find(self, *, quiet_seconds: float = _QUIET_SECONDS, is_over: bool = False) -> ProgramCheckpoints:
        """Return the checkpoints that the program has written in this run; with `is_over` it has ended.

        Those in the run directory come before a search: only this program knows it.
        """
        program, notes = self._program, list[str]()
        look = partial(
            find_program_checkpoints, program.directory, formats=program.formats, quiet_seconds=quiet_seconds
        )
        parts = [look(glob.escape(str(path))) for path in self.declared]
        if program.checkpoints != AUTO:
            parts.append(look(in_run(program.checkpoints, glob.escape(str(self._directory.path)))))
            return self._own_of(parts, unrecognized=parts[-1].unrecognized)
        found = ProgramCheckpoints(())
        ours = self._directory
        for folder, ignored in (
            (ours.path, ours.own_paths),
            (program.searched, own_folders(ours)),
        ):
            if folder is not None and not found.complete:
                folders, read = _search(folder, self._has_written, ignored, is_over=is_over)
                parts += [look(f"{glob.escape(str(each))}/*") for each in folders]
                if read is not None:
                    notes.append(
                        f"the search for checkpoints in {folder} was cut after {read:,} folders: name them "
                        "in program.checkpoints"
                    )
                found = self._own_of(parts, notes=notes)
        if program.searched is None and not found.complete:
            note = f"only {ours.path} was searched, which program.command names: set program.checkpoints"
            return replace(found, set_aside=(*found.set_aside, note))
        return found

    def _own_of(
        self,
        parts: Iterable[ProgramCheckpoints],
        *,
        unrecognized: tuple[Path, ...] = (),
        notes: Iterable[str] = (),
    ) -> ProgramCheckpoints:
        """Return what the run has written of several lists, the newest first."""
        parts = list(parts)
        complete = {os.path.realpath(one.path): one for part in parts for one in part.complete}
        partial = {os.path.realpath(one.path): one for part in parts for one in part.partial}
        own = [self._as_declared(one) for one in complete.values() if self._earlier_file(one) is None]
        begun = [one for one in partial.values() if any(map(self._has_written, _paths(one)))]
        folders = {one.path for one in (*own, *begun)}
        # A file of a checkpoint is none by itself, even if another file there is of an earlier run.
        any_folders = {one.path for one in (*complete.values(), *partial.values())}

        def sort(found: list[ProgramCheckpoint]) -> tuple[ProgramCheckpoint, ...]:
            outer = [one for one in found if not folders.intersection(one.path.parents)]
            outer = [one for one in outer if one.path.is_dir() or one.path.parent not in any_folders]
            return tuple(sorted(outer, key=_order, reverse=True))

        if not own and self._program.checkpoints != AUTO:
            earlier = [file for one in complete.values() if (file := self._earlier_file(one)) is not None]
            notes = (*notes, *(f"{file} was there before this run started" for file in earlier[:1]))
        return ProgramCheckpoints(sort(own), sort(begun), unrecognized, tuple(notes))

    def _has_written(self, path: Path) -> bool:
        return self.own is None or self.own.has_written(path)

    def _earlier_file(self, one: ProgramCheckpoint) -> Path | None:
        """Return a file of weights that was there before the run; None if the run has written all of them."""
        if self._declaration(one) is not None:
            return None
        weights = [path for path in _paths(one) if path.name.endswith(_WEIGHTS)] or _paths(one)
        return next((path for path in weights if not self._has_written(path)), None)

    def _declaration(self, one: ProgramCheckpoint) -> WrittenCheckpoint | None:
        """Return the report of the program that the checkpoint is complete."""
        return self.declared.get(Path(os.path.realpath(one.path)))

    def _as_declared(self, one: ProgramCheckpoint) -> ProgramCheckpoint:
        """Return the checkpoint with the step that the program has reported, unless it was written since."""
        event = self._declaration(one)
        if event is None or (event.time is not None and written_at(one) > event.time + _QUIET_SECONDS):
            return one
        return replace(one, found=replace(one.found, step=event.step))

    def _until(
        self, found: ProgramCheckpoints, reach: int | None, *, is_over: bool = False
    ) -> ProgramCheckpoints:
        """Return `found` without checkpoints whose step lies beyond `reach`, the last step with a row.

        Given weights may have any number in their name. Without a row, such a number counts only at the end.
        """
        beyond = [one for one in found.complete if self._is_beyond(one, reach, is_over=is_over)]
        within = tuple(one for one in found.complete if one not in beyond)
        if not beyond or reach is None:
            return replace(found, complete=within)
        newest = beyond[0]
        note = (
            f"{newest.path} is of step {newest.step:,}, beyond the rows of this run, which show no "
            f"step beyond {reach:,}: report its step with trainyard.checkpoint(path, step=N), or name it by "
            "its step"
        )
        if is_over and not within and self.taken is None and self._is_named(newest):
            self.beyond = note
            return found
        return replace(found, complete=within, set_aside=(*found.set_aside, note))

    def _is_beyond(self, one: ProgramCheckpoint, reach: int | None, *, is_over: bool) -> bool:
        if one.step is None or self._is_planned:
            return False
        if reach is None:
            is_number = one.found.format in _FROM_NAME and self._declaration(one) is None
            return is_number and not is_over
        return one.step > reach

    def _is_named(self, one: ProgramCheckpoint) -> bool:
        """Return whether it was not found by a search, so that it is certainly a checkpoint of the run."""
        named = self._program.checkpoints != AUTO or self._declaration(one) is not None
        return named or one.path.is_relative_to(self._directory.path)

    def move_partial(self) -> None:
        """Move this run's incomplete checkpoints aside, for a program that picks the newest one itself.

        One that gets a path gets that of a complete one. Checkpoints of other runs stay.
        """
        if self._program.picks_checkpoint and not self._is_planned and self._directory.run_file.is_file():
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
            found = self._until(self.find(), self._reach_on_record())
            for note in (*found.notes(), *(() if self._is_planned else found.resume_notes())):
                LOG.warning("%s", note)
            if (own := self._newest_undamaged(found)) is not None:
                points.append(self._point_of(own))
        # A planned program looks only into its own folder.
        if not self._is_planned and (taken := newest_taken(self._directory)) is not None:
            points.append(taken)
        return max(points, key=lambda point: point.step, default=None)

    def _newest_undamaged(self, found: ProgramCheckpoints) -> ProgramCheckpoint | None:
        """Return the newest checkpoint to resume from whose files are not damaged inside."""
        for each in found.complete:
            if self._is_planned or each.found.resumable is not False:
                try:
                    tensors_of(each)
                except (CheckpointError, OSError) as error:
                    LOG.warning("%s: training does not resume from it", error)
                else:
                    return each
        return None

    def _reach_on_record(self) -> int | None:
        """Return the last step with a row, and a usual distance more; None without rows."""
        reach = Reach()
        for row in read_rows(self._directory.metrics_file):
            reach.note(row)
        return reach.step

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
        every = RunCheckpoints(self._directory, self._program, keep_last=self._keep_last)
        complete = every.find(quiet_seconds=0).complete
        older = [one for one in complete if is_numbered(one.path) and self._earlier_file(one) is not None]
        if older:
            LOG.warning(
                "%s is of an earlier run; a program that picks its newest checkpoint itself resumes from it. "
                "Remove it, or give each run an empty folder",
                older[0].path,
            )

    def take(
        self, step_at: Callable[[float], int], *, reach: int | None = None, is_over: bool = False
    ) -> None:
        """Copy the newest complete checkpoint into the run directory, unless that was done, and record it.

        A checkpoint that names no step is of the one that `step_at` returns for the time of its writing. It
        keeps it until it is written again. None beyond `reach` is taken, the step up to which rows show that
        the run has come. With `is_over` the program writes no more.
        """
        before, self._searched = self._searched, time.time()
        found = self.find(quiet_seconds=0 if is_over else _QUIET_SECONDS, is_over=is_over)
        found = self._until(found, reach, is_over=is_over)
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
                self.skipped = (*self.skipped, f"{each.path.name} was not taken: {error}")
                continue
            self.taken, self._state, self.taken_format = taken, state, newest.found.format
            note_checkpoint(self._directory, taken, state if taken.step == given else None)
            remove_old_checkpoints(self._directory, self._keep_last, newest=taken.step)
            if is_over and not self._count:
                self.first = _first_save(found, taken.step, step_at)
            self._count += 1
            return

    def _time_of(self, checkpoint: ProgramCheckpoint, state: str, before: float) -> float:
        """Return when a checkpoint in this state was written; `before` is the time of the last search."""
        if state not in self._written:
            written = written_at(checkpoint)
            # A file server's clock may be slow, or fast: the search before would have found it.
            is_wrong = bool(before) and not before - _QUIET_SECONDS <= written <= self._searched
            self._written[state] = self._searched if is_wrong else written
        return self._written[state]


def _search(
    directory: Path, is_own: Callable[[Path], bool], ignored: Collection[Path], *, is_over: bool
) -> tuple[list[Path], int | None]:
    """Return the folders with something of this run that may be a checkpoint, and where the search was cut.

    That is the number of folders that were read; None if there are no others. Directories of runs are left
    out, and folders of many others, such as the classes of ImageNet, come last.
    """
    skipped, found, seen = {path.absolute() for path in ignored}, list[Path](), 0
    waiting, last = deque([(directory, 0)]), deque[tuple[Path, int]]()
    most, until = _MOST_PLACES[is_over], time.monotonic() + _MOST_SECONDS[is_over]
    while (waiting or last) and seen < most and time.monotonic() < until:
        folder, depth = (waiting or last).popleft()
        seen += 1
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:  # removed meanwhile, or not readable
            continue
        if any(entry.name == "pyvenv.cfg" for entry in entries) or (depth and is_run_directory(folder)):
            continue
        folders, holds = list[Path](), False
        for entry in entries:
            path = folder / entry.name
            if entry.is_dir(follow_symlinks=False):
                hidden = entry.name.startswith(".") or entry.name in _NEVER_CHECKPOINTS
                if not hidden and path.absolute() not in skipped:
                    folders.append(path)
            elif entry.name.endswith(_FILES):
                holds = holds or is_own(path)
        if holds or any(map(is_own, folders)):
            # Files that are written again in place do not change the folder of their checkpoint.
            found += [folder.parent, folder] if holds and depth else [folder]
        if depth < _MOST_DEPTH:
            (last if len(folders) > _MANY_FOLDERS else waiting).extend((each, depth + 1) for each in folders)
    return list(dict.fromkeys(found)), seen if waiting or last else None


def _first_save(found: ProgramCheckpoints, step: int, step_at: Callable[[float], int]) -> Tensors | None:
    """Return the tensors of the first checkpoint that is still there, if it is of a step before `step`.

    A program that ends within seconds has saved several times before one was copied.
    """
    first = min(found.complete, key=written_at)
    shown = first.step if first.step is not None else step_at(written_at(first))
    with suppress(CheckpointError, OSError):
        return tensors_of(first) if shown < step else None
    return None


def _paths(each: ProgramCheckpoint) -> list[Path]:
    """Return its files; its own path if it has none."""
    return [each.base / name for name in each.files()] or [each.path]


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


def copy_of(directory: RunDirectory, found: ResumePoint | None) -> TakenCheckpoint | None:
    """Return the run's own copy of the checkpoint that it resumed from; None if that is not of this run.

    A program that was killed after its last save has nothing left to save when it starts again. One that
    trained its steps again has other weights than that copy.
    """
    if found is None or found.parent_sha256 is not None or trains_again(directory):
        return None
    with suppress(CheckpointError, OSError):
        manifest = directory.checkpoint(found.step) / MANIFEST_NAME
        return TakenCheckpoint(read_manifest(manifest.parent).step, sha256_of_file(manifest))
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
