"""Find the lines of a log that state an error: exceptions that end a traceback, and errors that tools print.

Tracebacks of several processes may be mixed if prefixes tell them apart. It judges no cause.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from trainyard.watch.failure_logs.log_text import LogText, has_words, split_prefix

_TRACEBACK = "raceback (most recent call last)"
_CHAINED = re.compile(r"(The above exception was the direct cause)|During handling of the above exception")
_ORIGINAL = "Original Traceback (most recent call last)"
_SURVIVED = re.compile(r"^(?:Exception ignored in|--- Logging error ---)")
"""Python prints these tracebacks and continues."""
_FRAME = re.compile(r'^\s*(?:File "([^"]+)", line (\d+)|│ ([^│:]+\.py):(\d+) in )')
"""A frame as Python writes it, or as rich draws it."""
_LIBRARY = re.compile(r"(?:site|dist)-packages/|/lib(?:64)?/python3|(?i:/python3\d*/lib/)|<frozen ")
_SOURCE = re.compile(r"^ {4}(?!.*(?:\^\^|what\(\)))")
_INDENT = re.compile(r"[ >]+(?=Traceback)|^ {2}traceback : (?=Traceback)")
_EXCEPTION = re.compile(
    r"((?:[A-Za-z_]\w*\.)*(?:[A-Z_]\w*(?:Error|Exception|Failure|Fault|Iteration|Interrupt|Exit)|Exception)"
    r"|(?:[a-z_]\w*\.)+[A-Za-z]\w*)(?::(?:\s(.*))?)?$"
)
"""The last line of a traceback: a class, a colon, a message."""
_FALLBACKS = ("ModuleNotFoundError", "ImportError", "KeyError", "AttributeError", "StopIteration")
"""Programs catch these to try something else; what fails then is the error."""
EVENT = re.compile(r"\bWarning\s+[A-Z]")
"""A warning of Kubernetes, which is an error of a pod."""
_LONGEST_STATED = 2000
_LAST_LINES = 40
"""An exception without a traceback counts only within this many lines of the end of a log."""


@dataclass(frozen=True)
class ErrorLine:
    """A line that states an error."""

    number: int
    """The index of the line."""
    text: str
    """The line without the prefix of its collector."""
    source: str = ""
    """The process that the line is from, as its prefix names it; empty if it has none."""
    name: str = ""
    """The type of the exception that the line ends a traceback with; empty for another line."""
    place: str = ""
    """File and line of the innermost frame in a file of the program's own."""
    in_library: bool = False
    """Whether the innermost frame is in an installed package."""
    is_carrier: bool = False
    """Whether it only says that something ended."""


@dataclass
class _Reading:
    """The state while a traceback of one process is read."""

    inside: bool = False
    survived: bool = False
    link: str = ""
    """How the next exception is linked to the last one: `cause`, `during`, `original` or nothing."""
    last: ErrorLine | None = None
    file: str = ""
    place: str = ""
    indent: str = ""


@dataclass
class _Found:
    """What is found in a log."""

    errors: dict[int, ErrorLine] = field(default_factory=dict)
    code: set[int] = field(default_factory=set)
    """Lines of source code, and of tracebacks that Python ignored."""

    def add_stated(self, number: int, source: str, line: str) -> None:
        """Add a line if a tool states an error by it."""
        if not has_words("stated", line) or len(line) > _LONGEST_STATED:
            return
        is_event = "NCCL WARN" in line or EVENT.search(line)
        if is_event or not (has_words("quiet", line) or has_words("continues", line)):
            self.errors[number] = ErrorLine(number, line, source, is_carrier=has_words("carrier", line))

    def read_traceback(self, now: _Reading, error: ErrorLine) -> bool:
        """Read a line, given as an error, as part of a traceback; return whether it is one."""
        line = error.text
        now.survived = now.survived or bool(_SURVIVED.match(line))
        if link := _CHAINED.search(line):
            now.link = "cause" if link[1] else "during"
            return True
        line = line.removeprefix(now.indent)
        if _TRACEBACK in line:
            now.link = "original" if _ORIGINAL in line else now.link
            indent = _INDENT.match(line)
            now.inside, now.file, now.place = True, "", ""
            now.indent += (" " * 4 if "traceback :" in indent[0] else indent[0]) if indent else ""
        elif (frame := _FRAME.match(line)) is not None:
            now.inside, now.file = True, (frame[1] or frame[3]).replace("\\", "/")
            if not _LIBRARY.search(now.file):
                now.place = f"{now.file}:{frame[2] or frame[4]}"
        elif not now.inside:
            return False
        elif _SOURCE.match(line):
            self.code.add(error.number)
        elif (match := _EXCEPTION.match(line.strip())) is not None and not line.startswith("  "):
            name = match[1].rpartition(".")[2]
            self._end_traceback(now, replace(error, text=line.strip(), name=name))
        else:
            return False
        return True

    def _end_traceback(self, now: _Reading, error: ErrorLine) -> None:
        error = replace(error, place=now.place, in_library=bool(_LIBRARY.search(now.file)))
        last = now.last if now.link and now.last and now.last.number in self.errors else None
        if now.survived:
            self.code.add(error.number)
        else:
            is_fallback = now.link == "during" and last is not None and last.name in _FALLBACKS
            if last is not None and (now.link == "original" or is_fallback):
                del self.errors[last.number]
            self.errors[error.number] = now.last = error
        now.inside = now.survived = False
        now.link = now.indent = ""


def find_errors(log: LogText) -> tuple[list[ErrorLine], set[int]]:
    """Return the lines that state errors, in order, and the lines of source code, which are no evidence."""
    found, readings = _Found(), dict[str, _Reading]()
    for number, raw in enumerate(log.lines):
        source, line = split_prefix(raw)
        now = readings.get(source)
        if source and (now is None or not now.inside) and (bare := readings.get("")) and bare.inside:
            now = bare  # a rank that names itself in its last line only
        begins = "raceback" in line or 'File "' in line or "│ " in line or _SURVIVED.match(line)
        if now is None and begins:
            now = readings[source] = _Reading()
        if now is None or not found.read_traceback(now, ErrorLine(number, line, source)):
            found.add_stated(number, source, line)
    if not any(each.name for each in found.errors.values()):
        found.errors |= {each.number: each for each in _bare_exceptions(log)}
    return [found.errors[number] for number in sorted(found.errors.keys() - found.code)], found.code


def _bare_exceptions(log: LogText) -> Iterator[ErrorLine]:
    """Find exceptions near the end of a log without a traceback: it is cut, or has messages only."""
    begin = max(0, len(log.lines) - _LAST_LINES)
    for number, raw in enumerate(log.lines[begin:], begin):
        source, line = split_prefix(raw)
        match = _EXCEPTION.match(line.strip())
        if (
            match is not None
            and ("Error" in match[1] or "Exception" in match[1])
            and not has_words("continues", line)
        ):
            name = match[1].rpartition(".")[2]
            yield ErrorLine(number, line.strip(), source, name)
