"""The checkpoints of a run's program: those that it writes, the one it resumes from, and their copies.

    program.checkpoints names it, the program reports it, the observer sees it saved, or a search finds it
      ──written by this run, below no data──> its checkpoints
      ──its format shows its end, its save was reported, or nobody writes it any more──> the complete ones
      ──the newest is copied, with a manifest──> those that were taken

The step of a checkpoint has a source: the report of the program, the count of the observer, what its files or
its format say. One that none of them knows is stored under the last step on record when it was saved, and
that step is guessed: it proves nothing.
"""

import fnmatch
import glob
import itertools
import logging
import os
import re
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from trainyard.errors import CheckpointError, ConfigError
from trainyard.programs.checkpoints.checkpoint_formats import CheckpointFormat, step_inside
from trainyard.programs.checkpoints.program_checkpoints import (
    ASIDE,
    WEIGHTS,
    ProgramCheckpoint,
    ProgramCheckpoints,
    UnitFinder,
    inode_of,
    is_numbered,
    move_partial_aside,
    newest_first,
    state_of,
)
from trainyard.programs.checkpoints.taken_checkpoint import (
    TakenCheckpoint,
    restorable_path,
    take_checkpoint,
    tensors_of,
)
from trainyard.programs.checkpoints.tensor_facts import Tensors, relation_of_files
from trainyard.programs.metric_rows import LastRow, row_fault
from trainyard.programs.own_files import AUTO, OwnFiles, in_run, walk_folders
from trainyard.programs.program import Program
from trainyard.programs.program_events import WrittenCheckpoint
from trainyard.programs.program_records import has_other_rows, note_checkpoint, steps_of_states, trains_again
from trainyard.programs.sources import Source
from trainyard.run.atomic_files import sha256_of_file
from trainyard.run.checkpoint_manifest import MANIFEST_NAME, read_manifest
from trainyard.run.checkpoint_retention import remove_old_checkpoints
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import read_run
from trainyard.run.records import read_rows
from trainyard.run.run_advice import checkpoint_advice

LOG = logging.getLogger(__name__)
_NEVER_CHECKPOINTS = frozenset(("wandb", ASIDE))
_NO_NEWS = re.compile(r"in progress|open for writing|that this run has written$")
"""In notes that may be gone at the next search."""
_MOST_DEPTH = 6
_MOST_PLACES, _MOST_SECONDS = (2_000, 20_000), (2.0, 60.0)
"""The most folders that a search reads, and for how long: while the program trains, and at its end."""
_MOST_NEAR = 5
"""The most names in a note."""
_BESIDE_TRAINING = ("other", "none")
"""The relations of saves that count only without others: predictions, or the history of losses."""


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
    source: Source = Source.GUESSED
    """The source of the step; unknown for one in the run directory."""
    has_nan: bool = False
    """Whether its tensors have NaN: one without comes first, because training does not recover from NaN."""


class RunCheckpoints:
    """Finds the checkpoints of a program in its folder, and copies the newest into the run directory."""

    def __init__(
        self, directory: RunDirectory, program: Program, *, keep_last: int, own: OwnFiles | None = None
    ) -> None:
        self._directory, self._program, self._keep_last = directory, program, keep_last
        self.own = own or OwnFiles()
        """Which files the run has written: each one, until it is known."""
        self.saved: Collection[WrittenCheckpoint] = ()
        """The saves that the program has reported or the observer has seen, in their order."""
        self.counts_epochs = False
        """Whether the steps of the run are epochs."""
        self.optimizer_shift: int | None = 0
        """What is added to the steps that the observer counts to get those of the run; None: another unit."""
        self.excerpts: Collection[tuple[bytes, bytes]] | None = None
        """Bytes of the trained parameters, before and after; None if nothing of torch was trained."""
        self.being_written: Callable[[], frozenset[tuple[int, int]] | None] = lambda: None
        """Returns device and inode of the files that processes of the run have open for writing; None if
        that cannot be seen."""
        self._finder = UnitFinder(lambda path: self.own.has_written(path))
        self._seen: dict[Path, str] = {}
        """The state of each checkpoint at the last search."""
        self._told: set[str] = set()
        self._state: str | None = None
        self._known: dict[str, tuple[int, Source]] = {}
        """The step of each checkpoint that was copied, with its source, by its state."""
        self._on_record: dict[str, int] = {}
        """The last step on record when a checkpoint without a step was found, by its state."""
        self._kept: dict[int, str] = {}
        self.taken: TakenCheckpoint | None = None
        self.saver: int | None = None
        """The process that has saved it, if it was seen to train."""
        self.skipped: tuple[str, ...] = ()
        """Why newer checkpoints were not copied, a line each."""
        self.is_waiting = False
        """Whether a checkpoint is not complete yet, and will be if it stays as it is."""

    def find(self, *, is_over: bool = False) -> ProgramCheckpoints:
        """Return the checkpoints that the program has written in this run; with `is_over` it has ended.

        Those that it names itself come before a search, and those in the run directory before others: only
        this program knows it. No step is guessed here.
        """
        program, ours, notes = self._program, self._directory, list[str]()
        found = self._finder.saved(self.saved, program.directory)
        if program.checkpoints != AUTO:
            pattern = in_run(program.checkpoints, glob.escape(str(ours.path)))
            found = [each for each in found if _is_declared(each) or self._is_in(each, pattern)]
            known = {each.path for each in found}
            named = self._finder.named(program.directory, pattern)
            found += [each for each in named if each.path not in known]
            if not found:
                notes.append(self._nothing_matches(pattern))
        elif not found:
            for folder, ignored in ((ours.path, ours.own_paths), (program.searched, (ours.path,))):
                if folder is not None and not found:
                    files, read = _search(folder, self.own.has_written, ignored, is_over=is_over)
                    found = self._finder.searched(files, folder)
                    if read is not None:
                        notes.append(
                            f"the search for checkpoints in {folder} was cut after {read:,} folders: name "
                            "them in program.checkpoints"
                        )
            if program.searched is None and not found:
                why = "which program.command names: set program.checkpoints"
                notes.append(f"only {ours.path} was searched, {why}")
        found = [each for each in found if not self._is_data(each)]
        of_training = [each for each in found if each.weights not in _BESIDE_TRAINING]
        return newest_first(of_training or found, notes)

    def _is_in(self, one: ProgramCheckpoint, pattern: str) -> bool:
        """Return whether a save lies in what a pattern names; not every save is a checkpoint."""
        directory = self._program.directory
        matches = glob.glob(pattern, root_dir=directory, recursive=True)  # noqa: PTH207  # may be absolute
        places = [Path(os.path.realpath(directory / match)) for match in matches]
        files = [Path(os.path.realpath(one.base / name)) for name in one.files()]
        return any(file.is_relative_to(place) for file in files for place in places)

    def _is_data(self, one: ProgramCheckpoint) -> bool:
        """Return whether a checkpoint lies in program.data; one that is declared never does."""
        if _is_declared(one):
            return False
        directory, path = self._program.directory, str(one.path)
        data = (Path(each).expanduser() for each in self._program.data or ())
        patterns = [os.path.normpath(directory / each) for each in data]
        return any(fnmatch.fnmatch(path, each) or one.path.is_relative_to(each) for each in patterns)

    def _nothing_matches(self, pattern: str) -> str:
        """Return what program.checkpoints does not name, and what the program was seen to save instead."""
        directory = self._program.directory
        is_there = any(glob.iglob(pattern, root_dir=directory, recursive=True))  # noqa: PTH207  # may be absolute
        why = ": it was there before" if is_there else ""
        saved = dict.fromkeys(os.path.relpath(each.path, directory) for each in self.saved)
        more = f"; it has saved {', '.join(list(saved)[-_MOST_NEAR:])}" if saved else ""
        return f"program.checkpoints: {pattern} names nothing that this run has written{why}{more}"

    def _judge(
        self,
        step_before: Callable[[float], int],
        end: "Ending | None",
        last_sign: float,
        reach: int | None = None,
    ) -> ProgramCheckpoints:
        """Return the checkpoints with their steps; those without a sign of their end are partial.

        Of those that a search found none is returned whose step lies beyond `reach`: these are given weights.
        """
        found, before = self.find(is_over=end is not None), self._seen
        self._seen, self.is_waiting, judged = {}, False, list[ProgramCheckpoint]()
        for each in (*found.complete, *found.partial):
            each = self._with_step(each, step_before, end.last if end and end.is_well else None)
            why = each.found.is_complete and self._unfinished(each, before.get(each.path), end, last_sign)
            judged.append(each.partial(why) if why else each)
        found = newest_first(judged, found.set_aside)
        if reach is None:
            return found
        beyond = [each for each in found.complete if not each.is_named and (each.step or 0) > reach]
        notes = [
            f"{each.path} is of step {each.step:,}, beyond the rows of this run, which show no step beyond "
            f"{reach:,}: report its step with trainyard.checkpoint(path, step=N)"
            for each in beyond[:1]
        ]
        kept = (each for each in (*found.complete, *found.partial) if each not in beyond)
        return newest_first(kept, (*found.set_aside, *notes))

    def _unfinished(
        self, each: ProgramCheckpoint, before: str | None, end: "Ending | None", last_sign: float
    ) -> str | None:
        """Return why a checkpoint may not be complete, whose files are all there and not cut off.

        Files whose format has none that is written last are complete if their save was reported, or if nobody
        has them open for writing, they stay as they are, and the program did something later. A writer that
        was killed has nothing open, either.
        """
        state = self._seen[each.path] = state_of(each)
        is_known = state == self._state or state in self._known
        if not each.found.needs_quiet or _is_declared(each) or is_known or (end and end.is_well):
            return None
        if end is not None:
            is_one = each.is_file or each.found.format is not CheckpointFormat.FILES
            shows_end = each.event is not None or all(file.whole for file in each.found.files)
            if each.written_at < last_sign or (is_one and not each.lacks and shows_end):
                return None
            lacks = f": {each.lacks} was not saved again" if each.lacks else ", and nothing shows its end"
            return f"the program was ended while it may have been writing{lacks}"
        if before != state or (each.event is None and each.written_at > last_sign):
            self.is_waiting = True
            return "it may be in progress: it has changed, or the program has done nothing since"
        if (open_files := self.being_written()) is None:
            self._warn_once(
                f"{each.path} counts as complete because it has not changed, which is a guess; whether a "
                "process has it open cannot be seen here: report each save with trainyard.checkpoint"
            )
        is_open = any(inode_of(path) in (open_files or ()) for path in each.paths)
        return "a process has it open for writing" if is_open else None

    def _with_step(
        self, one: ProgramCheckpoint, step_before: Callable[[float], int], last: LastRow | None
    ) -> ProgramCheckpoint:
        """Return a checkpoint with its step by the best source that has one; at last it is guessed.

        `last` is the last row of a program that ended well: a checkpoint that the configuration names, and
        that was written after it, is of that step.
        """
        event, step, source = one.event, one.step, one.found.source
        if event is not None and event.source is Source.DECLARED:
            step, source = event.step, Source.DECLARED
        elif event is not None and event.step is not None and self.optimizer_shift is not None:
            step, source = event.step + self.optimizer_shift, Source.OBSERVED
        elif self.counts_epochs:  # the steps inside are of another unit
            step = step_inside(one.found.files, ("epoch",))
        if step is None:
            state = state_of(one)
            step, source = self._known.get(state, (None, Source.GUESSED))
            has_clock = one.is_named and self.own.has_clock_of_machine(one.path)
            if not source.proves and last is not None and has_clock and one.written_at >= last.time:
                step, source = last.step, last.source
            elif not source.proves:
                before = step_before(one.written_at) if step is None else step
                step = self._on_record.setdefault(state, before)
        return replace(one, found=replace(one.found, step=step, source=source))

    def move_partial(self) -> None:
        """Move this run's incomplete checkpoints aside, for a program that picks the newest one itself.

        One that gets a path gets that of a complete one. Checkpoints of other runs stay.
        """
        if self._program.picks_checkpoint and self._directory.run_file.is_file():
            for line in move_partial_aside(self.find()):
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
        """Return the newest checkpoint of the run without NaN, or else with NaN; None without any."""
        rows, points = read_rows(self._directory.metrics_file), list[ResumePoint]()
        if self._directory.run_file.is_file():
            # Copies are in the run directory; of the program's files only those count that show their end.
            steps = [(row.get("time", 0.0), int(row["step"])) for row in rows if "step" in row]

            def step_before(moment: float) -> int:
                return max((step for time, step in steps if time <= moment), default=0)

            self._known = steps_of_states(self._directory)
            found = self._judge(step_before, Ending(is_well=False), 0.0)
            for note in found.rejections():
                LOG.warning("%s", note)
            points += self._undamaged(found)
        if not (points and self._program.picks_checkpoint):  # such a program does not see the copies
            points += taken_points(self._directory)
        newest = max(points, key=lambda point: (not point.has_nan, point.step), default=None)
        if newest is not None and newest.has_nan and any(map(row_fault, rows)):
            # The training had diverged before its first save. NaN without such a row may belong to a model.
            text = "%s has NaN in its tensors, as each checkpoint has: training begins anew"
            LOG.warning(text, newest.path)
            return None
        if newest is not None and (spoiled := [each for each in points if each.step > newest.step]):
            text = "%s has NaN in its tensors: training resumes from the checkpoint of step %s before it"
            LOG.warning(text, spoiled[0].path, f"{newest.step:,}")
        return newest

    def _undamaged(self, found: ProgramCheckpoints) -> Iterator[ResumePoint]:
        """Yield the checkpoints whose files are not damaged inside, up to the newest one without NaN."""
        for each in found.complete:
            if each.found.is_weights_alone:
                LOG.warning(
                    "%s is complete, but holds weights alone: training does not resume from it, because the "
                    "optimizer would start from zero",
                    each.path,
                )
                continue
            try:
                has_nan = bool(tensors_of(each).nan)
            except (CheckpointError, OSError) as error:
                LOG.warning("%s: training does not resume from it", error)
                continue
            step, state, source = each.step or 0, state_of(each), each.found.source
            yield ResumePoint(step, each.path, state, source=source, has_nan=has_nan)
            if not has_nan:
                return

    def resume_from(self, found: ResumePoint | None) -> None:
        """Remember the steps that earlier attempts gave to checkpoints, and that of `found`."""
        self._known = steps_of_states(self._directory)
        self._kept = {step: state for state, (step, _) in self._known.items()}
        if found is not None and found.state is not None:
            self._known.setdefault(found.state, (found.step, found.source))

    def warn_of_other_runs(self) -> None:
        """Warn of an earlier run's checkpoint, if a program that picks its checkpoint itself may take it."""
        every = RunCheckpoints(self._directory, self._program, keep_last=self._keep_last).find().complete
        is_own = self.own.has_written
        older = [one for one in every if is_numbered(one.path) and not all(map(is_own, one.paths))]
        if older:
            LOG.warning(
                "%s is of an earlier run; a program that picks its newest checkpoint itself resumes from it. "
                "Remove it, or give each run an empty folder",
                older[0].path,
            )

    def take(
        self,
        step_before: Callable[[float], int],
        *,
        reach: int | None = None,
        end: "Ending | None" = None,
        last_sign: float | None = None,
    ) -> None:
        """Copy the complete checkpoints that were not copied yet into the run directory, and record them.

        `step_before` returns the last step on record at a time: the guess for a checkpoint that shows none,
        which it keeps until it is written again. None beyond `reach`, the step up to which rows show that the
        run has come, is taken of a search. `end`: how the program ended. `last_sign`: when it last did
        anything in Unix seconds; None is now.
        """
        found = self._judge(step_before, end, time.time() if last_sign is None else last_sign, reach)
        self.skipped = found.rejections()
        for note in self.skipped if end is None else ():  # the verdict has the last ones
            if not _NO_NEWS.search(note):
                self._warn_once(note)
        newest = found.newest
        if newest is None or (state_of(newest) == self._state and end is None):
            return
        older = [each for each in found.complete if each.found.source.proves and each is not newest]
        for each in reversed(older[: self._keep_last - 1]):  # several may have been saved since the last time
            if state_of(each) not in self._known and each.written_at < newest.written_at:
                self._copy(each, is_over=end is not None)
        if any(self._copy(each, is_over=end is not None) for each in (newest, *older)):
            self._state = state_of(newest)

    def _copy(self, one: ProgramCheckpoint, *, is_over: bool) -> bool:
        """Copy a checkpoint into the run directory; return False if an older one is to be copied instead."""
        state, step, source = state_of(one), one.step or 0, one.found.source
        if has_other_rows(self._directory, state):
            LOG.error("%s: not copied, because its steps were trained again after it was saved", one.path)
            return True
        if source is Source.GUESSED:
            used = set(self._directory.checkpoint_steps())
            unused = next(number for number in itertools.count(step) if number not in used)
            step = self._known.setdefault(state, (unused, source))[0]
        if not is_over and self._kept.get(step, state) != state:
            self._warn_once(f"step {step:,} was saved by an earlier attempt: its first save is kept")
            return True
        run_id = str(read_run(self._directory.run_file)["run_id"])
        try:
            taken = take_checkpoint(one, self._directory, run_id, step=step, source=source)
        except (OSError, CheckpointError) as error:
            LOG.error("%s: the checkpoint was not taken into the run directory (%s)", one.path, error)
            self.skipped = (*self.skipped, f"{one.path.name} was not taken: {error}")
            return False
        taken = replace(taken, weights=self._weights_of(one) if is_over else one.weights)
        if one.event is not None and one.event.has_nan:
            taken = replace(taken, tensors=Tensors(count=1, nan=("an array",)))
        self.taken, self._known[state] = taken, (step, source)
        if one.event is not None and one.event.step is not None and one.event.pid and not one.event.rank:
            self.saver = one.event.pid
        note_checkpoint(self._directory, taken, state, one.step)
        remove_old_checkpoints(self._directory, self._keep_last, newest=taken.step)
        return True

    def _weights_of(self, one: ProgramCheckpoint) -> str:
        """Return the relation of a checkpoint to the trained weights, by its bytes if no save was seen."""
        is_seen = one.event is not None and one.event.source is Source.OBSERVED
        if self.excerpts is None or is_seen or one.weights:
            return one.weights
        with suppress(OSError):
            return relation_of_files(one.paths, self.excerpts)
        return "unknown"

    def _warn_once(self, note: str) -> None:
        if (about := note.partition(";")[0]) not in self._told:
            self._told.add(about)
            LOG.warning("%s", note)


def _is_declared(one: ProgramCheckpoint) -> bool:
    return one.event is not None and one.event.source is Source.DECLARED


@dataclass(frozen=True)
class Ending:
    """The end of a program, after which it writes no more."""

    is_well: bool
    """Whether it ended with 0, so that it has finished what it wrote."""
    last: LastRow | None = None
    """Its last row, if no step of an optimizer was observed."""


def _search(
    directory: Path, is_own: Callable[[Path], bool], ignored: Collection[Path], *, is_over: bool
) -> tuple[list[Path], int | None]:
    """Return the files of weights that this run has written, and where the search was cut.

    That is the number of folders that were read; None if there are no others. A folder `checkpoint-N` is
    found by a name in it, because it may be empty.
    """
    found, until = list[Path](), time.monotonic() + _MOST_SECONDS[is_over]
    for seen, (files, folders) in enumerate(walk_folders(directory, ignored, most_depth=_MOST_DEPTH)):
        if seen >= _MOST_PLACES[is_over] or time.monotonic() > until:
            return found, seen
        folders[:] = [path for path in folders if path.name not in _NEVER_CHECKPOINTS]
        found += [path for path in files if path.name.endswith((*WEIGHTS, ".distcp")) and is_own(path)]
        found += [path / "_" for path in folders if is_numbered(path) and is_own(path)]
    return found, None


def taken_points(directory: RunDirectory) -> Iterator[ResumePoint]:
    """Yield the checkpoints in the run directory that training can resume from, up to the newest without NaN.

    They have a manifest. Weights alone of a known framework do not count.
    """
    finder, events = UnitFinder(), read_rows(directory.events_file)
    of_nan = {
        event.get("manifest_sha256")
        for event in events
        if (tensors := Tensors.from_json(event.get("tensors"))) and tensors.nan
    }
    for step in reversed(directory.checkpoint_steps()):
        with suppress(CheckpointError, OSError):
            path = restorable_path(directory.checkpoint(step))
            made = finder.named(path.parent, glob.escape(path.name))
            if any(each.found.is_weights_alone for each in made):
                continue
            has_nan = sha256_of_file(directory.checkpoint(step) / MANIFEST_NAME) in of_nan
            yield ResumePoint(step, path, has_nan=has_nan)
            if not has_nan:
                return


def copy_of(directory: RunDirectory, found: ResumePoint | None) -> TakenCheckpoint | None:
    """Return the run's own copy of the checkpoint that it resumed from; None if that is not of this run.

    A program that was killed after its last save has nothing left to save when it starts again. One that
    trained its steps again has other weights than that copy.
    """
    if found is None or found.parent_sha256 is not None or trains_again(directory):
        return None
    with suppress(CheckpointError, OSError):
        manifest = directory.checkpoint(found.step) / MANIFEST_NAME
        step, sha256 = read_manifest(manifest.parent).step, sha256_of_file(manifest)
        saved = [row for row in read_rows(directory.events_file) if row.get("manifest_sha256") == sha256]
        sources = [row["source"] for row in saved if "source" in row]
        return TakenCheckpoint(step, sha256, Source(sources[-1]) if sources else Source.CHECKPOINT)
    return None


def named_point(path: Path) -> ResumePoint:
    """Return the resume point of a checkpoint of another run. Raises ConfigError if it has no manifest."""
    try:
        sha256 = sha256_of_file(path / MANIFEST_NAME)
        return ResumePoint(read_manifest(path).step, restorable_path(path), parent_sha256=sha256)
    except (CheckpointError, OSError) as error:
        raise ConfigError(
            f"--resume {path} is not a checkpoint of a run ({error}); {checkpoint_advice(path)}. "
            "Name a checkpoint of the program itself in program.command."
        ) from None
