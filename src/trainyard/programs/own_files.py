"""Decide which files are a run's own: written after its start, in places that no other run uses meanwhile.

    start ──places──> refused if a run that lives uses one of them ──marker in each place──> OwnFiles
    file  ──time of its last change against the marker of its file system──> of this run, or there before

A file server's clock may differ from this machine's by minutes, and `cp -p` keeps the modification time: so
the time of the last status change counts (ctime), compared with that of a file that is written in the same
place at the start. The claim of a place is a file below the user's state folder, with a lock that ends with
the command. The claim of a run that has ended stays, with its markers, so that the run finds its own files
again when it resumes. It is removed when another run uses the same place.
"""

import fcntl
import hashlib
import json
import logging
import os
import re
import socket
import tempfile
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import IO

from trainyard.errors import ConfigError
from trainyard.run.directory import is_run_directory
from trainyard.run.record_models import validate_record
from trainyard.run.run_lock import machine, since

LOG = logging.getLogger(__name__)
AUTO = "auto"
RUN_DIRECTORY = "{run_dir}"
"""Stands for the run directory in program.command, program.checkpoints and program.metrics."""
OUTPUT_VARIABLE = "TRAINYARD_OUTPUT"
_WILDCARD = re.compile(r"[*?\[]")
# The clock of a file system ticks every 4 to 10 ms and lies behind this machine's, which is continuous.
_TICK_NS = 20_000_000
# A marker of a file system with this machine's clock is written so soon after the start.
_SAME_CLOCK_NS = 1_000_000_000
_OLD_SECONDS = 30 * 86_400.0
_MOUNTS = Path("/proc/self/mountinfo")
_OF_OTHERS = frozenset(("__pycache__", "node_modules", "site-packages", "venv"))
# A folder with so many others in it is one of data, such as the classes of ImageNet; they come last.
_MANY_FOLDERS = 100


@dataclass(frozen=True)
class Places:
    """The places where a program keeps its checkpoints and files of metrics: absolute, without links."""

    run_directory: str
    named: tuple[str, ...] = ()
    """Beginnings of paths, up to their first wildcard."""
    searched: str | None = None
    """The folder that is searched freely, with a slash at its end; run directories in it are left out."""

    def shared_with(self, other: "Places") -> str | None:
        """Return the first of these places in which `other` may have files too."""
        for mine, theirs in product((*self.named, self.searched), (*other.named, other.searched)):
            if mine is None or theirs is None or not (mine.startswith(theirs) or theirs.startswith(mine)):
                continue
            in_theirs = theirs == other.searched and mine.startswith(f"{self.run_directory}/")
            if not in_theirs and not (mine == self.searched and theirs.startswith(f"{other.run_directory}/")):
                return mine
        return None


@dataclass(frozen=True)
class OwnFiles:
    """When a run started, on the clock of each file system that it writes to."""

    since: Mapping[int, int] = field(default_factory=dict)
    """Device -> when the marker was written there, in nanoseconds."""
    default: int = 0
    """When the run started on this machine's clock, for any other device."""
    own_folder: str = ""
    """The run directory of a run that another machine may have started: what lies in it is of this run."""

    def has_written(self, path: Path) -> bool:
        """Return whether the file was written or changed since; False for one that is gone."""
        try:
            found = path.stat()
        except OSError:
            return False
        return self.is_own(path, found.st_dev, found.st_ctime_ns)

    def is_own(self, path: Path, device: int, changed: int) -> bool:
        """Return whether a file of a device that was last changed then, in nanoseconds, is of the run."""
        if changed >= self.since.get(device, self.default):
            return True
        return bool(self.own_folder) and Path(os.path.realpath(path)).is_relative_to(self.own_folder)

    def has_clock_of_machine(self, path: Path) -> bool:
        """Return whether the times of a file can be compared with those of this machine."""
        with suppress(OSError):
            moment = self.since.get(path.stat().st_dev, self.default)
            return abs(moment - self.default) < _SAME_CLOCK_NS
        return False


@dataclass(frozen=True)
class _Claim:
    """The claim of a run, as its file holds it."""

    places: Places
    own: OwnFiles
    host: str
    machine: str
    pid: int
    started: float
    is_over: bool = False


def in_run(text: str, run_directory: str) -> str:
    """Return `text` with the run directory instead of `{run_dir}`."""
    return text.replace(RUN_DIRECTORY, run_directory)


def names_run(command: Sequence[str]) -> bool:
    """Return whether a command says that its files lie in the run directory."""
    return any(RUN_DIRECTORY in word or OUTPUT_VARIABLE in word for word in command)


def places_of(
    directory: Path, run_directory: Path, command: Sequence[str], *, checkpoints: str, metrics: str
) -> Places:
    """Return the places of a program that runs in `directory`.

    A command that names its run directory has its files there, unless a setting says otherwise.
    """
    run = os.path.realpath(run_directory)
    settings = {in_run(setting, run) for setting in (checkpoints, metrics) if setting != AUTO}
    named = tuple(sorted({_beginning(directory, setting) for setting in settings}))
    is_searched = AUTO in (checkpoints, metrics) and not names_run(command)
    return Places(run, named, _as_folder(os.path.realpath(directory)) if is_searched else None)


def _beginning(directory: Path, setting: str) -> str:
    """Return the real path that a setting names, or that of its folders before the first wildcard."""
    plain = _WILDCARD.split(setting, maxsplit=1)[0]
    folder, slash, name = (plain, "", "") if plain == setting else plain.rpartition("/")
    return _as_folder(os.path.realpath(directory / (folder + slash))) + name


def _as_folder(path: str) -> str:
    return f"{path.rstrip('/')}/"


@contextmanager
def claim_of_places(places: Places, *, is_training: Callable[[Path], bool]) -> Iterator[OwnFiles]:
    """Hold the places of a run, and yield which files are written there from now on.

    The process that holds the places of a run may claim them again. `is_training` says whether the program of
    a run lives, whose command was killed. Raises ConfigError if another run uses one of the places.
    """
    folder = _state_folder()
    if folder is None:
        LOG.warning("no state folder can be written: a second run at once in this folder is not noticed")
        yield _mark(places, None)
        return
    path = folder / _name(places.run_directory)
    with ExitStack() as opened:
        with _alone(folder):
            file = opened.enter_context(path.open("a+"))
            claim = _claim(path, file, places, is_training)
        try:
            yield claim.own
        finally:
            _write(path, replace(_read(path) or claim, is_over=True))


def last_claim(run_directory: Path) -> OwnFiles:
    """Return which files a run has written as far as its last claim shows, without a new claim."""
    folder = _state_folder()
    found = folder and _read(folder / _name(os.path.realpath(run_directory)))
    return found.own if found else OwnFiles(default=time.time_ns())


def _claim(path: Path, file: IO[str], places: Places, is_training: Callable[[Path], bool]) -> _Claim:
    """Write the claim into its file at `path`, and remove those of ended runs for the same places."""
    before, host = _read(path), socket.gethostname()
    if not _lock(file) and (before is None or before.pid != os.getpid()):
        process = f" by process {before.pid}" if before else ""
        raise ConfigError(f"{places.run_directory} is in use{process}. Nothing was started.")
    others = {each: found for each in path.parent.glob("*.json") if each != path and (found := _read(each))}
    live = {each for each, found in others.items() if _is_live(each, found, is_training)}
    for each in live:
        if place := places.shared_with((found := others[each]).places):
            if before is None:
                path.unlink()
            raise ConfigError(
                f"{place} is in use by run {found.places.run_directory} (process {found.pid}"
                f"{since(found.started)}). The files of two runs in one place cannot be distinguished. Wait "
                "for it, or give each run places of its own: write {run_dir} into program.command, such as "
                "--output {run_dir}/output, or set program.checkpoints and program.metrics. Nothing was "
                "started."
            )
    for each in others.keys() - live:
        is_ours = others[each].host == host and places.shared_with(others[each].places)
        if is_ours or time.time() - each.stat().st_mtime > _OLD_SECONDS:
            each.unlink()
    is_resumed = before and before.places == places and Path(places.run_directory, "run.json").is_file()
    own = _mark(places, before.own if before and is_resumed else None)
    if not is_resumed and Path(places.run_directory, "run.json").is_file():
        own = replace(own, own_folder=places.run_directory)
    claim = _Claim(places, own, host, machine(), os.getpid(), time.time())
    _write(path, claim)
    return claim


def _is_live(path: Path, found: _Claim, is_training: Callable[[Path], bool]) -> bool:
    """Return whether the command of a claim, or the program that it left, runs on this machine."""
    if found.is_over or found.machine != machine():
        return False
    with suppress(OSError), path.open("a+") as file:
        return not _lock(file) or is_training(Path(found.places.run_directory))
    return False


def _mark(places: Places, before: OwnFiles | None) -> OwnFiles:
    """Return when the run started, by markers in its places; those of `before` stay."""
    before = before or OwnFiles(default=time.time_ns() - _TICK_NS)
    searched = [] if places.searched is None else [places.searched, *_mounts_below(places.searched)]
    moments = dict(filter(None, map(_marker, (places.run_directory, *places.named, *searched))))
    return OwnFiles({**moments, **before.since}, before.default, before.own_folder)


def _marker(place: str) -> tuple[int, int] | None:
    """Return the device and the time of a file that is written at `place`, or in the nearest folder above it.

    It is removed at once. None if no file can be written there.
    """
    folder = Path(place)
    while not folder.is_dir():
        folder = folder.parent
    with suppress(OSError), tempfile.NamedTemporaryFile(prefix=".trainyard-", dir=folder) as file:
        found = os.fstat(file.fileno())
        return found.st_dev, found.st_ctime_ns
    return None


def _mounts_below(folder: str) -> list[str]:
    """Return the folders below `folder` that are on another file system."""
    with suppress(OSError):
        lines = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        points = [line.split()[4].encode().decode("unicode_escape") for line in lines]
        return [point for point in points if point.startswith(folder)]
    return []


def _state_folder() -> Path | None:
    """Return the folder of the claims; None if none can be written."""
    state = os.environ.get("XDG_STATE_HOME", "")
    with suppress(RuntimeError, OSError):
        places = [
            Path(state) if state.startswith("/") else Path.home() / ".local" / "state",
            Path(tempfile.gettempdir()) / f"trainyard-{os.geteuid()}",
        ]
        for each in places:
            with suppress(OSError):
                folder = each / "trainyard" / "places"
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                if folder.stat().st_uid == os.geteuid():
                    with _alone(folder):
                        return folder
    return None


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until no other command changes the claims."""
    with (folder / ".lock").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _name(run_directory: str) -> str:
    """Return the name of a run's claim; machines with one home may have other folders of the same path."""
    scope = os.fsencode(f"{socket.gethostname()}\0{run_directory}")
    return f"{hashlib.sha256(scope).hexdigest()[:32]}.json"


def _read(path: Path) -> _Claim | None:
    """Return the claim in a file; None for one that cannot be read."""
    with suppress(OSError, ValueError):
        return validate_record(_Claim, json.loads(path.read_bytes()))
    return None


def _write(path: Path, claim: _Claim) -> None:
    """Write a claim in place: its lock is that of the file."""
    path.write_text(json.dumps(asdict(claim)))


def walk_folders(
    directory: Path, ignored: Collection[Path], *, most_depth: int
) -> Iterator[tuple[list[Path], list[Path]]]:
    """Yield the files in each folder, and the folders in it that are searched, too; the nearest come first.

    Environments, directories of other runs, also those in a store, hidden folders and links are left out, and
    what is `ignored`.
    """
    skipped = {path.absolute() for path in ignored}
    waiting, last = deque([directory]), deque[Path]()
    while waiting or last:
        folder = (waiting or last).popleft()
        depth = len(folder.relative_to(directory).parts)
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:  # removed meanwhile, or not readable
            continue
        if any(entry.name == "pyvenv.cfg" for entry in entries) or (depth and is_run_directory(folder)):
            continue
        files, folders = list[Path](), list[Path]()
        for entry in entries:
            path = folder / entry.name
            if path.absolute() in skipped:
                continue
            if not entry.is_dir(follow_symlinks=False):
                files.append(path)
            elif not entry.name.startswith(".") and entry.name not in _OF_OTHERS:
                folders.append(path)
        yield files, folders
        if depth < most_depth:
            (last if len(folders) > _MANY_FOLDERS else waiting).extend(folders)
