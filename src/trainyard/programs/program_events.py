"""Read the events that a training program reports, from the file that TRAINYARD_EVENTS names.

    {"event": "begin", "step": 0, "steps": 100, "time": 1700000000.0}
    {"event": "row", "step": 1, "loss": 2.5, "grad_norm": "nan"}
    {"event": "saved", "step": 100, "path": "/out/checkpoint-100", "files": {NAME: [size, mtime_ns]}}
    {"event": "end", "step": 100, "steps": 100}

Steps are optimizer steps done: the first row has 1. `trainyard.log` and the callbacks in `integrations/`
write the file, and so does the observer, whose lines have `"source": "observed"`, `"pid"` and `"rank"`:

    {"event": "loaded", "python": "3.11.7", "script": "train.py", "parents": [PID, …],
     "began": 1700000000.0}  an interpreter began
    {"event": "machine", "torch": "2.13.0", "seed": 1, "world": {"rank": 0, "size": 1}, …}  at the first step
    {"event": "row", "step": 7, "loss": 2.5, "learning_rate": 0.1, "accumulated": 4}
    {"event": "saved", "step": 7, "path": "/out/ckpt.pt", "call": "torch.save",
     "files": {NAME: [size, mtime_ns, device, inode]}, "weights": "trained"}
    {"event": "modules", "files": {"/repository/model.py": SHA256}, "edited": [PATH, …],
     "installed": {"/venv/lib/python3.11/site-packages": ["torch", "google/protobuf", …]}}
    {"event": "exception", "type": "ValueError", "message": "…", "place": "train.py:12"}  ended an interpreter
    {"event": "read", "path": "/out/ckpt.pt"}  torch.load, before the second step; "" for another than a path
    {"event": "anew"}  the steps until now were undone: the next one is the first
    {"event": "killed", "child": PID, "stopped": false}  a process of multiprocessing; stopped: by its parent
    {"event": "exit", "step": 7, "weights_changed": true, "excerpts": [[HEX, HEX], …]}

An observed row is of the optimizer steps of its process, or, with `"passes": true`, of its backward passes,
as long as no optimizer has stepped. `accumulated` counts the passes between two steps, if several: then
`loss` is that of the last one, times their number if the program divides it by that. `nan_steps` says that
another loss since the row before was not finite. The first 99 steps have a row each, then every second one,
from 200 every fourth, and so on; of the others at most two a second, and the last one. A process that has
not stepped has events without a step. `weights_changed` is false if all numbers of the parameters that were
compared are those from before the first step, and absent if that is not known; `weights` is the relation of a
save to them: `trained`, `given` (those from before the first step), `near`, `other`, `unknown`, or `none` if
it has no tensor. `excerpts` has, of some parameters, the bytes of a few numbers from before the first step,
and those at the end, by which a file is known whose save was not seen. An exit also has `"models": [60, 120]`
if further models were trained after these steps, one after the other. A save of joblib has `"nan": true` if
an array in it has a NaN. A file `EVENTS.PID` has the exit code of a process that stepped.
The file is untrusted, and an event is a hint: a checkpoint's own files show whether it is complete.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from trainyard.errors import DamagedFileError
from trainyard.programs.metrics.figure_names import row_of_figures
from trainyard.programs.sources import Source
from trainyard.run.records import Row
from trainyard.run.untrusted_files import MOST_LINE_BYTES, open_regular, parse_json_line

_MOST_NAME = 200
_MOST_PATH = 4096
_MOST_FIGURES = 1000
_READ_BYTES = 1 << 20
_PROTOCOL = {"event", "step", "time", "source", "pid", "rank", "passes"}
_FACTS = ("loaded", "machine", "modules", "exception", "read", "anew", "killed", "exit")
"""The events of the observer that are neither rows nor checkpoints."""
RELATIONS = ("trained", "near", "given", "unknown", "other", "none")
"""Those of saved weights to the trained ones; of several files of one save the first one counts."""


@dataclass(frozen=True)
class TrainingSpan:
    """Training started, or resumed after `step` steps, or ended after them."""

    step: int
    steps: int | None = None
    """The planned steps."""
    time: float | None = None
    """Unix seconds, like the other events' times."""
    has_ended: bool = False


@dataclass(frozen=True)
class LoggedFigures:
    """The figures of a step, by the program's own names; numbers that are not finite are kept."""

    step: int
    figures: dict[str, float] = field(default_factory=dict)
    time: float | None = None
    source: Source = Source.DECLARED
    rank: int = 0
    """The process that logged them; only that of rank 0 counts."""
    pid: int = 0
    of_passes: bool = False
    """Whether the step counts backward passes, as of the next."""

    def row(self) -> Row:
        """Return the figures by the names of `metrics.jsonl`; a name that it does not know is kept."""
        place = {"step": self.step} if self.time is None else {"step": self.step, "time": self.time}
        return row_of_figures(self.figures.items()) | place


@dataclass(frozen=True)
class WrittenCheckpoint:
    """A checkpoint that the program declares to be complete, or files whose save the observer saw end."""

    step: int | None
    """None: it was observed before any step of an optimizer."""
    path: Path
    files: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Path in the checkpoint -> size in bytes and time of modification in nanoseconds; if it was observed,
    also device and inode, by which a file is found that was renamed afterwards."""
    time: float | None = None
    source: Source = Source.DECLARED
    call: str = ""
    """The function that was observed, such as `torch.save`."""
    rank: int = 0
    pid: int = 0
    of_passes: bool = False
    has_nan: bool = False
    """Whether an array in it has a NaN, of a format that cannot be read afterwards."""
    weights: str = ""
    """The relation of its weights to those that the program trained; empty if none was searched."""


@dataclass(frozen=True)
class ObservedFact:
    """A fact that the observer reports of one process."""

    kind: str
    """One of _FACTS."""
    pid: int
    rank: int
    facts: dict[str, Any]
    """The event's other members, unchecked."""
    step: int | None = None
    time: float | None = None
    of_passes: bool = False


ProgramEvent = TrainingSpan | LoggedFigures | WrittenCheckpoint | ObservedFact


class ProgramEvents:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._inode = self._offset = 0
        self._rest = b""
        self.bad_lines = 0
        """The number of lines so far that were no event."""

    def poll(self) -> list[ProgramEvent]:
        """Return the events that were added; a line without its end is left for the next call.

        A file that was replaced or shortened is read again from its start. One that cannot be read has no
        events.
        """
        try:
            with open_regular(self.path, links=False) as file:
                facts = os.fstat(file.fileno())
                if facts.st_ino != self._inode or facts.st_size < self._offset:
                    self._inode, self._offset, self._rest = facts.st_ino, 0, b""
                file.seek(self._offset)
                events: list[ProgramEvent] = []
                while self._offset < facts.st_size and (piece := file.read(_READ_BYTES)):
                    self._offset += len(piece)
                    events += self._events_in(piece)
                return events
        except (OSError, DamagedFileError):
            return []

    def _events_in(self, piece: bytes) -> Iterator[ProgramEvent]:
        """Yield the events of the lines that end in `piece`; of one that is too long, the start is kept."""
        *lines, rest = piece.split(b"\n")
        for line in lines:
            line, self._rest = self._rest + line, b""
            event = parse_event(line) if len(line) <= MOST_LINE_BYTES else None
            if event is not None:
                yield event
            self.bad_lines += event is None and bool(line.strip())
        self._rest = (self._rest + rest)[: MOST_LINE_BYTES + 1]


def exit_codes(events: Path) -> Iterator[tuple[int, bytes]]:
    """Yield processes and the files into which the C library has written their exit codes; remove these."""
    for path in events.parent.glob(f"{events.name}.*"):
        with suppress(OSError, ValueError):
            yield int(path.suffix[1:]), path.read_bytes()
            path.unlink()


def parse_event(line: bytes) -> ProgramEvent | None:
    found = parse_json_line(line) or {}
    kind, is_observed = found.get("event"), found.get("source") == Source.OBSERVED
    source = Source.OBSERVED if is_observed else Source.DECLARED
    step, steps, time = _count(found.get("step")), _count(found.get("steps")), _time(found.get("time"))
    pid, rank, of_passes = _count(found.get("pid")) or 0, _count(found.get("rank")) or 0, "passes" in found
    if is_observed and kind in _FACTS:
        facts = {name: value for name, value in found.items() if name not in _PROTOCOL}
        return ObservedFact(str(kind), pid, rank, facts, step, time, of_passes)
    if kind == "saved" and (step is not None or is_observed):
        path, files = str(found.get("path")), _files(found.get("files", {}))
        call = str(found.get("call", ""))[:_MOST_NAME]
        if path.startswith("/") and len(path) <= _MOST_PATH and "\0" not in path and files is not None:
            more = rank, pid, of_passes, "nan" in found, str(found.get("weights", ""))[:_MOST_NAME]
            return WrittenCheckpoint(step, Path(path), files, time, source, call, *more)
    elif kind == "row" and step is not None:
        if (figures := _figures(found)) is not None:
            return LoggedFigures(step, figures, time, source, rank, pid, of_passes)
    elif kind in ("begin", "end") and step is not None:
        return TrainingSpan(step, steps, time, kind == "end")
    return None


def _count(value: object) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63
    return value if is_count else None  # type: ignore[return-value]


def _time(value: object) -> float | None:
    number = _figure(value)
    return number if number is not None and 0 < number < 1 << 40 else None


def _figure(value: object) -> float | None:
    if isinstance(value, str) and value in ("nan", "inf", "-inf"):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if abs(value) > sys.float_info.max:  # an integer that no float can hold
        return float("inf") if value > 0 else float("-inf")
    return value


def _figures(found: dict[str, Any]) -> dict[str, float] | None:
    """Return the numbers of a row; None if there are too many. Values that are not numbers are left out."""
    pairs = ((name, _figure(value)) for name, value in found.items() if name not in _PROTOCOL)
    named = {name: number for name, number in pairs if number is not None}
    is_sane = len(named) <= _MOST_FIGURES and max(map(len, named), default=0) <= _MOST_NAME
    return named if is_sane else None


def _files(value: object) -> dict[str, tuple[int, ...]] | None:
    if not isinstance(value, dict):
        return None
    files = {}
    for name, facts in value.items():
        path = PurePosixPath(name)
        if not path.parts or path.is_absolute() or ".." in path.parts or "\0" in name:
            return None
        match facts:
            case [int(), int()] | [int(), int(), int(), int()] if min(facts) >= 0 and max(facts) < 1 << 64:
                files[name] = tuple(facts)
            case _:
                return None
    return files
