"""Facts that the observer reported about the processes of a run, and the Pythons that ran without it.

    events ──note──> steps, machine, modules, exceptions ──> run.json: observed, outcome
    processes ──check──> reasons, such as "not observed: PYTHONPATH was replaced"

It reads no file and no process: both are passed in.
"""

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from trainyard.programs.program_events import LoggedFigures, ObservedFact, ProgramEvent, WrittenCheckpoint
from trainyard.programs.sources import Source

OBSERVER = Path(__file__).parent / "observer"
"""The folder on a program's PYTHONPATH."""
EVENTS_VARIABLE = "TRAINYARD_EVENTS"
_MOST_PROCESSES, _MOST_TEXT, _MOST_MODULES, _MOST_EXCERPTS = 64, 500, 20_000, 8
# Ray ends its workers by SIGKILL once the driver has ended, and Jupyter's client a kernel that has run all
# cells and needs longer than five seconds to end. Both fail themselves if a worker dies before that.
_WORKER_OF_RAY, _KERNEL = "default_worker.py", "ipykernel_launcher"
_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'\s+File "(.+)", line (\d+)')
_EXIT_CODE = re.compile(rb"\x0e\x33(.).*", re.DOTALL)
"""The first number that srand48_r of glibc always stores, and the exit code behind it."""
_ERROR = re.compile(r"([A-Za-z_][\w.]*)(?:: (.*))?$")


@dataclass(frozen=True)
class RunningPython:
    """A Python of the program."""

    pid: int
    parent: int
    words: tuple[str, ...]
    environment: Mapping[str, str]
    """That which it was started with."""


@dataclass(frozen=True)
class ProgramError:
    """An exception that ended an interpreter of the program."""

    type: str
    message: str = ""
    place: str = ""
    """FILE:LINE of what caused it, relative to the repository."""
    cause: str = ""
    """`TYPE: MESSAGE` of the exception that caused it."""
    code: str = ""
    """The errno of the cause, or what a service answered: `[Errno 28]`, `HTTP 503`."""
    rank: int | None = None
    """The rank of its process, if several trained; of several that failed, the first."""

    def __str__(self) -> str:
        text = ": ".join(filter(None, (self.type or "an exception", self.message.split("\n")[0])))
        return f"{text} ({self.place})" if self.place else text

    def to_json(self) -> dict[str, Any]:
        absent = {"cause": "", "code": "", "rank": None}
        return {n: value for n, value in asdict(self).items() if n not in absent or value != absent[n]}


@dataclass(frozen=True)
class ReadFile:
    """A file that torch.load has read."""

    path: Path
    device: int = 0
    changed: int = 0
    """When it was last changed, in nanoseconds on the clock of its file system."""


@dataclass(eq=False)
class _Process:
    """What one process reported."""

    rank: int = 0
    script: str = ""
    parents: tuple[int, ...] = ()
    steps: int = 0
    of_passes: bool = True
    """Whether these are backward passes, because no optimizer has stepped."""
    last_step: int = -1
    """The place of its last step among all events."""
    machine: dict[str, Any] = field(default_factory=dict)
    error: ProgramError | None = None
    error_at: int = -1
    ended_at: int = -1
    exit_code: int = 0
    """That with which it ended."""
    weights_changed: bool | None = None
    excerpts: "tuple[tuple[bytes, bytes], ...] | None" = None
    """Bytes of parameters from before its first step and at its end; None if it trained none of torch."""
    models: list[int] = field(default_factory=list)
    """The steps after which the training of another model began."""
    is_partial: bool = False
    """Whether it made steps that were only counted: their losses were not seen."""
    installed: dict[str, set[str]] = field(default_factory=dict)
    """The modules that it imported from packages, by the folder of these."""
    began_at: int = 0
    began: float = 0.0
    """When it was started or forked, in Unix seconds, as of the next."""
    seen: float = 0.0
    """When it last reported anything."""
    is_killed: bool = False
    """Whether its parent reports that a signal has ended it."""
    is_stopped: bool = False
    """Whether that signal was its parent's own."""

    @property
    def is_of_ray(self) -> bool:
        """Whether it is a worker of Ray, whose driver learns of its exceptions, too."""
        return Path(self.script).name == _WORKER_OF_RAY

    @property
    def is_closed(self) -> bool:
        """Whether it was seen to end, or its launcher kills such a process when all is done."""
        return self.ended_at >= 0 or self.is_of_ray or self.script == _KERNEL


@dataclass
class Observations:
    """Collects what the observer reports of one start of a program."""

    modules: dict[str, str] = field(default_factory=dict)
    """SHA-256 by absolute path of the files of the repository that were imported."""
    certain: set[tuple[str, str]] = field(default_factory=set)
    """Those that nobody can have edited since their import, of all processes."""
    unobserved: list[str] = field(default_factory=list)
    """Why Pythons of the program had no observer, a reason each."""
    reads: list[ReadFile | None] = field(default_factory=list)
    """What torch.load has read before the second step; None for another thing than a path."""
    leader: int | None = None
    """The process whose training counts: it has saved the checkpoint. None: the one with the most steps."""
    _processes: dict[int, _Process] = field(default_factory=dict)
    _waiting: set[int] = field(default_factory=set)
    _count: int = 0

    def note(self, event: ProgramEvent) -> None:
        """Take an event; one that was declared says nothing here."""
        if isinstance(event, LoggedFigures | WrittenCheckpoint):
            if event.source is Source.OBSERVED:
                self._note_step(event)
            return
        if not isinstance(event, ObservedFact):
            return
        self._note_step(event)
        process, facts = self._processes[event.pid], dict(event.facts)
        match event.kind:
            case "loaded":
                parents = facts.get("parents")
                process.script = _text(facts.get("script"))
                process.parents = tuple(parents) if isinstance(parents, list) else ()
                process.began = began if isinstance(began := facts.get("began"), float) else 0.0
            case "machine":
                process.machine = facts
            case "modules" if isinstance(facts.get("files"), dict):
                files = facts["files"].items()
                known = {path: sha for path, sha in files if isinstance(sha, str) and len(sha) == 64}
                self.modules |= known if len(self.modules) < _MOST_MODULES else {}
                edited = facts["edited"] if isinstance(facts.get("edited"), list) else known
                self.certain |= {(path, sha) for path, sha in known.items() if path not in edited}
                places = facts["installed"] if isinstance(facts.get("installed"), dict) else {}
                process.installed = {
                    place: {name for name in names if isinstance(name, str)}
                    for place, names in places.items()
                    if isinstance(names, list) and "\0" not in place
                }
            case "exception":
                process.error_at = self._count
                named = (facts.get(name) for name in ("type", "message", "place", "cause", "code"))
                kind, message, at, cause, number = map(_text, named)
                process.error = ProgramError(kind, message, at, cause, number)
            case "read" if (event.step or 0) <= 1:  # later ones come after a resume
                path, changed = _text(facts.get("path")), facts.get("changed")
                device, moment = changed if isinstance(changed, list) and len(changed) == 2 else (0, 0)
                numbers = (each if isinstance(each, int) else 0 for each in (device, moment))
                self.reads.append(ReadFile(Path(path), *numbers) if path else None)
            case "anew":
                process.steps = 0
            case "killed" if isinstance(child := facts.get("child"), int) and child in self._processes:
                ended = self._processes[child]
                ended.is_stopped = facts.get("stopped") is True
                ended.is_killed = not ended.is_stopped
            case "exit":
                process.ended_at = self._count
                process.exit_code = code if isinstance(code := facts.get("code"), int) else 0
                changed = facts.get("weights_changed")
                process.weights_changed = changed if isinstance(changed, bool) else None
                process.is_partial = facts.get("partial") is True
                process.excerpts = _excerpts(facts.get("excerpts"))
                models = facts.get("models")
                process.models = [n for n in models if isinstance(n, int)] if isinstance(models, list) else []

    def note_exit_code(self, pid: int, content: bytes) -> None:
        """Take the file in which the C library of a process has stored its exit code, if it has."""
        if (found := _EXIT_CODE.fullmatch(content)) and pid in self._processes:
            self._processes[pid].exit_code = found[1][0]

    def _note_step(self, event: LoggedFigures | WrittenCheckpoint | ObservedFact) -> None:
        self._count += 1
        new, step = _Process(began_at=self._count), event.step
        process = self._processes.setdefault(event.pid, new)
        process.rank, process.seen = event.rank, event.time or 0.0
        if step is not None and process.of_passes and not event.of_passes:
            process.steps, process.of_passes = 0, False
        if step is not None and step > process.steps and process.of_passes == event.of_passes:
            process.steps, process.last_step = step, self._count
            if not isinstance(event, ObservedFact) or event.kind != "exit":
                process.error = None  # it has survived what a notebook has shown

    @property
    def _leaders(self) -> list[_Process]:
        """The processes whose steps are those of the run: the leader, else those that have as many as any."""
        if (leader := self._processes.get(self.leader or 0)) is not None:
            return [leader]
        are_passes = all(each.of_passes for each in self._processes.values())
        counting = [each for each in self._processes.values() if each.of_passes == are_passes]
        most = max((each.steps for each in counting), default=0)
        return [each for each in counting if each.steps == most]

    def leads(self, pid: int) -> bool:
        """Return whether the rows of this process are those of the run."""
        return self._processes.setdefault(pid, _Process()) in self._leaders

    @property
    def are_passes(self) -> bool:
        """Whether the steps are backward passes: no optimizer has stepped."""
        return all(each.of_passes for each in self._leaders)

    @property
    def steps(self) -> int | None:
        return max((each.steps for each in self._leaders), default=0) or None

    @property
    def are_losses_partial(self) -> bool:
        """Whether the training made steps whose losses were not seen, as in a CUDA graph."""
        return any(each.is_partial for each in self._leaders)

    @property
    def weights_changed(self) -> bool | None:
        """Whether the training has changed the weights; None if that is not known."""
        known = {each.weights_changed for each in self._processes.values() if each.steps}
        leaders = {each.weights_changed for each in self._leaders}
        return True if True in known else False if False in leaders else None

    @property
    def models(self) -> list[int]:
        """The steps after which another model was trained, as for each fold of a cross-validation."""
        return self._leaders[0].models if self._leaders else []

    @property
    def excerpts(self) -> tuple[tuple[bytes, bytes], ...] | None:
        """Bytes of the parameters that were trained, before and after it; None if none were of torch."""
        known = [each.excerpts for each in self._leaders if each.excerpts is not None]
        pairs = tuple(pair for some in known for pair in some)
        return pairs[:: len(pairs) // _MOST_EXCERPTS + 1] if known else None

    @property
    def installed(self) -> dict[str, set[str]]:
        """The modules that the training imported from packages, by the folder of these."""
        found: dict[str, set[str]] = {}
        trained = [each for each in self._leaders if each.steps]
        for place, names in (pair for each in trained for pair in each.installed.items()):
            found[place] = found.get(place, set()) | names
        return found

    @property
    def machine(self) -> dict[str, Any]:
        """The machine, and the `world` that joined it, as the first rank of those that trained has them."""
        leaders = self._leaders
        ranks = sorted(
            self._processes.values(), key=lambda each: (each not in leaders, -each.steps, each.rank)
        )
        return next((each.machine for each in ranks if each.machine), {})

    def error(self, *, has_failed: bool) -> ProgramError | None:
        """Return the exception that ended the program: the first one of those that trained, else of any.

        Of a program that ended with 0 (not `has_failed`), one that a process survived does not count, and the
        exit code or signal of a process that trained does: a shell, or a parent, may have hidden it.
        """
        failed = [(self._is_survived(each), each) for each in self._processes.values() if each.error]
        failed.sort(key=lambda each: (each[0], not each[1].steps, each[1].error_at))
        if failed and (has_failed or not failed[0][0]):
            first, error = failed[0][1], failed[0][1].error
            others = {each.rank for each in self._processes.values() if each.steps} - {first.rank}
            return error and (replace(error, rank=first.rank) if others and first.steps else error)
        every = () if has_failed else self._processes.values()
        ended = [each for each in every if each.steps and (each.exit_code or each.is_killed)]
        lost = next((each for each in ended if not self._is_made_good(each)), None)
        if lost is not None and lost.is_killed:
            return ProgramError("killed", lost.script or "a process that trained")
        return ProgramError("SystemExit", str(lost.exit_code)) if lost else None

    def _is_made_good(self, ended: _Process) -> bool:
        """Return whether a training was started again after one has ended, or Ray takes care of it."""
        at = max(ended.ended_at, ended.error_at, ended.last_step)
        later = (each for each in self._processes.values() if each.began_at > at and each.steps)
        is_again = any(each.began >= ended.seen for each in later)  # a fork may report itself late
        return is_again or ended.is_of_ray

    def _is_survived(self, failed: _Process) -> bool:
        """Return whether others made up for a process that raised an exception.

        For one that trained, that is a later training. A helper is none of it: a process above it, which
        ended later without an exception, or others that trained on, do without it.
        """
        if failed.steps:
            return self._is_made_good(failed)
        above = [each for pid, each in self._processes.items() if pid in failed.parents]
        is_known = any(each.ended_at > failed.error_at and each.error is None for each in above)
        return is_known or any(each.last_step > failed.error_at for each in self._processes.values())

    @property
    def has_clean_end(self) -> bool:
        """Return whether a process that trained was seen to end, and no exception ended the program."""
        has_ended = any(each.steps and each.ended_at >= 0 for each in self._processes.values())
        return has_ended and self.error(has_failed=False) is None

    @property
    def vanished(self) -> str | None:
        """The script of a process that trained, if it was not seen to end: it was killed, or still runs.

        Of several processes each rank counts; others may be daemons, which their parent ends.
        """
        leaders = self._leaders
        is_ended = any(each.is_closed for each in leaders)
        for each in self._processes.values():
            world = each.machine.get("world")
            size = world.get("size") if isinstance(world, dict) else None
            counts = (isinstance(size, int) and size > 1) or (each in leaders and not is_ended)
            is_open = not each.is_closed and not each.is_stopped
            if each.steps and is_open and counts and not self._is_made_good(each):
                return each.script or "a process that trained"
        return None

    def check(self, running: Sequence[RunningPython]) -> None:
        """Note why the Pythons that run now are not observed.

        One that could be, and has reported nothing by the second call, did not run the observer.
        """
        waiting = set[int]()
        for each in running:
            reason = why_unobserved(each.words, each.environment)
            if reason is None and not {each.pid, each.parent} & self._processes.keys():
                waiting.add(each.pid)
                reason = "its sitecustomize did not run" if each.pid in self._waiting else None
            text = f"{_options_of(each.words)[1]}: {reason}"
            if reason and text not in self.unobserved and len(self.unobserved) < _MOST_PROCESSES:
                self.unobserved.append(text)
        self._waiting = waiting

    def close(self, *, is_on: bool) -> None:
        """Say at the end why no step was observed, if nothing else does."""
        if self.steps is None and not self.unobserved:
            reported = "no step was seen in a library" if self._processes else "no Python reported"
            self.unobserved.append(reported if is_on else "program.observe is false")

    def to_json(self) -> dict[str, Any]:
        """Return `observed` of `run.json`."""
        trained = [
            {"pid": pid, "rank": each.rank, "script": each.script, "steps": each.steps}
            for pid, each in self._processes.items()
            if each.steps
        ]
        machine = dict(self.machine)
        facts = {
            "processes": trained[:_MOST_PROCESSES],
            "world": machine.pop("world", None),
            "machine": machine,
        }
        return {name: value for name, value in facts.items() if value} | {"unobserved": self.unobserved}


def why_unobserved(words: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """Return why a Python that was started so has no observer; None if it has one."""
    if kept_out := set(_options_of(words)[0]) & set("EIS"):
        return f"python -{min(kept_out)} does not import it"
    if EVENTS_VARIABLE not in environment:
        return "its environment was replaced"
    if str(OBSERVER) not in environment.get("PYTHONPATH", "").split(os.pathsep):
        return "PYTHONPATH was replaced"
    return None


def _options_of(words: Sequence[str]) -> tuple[str, str]:
    """Return the letters of a Python's own options, and the name of its script or module."""
    letters, rest = "", list(words[1:])
    while rest and re.match(r"-[^cm-]", rest[0]):
        option = rest.pop(0)
        if option[1] not in "WX":
            letters += option[1:]
        elif len(option) == 2:
            del rest[:1]
    name = rest[1] if rest[:1] == ["-m"] and rest[1:] else rest[0] if rest else words[0]
    return letters, Path(name).name[:_MOST_TEXT]


def last_traceback(output: str) -> ProgramError | None:
    """Return the error of the traceback that is the last thing in a program's output; None if none is.

    "Exception ignored in" is none: the program continued. More lines may follow an error of CUDA.
    """
    lines = [re.sub(r"^\[[^\]]*\]:\s?", "", line) for line in output.splitlines() if line.strip()]
    at = max((number for number, line in enumerate(lines) if line.strip() == _TRACEBACK), default=None)
    if at is None or (at and lines[at - 1].startswith("Exception ignored in")):
        return None
    end = next((number for number in range(at + 1, len(lines)) if not lines[number].startswith(" ")), None)
    found = None if end is None else _ERROR.fullmatch(lines[end])
    if end is None or found is None or (end + 1 < len(lines) and "CUDA error" not in lines[end]):
        return None
    frames = list(filter(None, map(_FRAME.match, lines[at:end])))
    place = f"{Path(frames[-1][1]).name}:{frames[-1][2]}" if frames else ""
    return ProgramError(found[1], (found[2] or "")[:_MOST_TEXT], place)


def _excerpts(value: object) -> tuple[tuple[bytes, bytes], ...] | None:
    """Return the pairs that an event has in hexadecimal; None if it has none."""
    with suppress(TypeError, ValueError):
        return tuple((bytes.fromhex(first), bytes.fromhex(last)) for first, last in value)  # type: ignore[attr-defined]
    return None


def _text(value: object) -> str:
    return value[:_MOST_TEXT] if isinstance(value, str) else ""
