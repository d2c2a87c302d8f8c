"""The parts of a log that are more than lines: tracebacks, their chains, and help texts.

It says which line ends a traceback and which lines are source code or help; it judges no cause.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from trainyard.run.failure_logs.evidence_rules import EXCEPTION, HELP, LAUNCHER_EXCEPTIONS, OF_ANOTHER

_PREFIX = re.compile(
    r"^(?:\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.,]*(?:Z|[+-]\d\d:?\d\d)?\s)?(?:\S+ \| )?"
    r"(?:\[?(?:default|rank)?\d+\]?:\s?|\[rank\d+\]:\s?|\([^)]*pid=\d+[^)]*\)\s)*"
)
_TRACEBACK = "raceback (most recent call last)"
_CAUSED = re.compile(r"The above exception was the direct cause|Original Traceback \(most recent")
_CHAINED = "During handling of the above exception"
_SURVIVED = re.compile(r"^(?:Exception ignored in|--- Logging error ---)")
"""Python prints these tracebacks and goes on."""
_ENDED = re.compile(r"(?:KeyboardInterrupt|SystemExit|GeneratorExit)\b")
_SOURCE = re.compile(r"^ {4}(?!.*(?:\^\^|what\(\)))")


@dataclass(frozen=True)
class Raised:
    """The exception on the last line of a traceback."""

    name: str
    is_own: bool
    """Whether it is the program's own, and does not report the end of another process or of a connection."""
    caused_by: int
    """The number of the first of the exceptions that were raised `from` each other."""
    chain: int
    """The number of the first of the exceptions that Python printed as one chain."""


@dataclass
class Tracebacks:
    """All tracebacks of a log, by the index of their lines."""

    raised: dict[int, Raised] = field(default_factory=dict)
    no_evidence: set[int] = field(default_factory=set)
    """Lines of source code, and tracebacks that Python ignored."""


def read_tracebacks(lines: Sequence[str]) -> Tracebacks:
    """The tracebacks of a log."""
    found = Tracebacks()
    inside = survived = caused = chained = False
    newest: Raised | None = None
    for number, line in enumerate(lines):
        plain = _PREFIX.sub("", line)
        survived = survived or bool(_SURVIVED.match(plain))
        caused = caused or bool(_CAUSED.search(line))
        chained = chained or caused or _CHAINED in line
        if _TRACEBACK in line:
            inside = True
        elif inside and _SOURCE.match(plain):
            found.no_evidence.add(number)
        elif inside and (match := EXCEPTION.match(plain)) is not None:
            if survived:
                found.no_evidence.add(number)
            else:
                newest = _raised(match, number, newest if chained else None, caused)
                found.raised[number] = newest
            inside = survived = caused = chained = False
        elif inside and _ENDED.match(plain):
            inside = survived = caused = chained = False
    return found


def _raised(match: re.Match[str], number: int, earlier: Raised | None, caused: bool) -> Raised:
    name, message = match[1].rpartition(".")[2], match[2] or ""
    return Raised(
        name,
        name not in LAUNCHER_EXCEPTIONS and not OF_ANOTHER.search(message),
        earlier.caused_by if earlier is not None and caused else number,
        earlier.chain if earlier is not None else number,
    )


def lines_of_help(lines: Sequence[str]) -> set[int]:
    """The lines of help texts, which name what options are for."""
    found: set[int] = set()
    inside = False
    for number, line in enumerate(lines):
        inside = bool(HELP.match(line)) or (inside and (not line.strip() or line[0].isspace()))
        if inside:
            found.add(number)
    return found
