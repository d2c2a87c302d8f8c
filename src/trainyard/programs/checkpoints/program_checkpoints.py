"""The checkpoints of a program in its folder: the files of one save are one unit, a file or a folder.

    a pattern, a report or a search names files and folders
      ──in a folder of a known format, or that is called by a step──> that folder with everything in it
      ──files of a folder: saved at one step, with one number in their names, or written together──> these

A unit of one file has its path; one of several has that of their folder. Nothing is written here, except by
`move_partial_aside`, which renames folders before the start of a program that resumes from the newest.
"""

import contextlib
import glob
import hashlib
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from trainyard.errors import CheckpointError
from trainyard.programs.checkpoints.checkpoint_formats import (
    CheckpointFormat,
    FoundCheckpoint,
    judge_files,
    judge_folder,
    step_inside,
)
from trainyard.programs.checkpoints.volume_listing import FolderReader, VolumeFile
from trainyard.programs.program_events import RELATIONS, WrittenCheckpoint
from trainyard.programs.sources import Source

ASIDE = "partial-checkpoints"
"""The folder for checkpoints whose save did not finish, beside the others."""
WEIGHTS = (".pt", ".pth", ".tar", ".ckpt", ".safetensors", ".keras")
"""Endings by which a search knows checkpoints; what is named or was seen to be saved may have any."""
_OF_WEIGHTS = (*WEIGHTS, ".bin", ".distcp", ".pkl")
_BESIDE = (".json", *_OF_WEIGHTS)
_LOGS = re.compile(r".*\.(log|csv|tsv|jsonl|out|err|lock|py|pid)|events\.out\.tfevents.*|\..*", re.IGNORECASE)
"""Files beside a checkpoint that are none of its parts."""
_NUMBERED = re.compile(r"checkpoint[-_]\d{1,12}")
"""The Trainer, and scripts of Accelerate, resume from the one of these folders with the highest number."""
_OF_A_STEP = re.compile(
    r"(.*[-_])?(checkpoint|ckpt|global_step|step|iter|epoch|ep)[-_=]?\d{1,12}([-_.].*)?", re.IGNORECASE
)
"""Names of folders that hold one save."""
_OF_ORBAX = ("_CHECKPOINT_METADATA", "_METADATA")
_RANK = re.compile(r"[-_]?rank[-_]?\d+")
_MOST_DEPTH, _MOST_FILES = 4, 2_000
_TOGETHER_SECONDS = 20.0
"""Files of a folder without numbers in their names that are written within this time are of one save."""


@dataclass(frozen=True)
class ProgramCheckpoint:
    """A folder or files that a program wrote as a checkpoint."""

    path: Path
    found: FoundCheckpoint
    """The verdict; its paths are relative to the folder that holds the checkpoint."""
    event: WrittenCheckpoint | None = None
    """The last report of its save, if the files are as they were then."""
    is_named: bool = False
    """Whether a setting or a report names it, so that it is certainly a checkpoint."""
    lacks: str = ""
    """A file that the save before in its folder had, and this one has not."""
    weights: str = ""
    """One of RELATIONS; empty if the observer knows none."""

    @property
    def step(self) -> int | None:
        """Optimizer steps done; None if that is not known."""
        return self.found.step

    @property
    def is_file(self) -> bool:
        return [file.path for file in self.found.files] == [self.found.path]

    @property
    def base(self) -> Path:
        """The folder that its files are in: the checkpoint itself, or the folder that holds its file."""
        return self.path.parent if self.is_file else self.path

    @property
    def paths(self) -> list[Path]:
        """Its files; its own path if it has none."""
        return [self.base / name for name in self.files()] or [self.path]

    @property
    def written_at(self) -> float:
        """When its newest file was written in Unix seconds, or its folder created if it has none."""
        times = [file.modified for file in self.found.files]
        with contextlib.suppress(OSError):  # it was removed
            return max(times) if times else self.path.stat().st_mtime
        return 0.0

    @property
    def order(self) -> tuple[int, bool, bool, float]:
        """Return what a newer one has more of: the step decides, if it is known, and no time of a file."""
        found = self.found
        step = -1 if found.step is None else found.step
        return step, found.source.proves, not found.is_weights_alone, self.written_at

    def files(self) -> dict[str, tuple[int, float]]:
        """Name relative to `base` -> size and time of the last change."""
        below = f"{self.found.path}/"
        return {file.path.removeprefix(below): (file.size, file.modified) for file in self.found.files}

    def partial(self, why: str) -> "ProgramCheckpoint":
        return replace(self, found=replace(self.found, is_complete=False, why=why))

    def require_unchanged(self) -> None:
        """Raise CheckpointError if a file has another size or time than it had, OSError if one is gone."""
        now = {name: (self.base / name).stat() for name in self.files()}
        if self.files() != {name: (found.st_size, found.st_mtime) for name, found in now.items()}:
            raise CheckpointError(f"{self.path} changed while it was copied")


@dataclass(frozen=True)
class ProgramCheckpoints:
    complete: tuple[ProgramCheckpoint, ...] = ()
    """The newest first."""
    partial: tuple[ProgramCheckpoint, ...] = ()
    """The newest first."""
    set_aside: tuple[str, ...] = ()
    """Why others do not count as checkpoints of this run, a line each."""

    @property
    def newest(self) -> ProgramCheckpoint | None:
        return self.complete[0] if self.complete else None

    @property
    def skipped(self) -> tuple[ProgramCheckpoint, ...]:
        """Partial ones that are newer than the newest complete one, by step or by time."""
        newest = self.newest
        return tuple(
            each
            for each in self.partial
            if newest is None
            or each.order > newest.order
            or (each.step is None and each.written_at > newest.written_at)
        )

    def rejections(self) -> tuple[str, ...]:
        """Return a line for each newer checkpoint that does not count, with the reason."""
        newest = self.newest
        instead = "there is no complete one" if newest is None else f"{newest.path.name} is the newest"
        partial = (f"{each.path.name} is not complete: {each.found.why}; {instead}" for each in self.skipped)
        return (*partial, *self.set_aside)


def newest_first(found: Iterable[ProgramCheckpoint], set_aside: Iterable[str] = ()) -> ProgramCheckpoints:
    ordered = sorted(found, key=lambda each: each.order, reverse=True)
    complete = tuple(each for each in ordered if each.found.is_complete)
    partial = tuple(each for each in ordered if not each.found.is_complete)
    return ProgramCheckpoints(complete, partial, tuple(set_aside))


@dataclass
class UnitFinder:
    """Puts files together to checkpoints; a file is opened once until it changes."""

    is_own: Callable[[Path], bool] = lambda _: True
    """Whether the run has written a file."""
    reader: FolderReader = field(default_factory=FolderReader)

    def named(self, directory: Path, pattern: str) -> list[ProgramCheckpoint]:
        """Return the checkpoints that a pattern names, relative to `directory` or absolute: `out/*.ckpt`.

        A folder that holds several saves gives each of them; any other is one. A link counts once, as the
        file or folder that it leads to.
        """
        found, files = list[ProgramCheckpoint](), dict[Path, list[str]]()
        matches = sorted(glob.glob(pattern, root_dir=directory, recursive=True))  # noqa: PTH207  # may be absolute
        paths = (directory / match for match in matches)
        for path in dict.fromkeys(path.resolve() if path.is_symlink() else path for path in paths):
            if not path.exists() or not path.name or ASIDE in path.parts:
                continue
            if path.is_dir():
                found += self._in_folder(path)
            elif self.is_own(path):
                files.setdefault(path.parent, []).append(path.name)
        for folder, names in files.items():
            if not any(folder.is_relative_to(each.path) for each in found):
                found += self.of_files(folder, names, more=())
        return [replace(each, is_named=True) for each in outermost(found)]

    def _in_folder(self, folder: Path) -> list[ProgramCheckpoint]:
        """Return the saves in a folder that is named; the folder itself if it holds only one."""
        made = self.of_folder(folder)
        listing = self.reader.list_beside(folder.parent, [folder.name])
        parts = set(made.paths if made else ())
        paths = [folder.parent / file.path for file in listing.below(folder.name)]
        files = [path for path in paths if path not in parts and not _LOGS.fullmatch(path.name)]
        files = list(filter(self.is_own, files))
        inner = [home for home in folders_of_saves(files, folder) if home != folder]
        found = [each for home in inner if (each := self.of_folder(home)) is not None]
        if made is not None:
            return [made, *found]
        names = [path.name for path in files if path.parent == folder]
        if found or len({_numbers(name) for name in names}) > 1:
            return [*found, *self.of_files(folder, names, more=())]
        if len(files) == 1:
            return self.of_files(files[0].parent, [files[0].name], more=())
        own = [file for file in listing.below(folder.name) if folder.parent / file.path in files]
        return [ProgramCheckpoint(folder, judge_files(folder.name, own))] if own else []

    def of_folder(self, folder: Path) -> ProgramCheckpoint | None:
        """Return a folder that is one save: of a known format, or called by a step."""
        listing = self.reader.list_beside(folder.parent, [folder.name])
        found, below = judge_folder(listing, folder.name), listing.below(folder.name)
        if found is None and _OF_A_STEP.fullmatch(folder.name):
            if below:
                found = judge_files(folder.name, below, listing)
            elif is_numbered(folder):  # a save that ended before its first file
                why, form = "it has no file", CheckpointFormat.HUGGING_FACE
                found = FoundCheckpoint(form, folder.name, None, (), why, is_complete=False)
        if found is None:
            return None
        if not found.source.proves:  # only a number in the name
            found = replace(found, step=None, source=Source.CHECKPOINT)
        if found.format is CheckpointFormat.HUGGING_FACE and not _OF_A_STEP.fullmatch(folder.name):
            files = tuple(file for file in found.files if not _LOGS.fullmatch(Path(file.path).name))
            found = replace(found, files=files)  # the Trainer logs in the folder of its last weights
        made = ProgramCheckpoint(folder, found)
        weights = [path for path in made.paths if path.name.endswith(_OF_WEIGHTS)] or made.paths
        is_own = all if found.is_complete else any
        return made if is_own(map(self.is_own, weights)) else None

    def of_files(
        self, folder: Path, names: Collection[str], *, more: tuple[str, ...] = _BESIDE, is_one: bool = False
    ) -> list[ProgramCheckpoint]:
        """Return the saves of which the files are, in one folder; what was saved with them may end in `more`.

        Files with the same number in their names are one save; those without, if they were written together;
        with `is_one` all are.
        """
        listing = self.reader.list_beside(folder, [*names, *(name.partition("/")[0] for name in names)])
        known = {file.path: file for file in listing.files if file.path in names or "/" not in file.path}
        wanted = sorted((known[name] for name in names if name in known), key=lambda each: each.modified)
        groups: list[list[VolumeFile]] = [wanted] if is_one and wanted else []
        for file in () if is_one else wanted:
            group = next((each for each in groups if _is_together(each, file)), None)
            groups.append([file]) if group is None else group.append(file)
        for file in known.values():
            is_part = file.path not in names and not _LOGS.fullmatch(file.path)
            if is_part and file.path.endswith(more) and self.is_own(folder / file.path):
                group = next((each for each in reversed(groups) if _is_together(each, file)), None)
                if group is not None:
                    group.append(file)
        made = list[ProgramCheckpoint]()
        for group in groups:
            files, path = sorted(group, key=lambda each: each.path), folder
            if len(files) == 1:
                path = folder / files[0].path
            else:
                files = [replace(file, path=f"{folder.name}/{file.path}") for file in files]
            made.append(ProgramCheckpoint(path, judge_files(path.name, files)))
        return made

    def saved(self, events: Iterable[WrittenCheckpoint], root: Path) -> list[ProgramCheckpoint]:
        """Return the checkpoints that a program has reported, or whose saves the observer has seen end.

        Files that were saved at one step in one folder are one, with what was written beside them. No folder
        from `root` up is one itself.
        """
        found, events = list[ProgramCheckpoint](), list(events)
        of_file = dict[Path, list[WrittenCheckpoint]]()
        for event in events:
            if event.source is Source.DECLARED:
                units = UnitFinder(reader=self.reader).named(Path("/"), glob.escape(str(event.path)))
                found += [replace(each, event=event if _covers(event, each) else None) for each in units]
        declared = {path for each in found for path in each.paths}
        known = any(event.step is not None for event in events)
        for event in events:  # what was saved before the first step is data, or weights that were given
            if event.source is Source.OBSERVED and (event.step is not None or not known):
                for path in _files_of(event):
                    of_file.setdefault(path, []).append(event)
        found = [replace(each, weights=_with_event(each, of_file).weights) for each in found]
        files = [path for path in of_file if path not in declared]
        groups = dict[tuple[Path, int | None], list[str]]()
        for home, inside in folders_of_saves(files, root).items():
            if (made := self.of_folder(home)) is not None:
                found.append(_with_event(made, of_file))
            else:
                for path in inside:
                    groups.setdefault((path.parent, of_file[path][-1].step), []).append(path.name)
        for (folder, step), names in groups.items():
            is_alone = sum(other == folder for other, _ in groups) == 1
            lacks = _lacking(folder, step, events)
            own = (each.path for each in events if each.step == step and each.path.parent == folder)
            # Saved at this step, and again at another one.
            lost = next((path.name for path in own if path in of_file and of_file[path][-1].step != step), "")
            # A program may write the state of each save into a file of its number.
            more = _BESIDE if is_alone else _BESIDE[:1] if all(map(_numbers, names)) else ()
            for made in self.of_files(folder, names, is_one=step is not None, more=more):
                each = replace(_with_event(made, of_file), lacks=lacks)
                found.append(each.partial(f"{lost} of its save was written again") if lost else each)
        return [replace(each, is_named=True) for each in outermost(found)]

    def searched(self, files: Iterable[Path], root: Path) -> list[ProgramCheckpoint]:
        """Return the checkpoints of which the files are that a search below `root` has found."""
        found = list[ProgramCheckpoint]()
        for home, inside in folders_of_saves(files, root).items():
            made = self.of_folder(home)
            names = [path.name for path in inside if path.parent == home and self.is_own(path)]
            found += [made] if made else self.of_files(home, names)
        return outermost(found)


def folders_of_saves(files: Iterable[Path], root: Path) -> dict[Path, list[Path]]:
    """Return the folders that may be saves as a whole, each with the files in it: below `root` at most.

    That is the outermost folder above a file that is called by a step, or else its own.
    """
    found = dict[Path, list[Path]]()
    for file in files:
        is_below, home = file.is_relative_to(root), file.parent
        for folder in file.parents[:_MOST_DEPTH]:
            if is_below and folder == root:
                break
            names = _OF_ORBAX if folder.name.isdecimal() else _OF_ORBAX[:1]
            is_orbax = any((folder / name).exists() for name in names)
            home = folder if is_orbax or _OF_A_STEP.fullmatch(folder.name) else home
        found.setdefault(home, []).append(file)
    return found


def _with_event(made: ProgramCheckpoint, of_file: dict[Path, list[WrittenCheckpoint]]) -> ProgramCheckpoint:
    """Return a checkpoint with the last report of its files, if they are as they were then."""
    every = [of_file[path] for path in made.paths if path in of_file]
    # An archive is saved part by part.
    events = [each for some in every for each in some if each.files == some[-1].files]
    if not events or not all(_covers(event, made) for event in events):
        return made
    relations = {event.weights for event in events}
    weights = next((each for each in RELATIONS if each in relations), "")
    last = max(events, key=lambda each: (each.step or 0, each.time or 0.0))
    has_nan = any(event.has_nan for event in events)
    return replace(made, event=replace(last, has_nan=has_nan), weights=weights)


def _files_of(event: WrittenCheckpoint) -> Iterator[Path]:
    """Yield the files of a save that was observed; one that was renamed since is found by its inode."""
    base = event.path if event.path.is_dir() else event.path.parent
    for name, facts in event.files.items():
        path, wanted = base / name, tuple(facts[2:])
        if not wanted or inode_of(path) == wanted:
            yield path
        elif not path.exists():
            near = itertools.chain(path.parent.glob("*"), path.parent.parent.glob("*/*"))
            yield from (each for each in itertools.islice(near, _MOST_FILES) if inode_of(each) == wanted)


def _lacking(folder: Path, step: int | None, events: Collection[WrittenCheckpoint]) -> str:
    """Return the name of a file that was saved into a folder at the step before `step`, and not at `step`."""
    names = dict[int, dict[tuple[str, ...], str]]()
    for event in events:
        if event.step is not None and event.source is Source.OBSERVED and event.path.parent == folder:
            plain = tuple(re.split(r"\d+", event.path.name))
            names.setdefault(event.step, {})[plain] = event.path.name
    before = max((each for each in names if step is not None and each < step), default=None)
    if before is None or step not in names or not names[before].keys() & names[step].keys():
        return ""
    return next((name for plain, name in names[before].items() if plain not in names[step]), "")


def inode_of(path: Path) -> tuple[int, int]:
    """Return device and inode of a file, zeros for one that is gone."""
    with contextlib.suppress(OSError):
        found = path.stat()
        return found.st_dev, found.st_ino
    return 0, 0


def _covers(event: WrittenCheckpoint, made: ProgramCheckpoint) -> bool:
    """Return whether the files that a report names are as they were when it was written."""
    if not event.files:
        return event.time is None or made.written_at <= event.time + 2.0
    wanted = [tuple(facts[:2]) for facts in event.files.values()]
    with contextlib.suppress(OSError):
        there = [(found.st_size, found.st_mtime_ns) for found in (path.stat() for path in made.paths)]
        return any(each in there for each in wanted)
    return False


def _is_together(group: Collection[VolumeFile], file: VolumeFile) -> bool:
    """Return whether a file is of the same save as a group of files."""
    numbers, others = _numbers(file.path), {_numbers(each.path) for each in group}
    near = min(abs(each.modified - file.modified) for each in group) <= _TOGETHER_SECONDS
    steps = {step for each in (*group, file) if (step := step_inside([each])) is not None}
    return others == {numbers} and (near or bool(numbers)) and len(steps) <= 1


def _numbers(name: str) -> tuple[str, ...]:
    """Return the numbers in the name of a file, without that of a rank."""
    return tuple(re.findall(r"\d+", _RANK.sub("", Path(name).stem)))


def outermost(found: Iterable[ProgramCheckpoint]) -> list[ProgramCheckpoint]:
    """Return those whose files are not all part of another one, each once."""
    kept, owners = list[ProgramCheckpoint](), dict[Path, int]()
    for each in sorted(found, key=lambda each: (-len(each.found.files), each.path)):
        known = {owners.setdefault(path, len(kept)) for path in each.paths}
        if len(known) > 1 or len(kept) in known:
            kept.append(each)
    return kept


def is_numbered(path: Path) -> bool:
    """Return whether it is a folder `checkpoint-N`; some programs resume from the highest number."""
    return _NUMBERED.fullmatch(path.name) is not None and path.is_dir()


def state_of(checkpoint: ProgramCheckpoint) -> str:
    """Return a digest of the names, sizes and times of its files; it changes when they are written again."""
    digest, base = hashlib.sha256(), checkpoint.base
    for path in sorted(checkpoint.paths):
        with contextlib.suppress(OSError):  # it is being removed
            found = path.stat()
            digest.update(f"{path.relative_to(base)}\0{found.st_size}\0{found.st_mtime_ns}\0".encode())
    return digest.hexdigest()


def move_partial_aside(found: ProgramCheckpoints) -> tuple[str, ...]:
    """Rename partial folders `checkpoint-N` newer than every complete one; return a line for each.

    The Trainer, and scripts of Accelerate, resume from the highest number, complete or not, and fail on a
    partial folder. The folders are kept in `partial-checkpoints/` beside the others. Call this only while the
    program does not run.
    """
    lines = []
    for each in found.skipped:
        if not is_numbered(each.path):
            continue
        aside = each.path.parent / ASIDE
        aside.mkdir(exist_ok=True)
        number, target = 1, aside / each.path.name
        while target.exists():
            number += 1
            target = aside / f"{each.path.name}.{number}"
        each.path.rename(target)
        lines.append(f"{each.path.name} is not complete ({each.found.why}): moved to {target}")
    return tuple(lines)
