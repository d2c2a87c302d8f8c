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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import IO, Any

from trainyard.errors import ConfigError
from trainyard.run.run_lock import machine, since

LOG = logging.getLogger(__name__)
AUTO = "auto"
RUN_DIRECTORY = "{run_dir}"
"""Stands for the run directory in program.command, program.checkpoints and program.metrics."""
OUTPUT_VARIABLE = "TRAINYARD_OUTPUT"
_WILDCARD = re.compile(r"[*?\[]")
# The clock of a file system ticks every 4 to 10 ms and lies behind this machine's, which is continuous.
_TICK_NS = 20_000_000
_OLD_SECONDS = 30 * 86_400.0
_MOUNTS = Path("/proc/self/mountinfo")


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

    def has_written(self, path: Path) -> bool:
        """Return whether the file was written or changed since; False for one that is gone."""
        try:
            found = path.stat()
        except OSError:
            return False
        return found.st_ctime_ns >= self.since.get(found.st_dev, self.default)


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
    wildcard = _WILDCARD.search(setting)
    if wildcard is None:
        return _as_folder(os.path.realpath(directory / setting))
    folder, slash, name = setting[: wildcard.start()].rpartition("/")
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
        yield _mark(places, {})
        return
    with ExitStack() as opened:
        with _alone(folder):
            path = folder / _name(places.run_directory)
            file = opened.enter_context(path.open("a+", encoding="utf-8"))
            own = _claim(folder, file, places, is_training)
        try:
            yield own
        finally:
            _write(file, {**_content(file), "is_over": True})


def last_claim(run_directory: Path) -> OwnFiles:
    """Return which files a run has written as far as its last claim shows, without a new claim."""
    folder = _state_folder()
    with suppress(OSError):
        if folder is not None:
            with (folder / _name(os.path.realpath(run_directory))).open(encoding="utf-8") as file:
                return _own_files(_content(file))
    return OwnFiles(default=time.time_ns())


def _claim(folder: Path, file: IO[str], places: Places, is_training: Callable[[Path], bool]) -> OwnFiles:
    """Write the claim into its `file`, and remove those of ended runs for the same places."""
    before = _content(file)
    if not _lock(file) and before.get("pid") != os.getpid():
        raise ConfigError(
            f"{places.run_directory} is in use by process {before.get('pid')}. Nothing was started."
        )
    others = [
        (path, found) for path in folder.glob("*.json") if str(path) != file.name and (found := _at(path))
    ]
    live = [found for path, found in others if _is_live(path, found, is_training)]
    if shared := next((each for each in live if places.shared_with(_places(each))), None):
        if not before:
            Path(file.name).unlink()
        raise _in_use(places, shared)
    for path, found in others:
        is_old = time.time() - path.stat().st_mtime > _OLD_SECONDS
        is_ours = found.get("host") == socket.gethostname() and places.shared_with(_places(found))
        if found not in live and (is_old or is_ours):
            path.unlink()
    is_resumed = _places(before) == places and Path(places.run_directory, "run.json").is_file()
    own = _mark(places, before if is_resumed else {})
    holder = {"host": socket.gethostname(), "machine": machine(), "pid": os.getpid(), "started": time.time()}
    start = {"since": {str(device): moment for device, moment in own.since.items()}, "default": own.default}
    _write(file, {**holder, "is_over": False, **start, "places": asdict(places)})
    return own


def _in_use(places: Places, other: Mapping[str, Any]) -> ConfigError:
    place, run = places.shared_with(_places(other)), _places(other).run_directory
    return ConfigError(
        f"{place} is in use by run {run} (process {other.get('pid')}{since(other.get('started'))}). The "
        "files of two runs in one place cannot be distinguished. Wait for it, or give each run places of its "
        "own: write {run_dir} into program.command, such as --output {run_dir}/output, or set "
        "program.checkpoints and program.metrics. Nothing was started."
    )


def _is_live(path: Path, found: Mapping[str, Any], is_training: Callable[[Path], bool]) -> bool:
    """Return whether the command of a claim, or the program that it left, runs on this machine."""
    if found.get("is_over") is True or found.get("machine") != machine():
        return False
    with suppress(OSError), path.open("a+", encoding="utf-8") as file:
        if not _lock(file):
            return True
    with suppress(OSError):
        return is_training(Path(_places(found).run_directory))
    return False


def _mark(places: Places, before: Mapping[str, Any]) -> OwnFiles:
    """Return when the run started, by markers in its places; those of `before` stay."""
    given = _own_files(before) if before else OwnFiles(default=time.time_ns() - _TICK_NS)
    searched = [] if places.searched is None else [places.searched, *_mounts_below(places.searched)]
    moments = dict(filter(None, map(_marker, (places.run_directory, *places.named, *searched))))
    return OwnFiles({**moments, **given.since}, given.default)


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


def _at(path: Path) -> dict[str, Any]:
    with suppress(OSError), path.open(encoding="utf-8") as file:
        return _content(file)
    return {}


def _content(file: IO[str]) -> dict[str, Any]:
    """Return the claim in a file; empty for one that cannot be read."""
    file.seek(0)
    with suppress(ValueError, TypeError, AttributeError):
        found = json.loads(file.read())
        _places(found), _own_files(found)
        return dict(found)
    return {}


def _write(file: IO[str], record: Mapping[str, Any]) -> None:
    file.seek(0)
    file.truncate()
    json.dump(record, file)
    file.flush()


def _places(record: Mapping[str, Any]) -> Places:
    given = record.get("places", {})
    return Places(
        str(given.get("run_directory", "")), tuple(given.get("named", ())), given.get("searched") or None
    )


def _own_files(record: Mapping[str, Any]) -> OwnFiles:
    moments = {int(device): int(moment) for device, moment in record.get("since", {}).items()}
    return OwnFiles(moments, int(record.get("default", 0)))
