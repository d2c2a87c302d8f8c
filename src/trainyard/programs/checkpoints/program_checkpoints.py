"""Find the checkpoints of a program that a pattern names, folders or files, complete or not, newest first.

    pattern ──> folders and files ──format──> complete | partial, resumable | not ──> newest, newest_resumable

The newest has the highest step, even if its files are older. Checkpoints without a known step come after
those with one, by the time of their last change. If a format writes no file last, a checkpoint that changed
in the last seconds is listed twice, and counts only if both lists are equal. Nothing is written here, except
by `move_partial_aside`, which renames folders before the start of a program that resumes from the highest
number.
"""

import contextlib
import glob
import hashlib
import re
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from trainyard.programs.checkpoints.checkpoint_formats import judge_checkpoint
from trainyard.programs.checkpoints.found_checkpoint import CheckpointFormat, FoundCheckpoint, Wholeness
from trainyard.programs.checkpoints.volume_listing import VolumeListing, list_beside

ASIDE = "partial-checkpoints"
"""The folder for checkpoints whose save did not finish, beside the others."""
_QUIET_SECONDS = 2.0
_NUMBERED = re.compile(r"checkpoint[-_]\d{1,12}")
"""The Trainer, and scripts of Accelerate, resume from the one of these folders with the highest number."""
_FILES = (".pt", ".pth", ".bin", ".ckpt", ".safetensors")


@dataclass(frozen=True)
class ProgramCheckpoint:
    """A folder or a file that a program wrote as a checkpoint."""

    path: Path
    found: FoundCheckpoint
    """The verdict; its paths are relative to the folder that holds the checkpoint."""
    world_size: int | None = None
    """The number of processes that wrote it, as far as known."""

    @property
    def step(self) -> int | None:
        """Optimizer steps done; None if neither its name nor its files show it."""
        return self.found.step

    @property
    def is_file(self) -> bool:
        """Return whether it is one file, not a folder."""
        return [file.path for file in self.found.files] == [self.found.path]

    @property
    def base(self) -> Path:
        """The folder that its files are in: the checkpoint itself, or the folder that holds its files."""
        below = f"{self.found.path}/"
        inside = all(file.path.startswith(below) for file in self.found.files)
        return self.path if inside else self.path.parent

    def files(self) -> dict[str, tuple[int, float]]:
        """Name relative to `base` -> size and time of the last change."""
        below = f"{self.found.path}/"
        return {file.path.removeprefix(below): (file.size, file.modified) for file in self.found.files}

    def judge_again(self) -> "ProgramCheckpoint | None":
        """Return the checkpoint as it is now; None if it is gone."""
        listing = list_beside(self.path.parent, [self.found.path])
        found = judge_checkpoint(
            listing, self.found.path, world_size=self.world_size, formats=(self.found.format,)
        )
        return None if found is None else replace(self, found=found)


@dataclass(frozen=True)
class ProgramCheckpoints:
    """The checkpoints of a program."""

    complete: tuple[ProgramCheckpoint, ...]
    """The newest first."""
    partial: tuple[ProgramCheckpoint, ...] = ()
    """The newest first."""
    unrecognized: tuple[Path, ...] = ()
    """Folders and files that the pattern names, in which no known format was found."""
    set_aside: tuple[str, ...] = ()
    """Why others do not count as checkpoints of this run, a line each."""

    @property
    def newest(self) -> ProgramCheckpoint | None:
        """The newest complete one."""
        return self.complete[0] if self.complete else None

    @property
    def newest_resumable(self) -> ProgramCheckpoint | None:
        """The newest complete one from which training resumes, as far as its files show.

        A file of the program's own layout does not show it (`resumable` is None): it counts, because the
        program may know it.
        """
        return next((each for each in self.complete if each.found.resumable is not False), None)

    @property
    def skipped(self) -> tuple[ProgramCheckpoint, ...]:
        """Partial ones that are newer than the newest complete one: by step, or by time if they have none."""
        newest = self.newest
        if newest is None:
            return self.partial
        return tuple(
            each
            for each in self.partial
            if _order(each) > _order(newest) or (each.step is None and _modified(each) > _modified(newest))
        )

    def rejections(self) -> tuple[str, ...]:
        """Return a line for each newer checkpoint that does not count, with the reason."""
        newest = self.newest
        instead = "there is no complete one" if newest is None else f"{newest.path.name} is the newest"
        partial = (f"{each.path.name} is not complete: {each.found.why}; {instead}" for each in self.skipped)
        return (*partial, *self.set_aside)

    def notes(self) -> tuple[str, ...]:
        """Return `rejections`; if no checkpoint was recognised, also a line for each path that matched."""
        notes = list(self.rejections())
        if not self.complete and not self.partial:
            notes += [
                f"{path}: no format of checkpoints was recognised; name the checkpoints themselves, such as "
                "out/checkpoint-* or out/*.ckpt"
                for path in self.unrecognized
            ]
        return tuple(notes)

    def resume_notes(self) -> tuple[str, ...]:
        """Return a line for each newer complete checkpoint that training cannot resume from."""
        resumable = self.newest_resumable
        newer = self.complete[: self.complete.index(resumable) if resumable else None]
        instead = "there is no other" if resumable is None else f"{resumable.path.name} is used instead"
        return tuple(
            f"{each.path.name} is complete, but training cannot resume from it: "
            f"{each.found.resumable_why}; {instead}"
            for each in newer
        )


def find_program_checkpoints(
    directory: Path,
    pattern: str,
    *,
    world_size: int | None = None,
    formats: Collection[CheckpointFormat] | None = None,
    quiet_seconds: float = _QUIET_SECONDS,
    now: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> ProgramCheckpoints:
    """Return the checkpoints that `pattern` names, relative to `directory` or absolute, such as `out/*.ckpt`.

    `world_size` is the number of processes that wrote them, if known; other formats than `formats` are left
    out. A link counts once, as the file or folder that it leads to. Checkpoints of formats that write no file
    last must not have changed for `quiet_seconds`, for which it waits at most once; use 0 after the program
    has ended.
    """
    found: dict[Path, ProgramCheckpoint] = {}
    unrecognized: list[Path] = []
    for parent, names in _candidates(directory, pattern).items():
        listing = list_beside(parent, names)
        for name in names:
            made = judge_checkpoint(listing, name, world_size=world_size, formats=formats)
            path = parent / name
            if made is None and formats is None and _NUMBERED.fullmatch(name) and path.is_dir():
                made = _first_save(listing, name)
            if made is not None:
                found.setdefault(parent / made.path, ProgramCheckpoint(parent / made.path, made, world_size))
            elif path.is_dir() or path.suffix in _FILES:
                unrecognized.append(path)
    checkpoints = _require_quiet(_outermost(found.values()), quiet_seconds, now=now, sleep=sleep)
    ordered = sorted(checkpoints, key=_order, reverse=True)
    return ProgramCheckpoints(
        tuple(each for each in ordered if each.found.is_complete),
        tuple(each for each in ordered if not each.found.is_complete),
        tuple(unrecognized),
    )


def _first_save(listing: VolumeListing, name: str) -> FoundCheckpoint:
    """Return the checkpoint of a save that ended before its first known file; its folder may be empty."""
    trainer = name.startswith("checkpoint-")
    form = CheckpointFormat.HUGGING_FACE if trainer else CheckpointFormat.ACCELERATE
    why = "it has no model file"
    return FoundCheckpoint(
        form,
        name,
        int(name.removeprefix("checkpoint-")) if trainer else None,
        listing.below(name),
        why,
        resumable=False,
        resumable_why=f"it is not complete: {why}",
    )


def _candidates(directory: Path, pattern: str) -> dict[Path, list[str]]:
    """Return folder -> the names in it that the pattern matches; links are resolved."""
    seen: set[Path] = set()
    found: dict[Path, list[str]] = {}
    for match in sorted(glob.glob(pattern, root_dir=directory, recursive=True)):  # noqa: PTH207  # may be absolute
        path = directory / match
        real = path.resolve()
        path = real if path.is_symlink() else path
        if real in seen or not real.exists() or not path.name or ASIDE in path.parts:
            continue
        seen.add(real)
        found.setdefault(path.parent, []).append(path.name)
    return found


def _outermost(found: Collection[ProgramCheckpoint]) -> list[ProgramCheckpoint]:
    """Return those that are not part of another one; a pattern such as `out/**` names the parts too."""
    folders = {each.path for each in found}
    return [each for each in found if not folders.intersection(each.path.parents)]


def _require_quiet(
    found: Iterable[ProgramCheckpoint],
    seconds: float,
    *,
    now: Callable[[], float],
    sleep: Callable[[float], None],
) -> list[ProgramCheckpoint]:
    """Wait until checkpoints that need it are `seconds` old; those that change meanwhile are partial."""
    checkpoints, start = list(found), now()
    fresh = [
        each
        for each in checkpoints
        if each.found.is_complete and each.found.needs_quiet and start - _modified(each) < seconds
    ]
    if not fresh:
        return checkpoints
    sleep(min(seconds, max(seconds - (start - _modified(each)) for each in fresh)))
    judged = []
    for each in checkpoints:
        again = each.judge_again() if each in fresh else each
        if again is not None and again.files() != each.files():
            why = f"its files changed within {seconds:g} s: its save is in progress"
            changed = replace(again.found, wholeness=Wholeness.PARTIAL, why=why, resumable=False)
            again = replace(again, found=replace(changed, resumable_why=f"it is not complete: {why}"))
        if again is not None:
            judged.append(again)
    return judged


def _order(each: ProgramCheckpoint) -> tuple[bool, int, float]:
    return each.step is not None, each.step or 0, _modified(each)


def _modified(each: ProgramCheckpoint) -> float:
    return max((file.modified for file in each.found.files), default=0.0)


def is_numbered(path: Path) -> bool:
    """Return whether it is a folder `checkpoint-N`; some programs resume from the highest number."""
    return _NUMBERED.fullmatch(path.name) is not None and path.is_dir()


def state_of(checkpoint: ProgramCheckpoint) -> str:
    """Return a digest of the names, sizes and times of its files; it changes when they are written again."""
    digest, base = hashlib.sha256(), checkpoint.base
    for path in sorted(base / name for name in checkpoint.files()):
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
