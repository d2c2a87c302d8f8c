"""Find the parts of a log that span several lines: tracebacks, their chains, and help texts.

It finds the last line of each traceback, and the lines of source code and help. It judges no cause.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from trainyard.watch.failure_logs.evidence_rules import EXCEPTION, HELP, LAUNCHER_EXCEPTIONS, OF_ANOTHER

_TIME = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.,]*(?:Z|[+-]\d\d:?\d\d)?\s(?:std(?:out|err) [FP] )?"
_PREFIX = re.compile(
    rf"(?:{_TIME}|\[pod/[\w./-]+\] ?|[\w.-]+ +\| |\[?(?:default|rank)?\d{{1,6}}\]?:\s?"
    r"|\([^()\n]{0,80}pid=\d+[^()\n]{0,80}\)\s)+"
)
"""What kubectl, container logs, compose, torchrun, Slurm and Ray write before a line of a process."""
_STAMP = re.compile(_TIME)
_TRACEBACK = "raceback (most recent call last)"
_CAUSED = re.compile(r"The above exception was the direct cause|Original Traceback \(most recent")
_CHAINED = "During handling of the above exception"
_SURVIVED = re.compile(r"^(?:Exception ignored in|--- Logging error ---)")
"""Python prints these tracebacks and continues."""
_ENDED = re.compile(r"(?:KeyboardInterrupt|SystemExit|GeneratorExit)\b")
_SOURCE = re.compile(r"^ {4}(?!.*(?:\^\^|what\(\)))")


@dataclass(frozen=True)
class Raised:
    """The exception on the last line of a traceback."""

    name: str
    is_own: bool
    """Whether it is the program's own, and not a report that another process or a connection ended."""
    caused_by: int
    """The number of the first exception in its chain of `raise … from`."""
    chain: int
    """The number of the first exception in the chain that Python printed."""


@dataclass
class Tracebacks:
    """All tracebacks of a log, by the index of their lines."""

    raised: dict[int, Raised] = field(default_factory=dict)
    no_evidence: set[int] = field(default_factory=set)
    """Lines of source code, and of tracebacks that Python ignored."""


@dataclass
class _Reading:
    """How far a traceback of one process is read."""

    inside: bool = False
    survived: bool = False
    caused: bool = False
    chained: bool = False
    newest: Raised | None = None

    def end(self) -> None:
        self.inside = self.survived = self.caused = self.chained = False


def split_prefix(line: str) -> tuple[str, str]:
    """The process that a line is from, as its prefix names it, and the line without the prefix."""
    found = _PREFIX.match(line)
    if found is None:
        return "", line
    return _STAMP.sub("", found[0]), line[found.end() :]


def read_tracebacks(lines: Sequence[str]) -> Tracebacks:
    """The tracebacks of a log; those of several processes may be mixed if prefixes tell them apart."""
    found = Tracebacks()
    readings: dict[str, _Reading] = {}
    for number, line in enumerate(lines):
        source, plain = split_prefix(line)
        now = readings.setdefault(source, _Reading())
        if source and not now.inside and (bare := readings.get("")) is not None and bare.inside:
            now = bare  # a rank that names itself in its last line only
        _read_line(found, now, number, plain)
    return found


def _read_line(found: Tracebacks, now: _Reading, number: int, line: str) -> None:
    now.survived = now.survived or bool(_SURVIVED.match(line))
    now.caused = now.caused or bool(_CAUSED.search(line))
    now.chained = now.chained or now.caused or _CHAINED in line
    if _TRACEBACK in line:
        now.inside = True
    elif now.inside and _SOURCE.match(line):
        found.no_evidence.add(number)
    elif now.inside and (match := EXCEPTION.match(line)) is not None:
        if now.survived:
            found.no_evidence.add(number)
        else:
            now.newest = _raised(match, number, now.newest if now.chained else None, now.caused)
            found.raised[number] = now.newest
        now.end()
    elif now.inside and _ENDED.match(line):
        now.end()


def _raised(match: re.Match[str], number: int, earlier: Raised | None, caused: bool) -> Raised:
    name, message = match[1].rpartition(".")[2], match[2] or ""
    return Raised(
        name,
        not LAUNCHER_EXCEPTIONS.fullmatch(name) and not OF_ANOTHER.search(message),
        earlier.caused_by if earlier is not None and caused else number,
        earlier.chain if earlier is not None else number,
    )


def lines_of_help(lines: Sequence[str]) -> set[int]:
    """Return the lines of help texts, which describe options and report nothing."""
    found: set[int] = set()
    inside = False
    for number, line in enumerate(lines):
        inside = bool(HELP.match(line)) or (inside and (not line.strip() or line[0].isspace()))
        if inside:
            found.add(number)
    return found
