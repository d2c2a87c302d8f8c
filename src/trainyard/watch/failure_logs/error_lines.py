"""Find the lines of a log that state an error: exceptions that end a traceback, and errors that tools print.

Tracebacks of several processes may be mixed if prefixes tell them apart. It judges no cause.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from trainyard.watch.failure_logs.log_text import LogText, split_prefix

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
    r"|(?:[a-z_]\w*\.)+[A-Z]\w*)(?::(?:\s(.*))?)?$"
)
"""The last line of a traceback: a class, a colon, a message."""
_FALLBACKS = ("ModuleNotFoundError", "ImportError", "KeyError", "AttributeError", "StopIteration")
"""Programs catch these to try something else; what fails then is the error."""
_STATED = re.compile(
    r"(?:^|[\s\[\]|#>(*])(?:[Ee]rror|ERROR|[Ff]atal(?: error)?|FATAL|CRITICAL|[Pp]anic|catastrophic error"
    r"|npm ERR!|Failure)\b ?[\]:!]|\b[A-Z_]+_ERROR\b|NCCL WARN|^\s*what\(\):|[Aa]ssertion .{1,200} failed"
    r"|^\s*(?:[×x✗] |╰─▶|E {2,}|ERR!)|(?:^|\s)Warning\s+[A-Z]\w+|Segmentation fault|[Cc]ore dumped"
    r"|(?i:\b(?:failed|cannot|can not|can't|could not|couldn't|unable to|not found|denied|forbidden|refused"
    r"|unauthorized|invalid|unsupported|no such|unrecognized|unknown|not supported|does not exist"
    r"|doesn't exist|mismatch|terminated with exception|exceeded|not available|no longer available|expired"
    r"|unexpected|rejected)\b)"
)
"""A line by which a tool states an error."""
_CARRIER = re.compile(
    r"Process completed with exit code|exit(?:ed with)? (?:code|status)|return code"
    r"|make(?:\[\d+\])?: \*\*\*|Error \d+$"
    r"|operation was cancell?ed|ChildFailedError|closing signal|[Cc]ommand .{0,300}(?:failed|non-zero)"
    r"|srun: error: \S+ tasks?|Job step aborted|core dumped|Segmentation fault|returned a non-zero code"
    r"|terminated with exception|FAILED$|FATAL: (?:exit|kill)"
)
"""A line that only says that something ended."""
QUIET = re.compile(
    r"\bWARN(?:ING)?\b|Warning:|(?<![=\w])(?:INFO|DEBUG|NOTICE|TRACE)\b|(?:^|\[)[IW]\d{4} \d\d:\d\d"
    r"|\[[IW]\d* ?[\d:.]* ?\w+\.cpp:|\blevel[\"']?[:=] ?[\"']?(?:info|debug|warn)"
    r"|^\s*(?:help|hint|note|Tip): "
)
"""Notices and warnings, after which programs continue; those of NCCL and Kubernetes are excluded."""
GOES_ON = re.compile(
    r"(?i)\bf[ae]ll(?:s|ing)? back|\busing (?:the |a )?(?:latest )?(?:local|cached|default|fallback)"
    r"|\bretrying\b"
    r"|\bwill (?:be |now )?(?:retr(?:y|ied)|ignored?|skip(?:ped)?|continue)\b|\bretry in \d|\bretry loop\b"
    r"|\bignor(?:ing|ed)\b"
    r"|\bskipp(?:ing|ed)\b|\bcontinu(?:ing|es)\b|\bgoing on\b|\bsucceeded\b|\brecovered\b|\(optional\)"
    r"|\boptional (?:dependency|package|module|import|feature|bucket)|\bdeprecat\w+|\bdisabl(?:ed|ing)\b"
    r"|\bnot installed;|\bnot critical\b|\bnon-fatal\b|\bhandled\b|\bcould not import\b|\bcan ?not be used\b"
    r"|\(attempt \d+(?:/| of )\d+\)"
)
"""The line itself says that the program continued."""
_EVENT = re.compile(r"\bWarning\s+[A-Z]")
"""A warning of Kubernetes, which is an error of a pod."""
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
    chain: int = -1
    """The index of the first exception of the chain that Python printed."""
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


def find_errors(log: LogText) -> tuple[list[ErrorLine], set[int]]:
    """Return the lines that state errors, in order, and the lines of source code, which are no evidence."""
    found: dict[int, ErrorLine] = {}
    code: set[int] = set()
    readings: dict[str, _Reading] = {}
    for number, raw in enumerate(log.lines):
        source, line = split_prefix(raw)
        now = readings.get(source)
        if source and (now is None or not now.inside) and (bare := readings.get("")) and bare.inside:
            now = bare  # a rank that names itself in its last line only
        if now is None:
            if (
                "raceback" not in line
                and 'File "' not in line
                and "│ " not in line
                and not _SURVIVED.match(line)
            ):
                _add_stated(found, number, source, line)
                continue
            now = readings[source] = _Reading()
        if not _read_traceback(found, code, now, number, source, line):
            _add_stated(found, number, source, line)
    if not any(each.name for each in found.values()):
        found |= {each.number: each for each in _bare_exceptions(log)}
    return [found[number] for number in sorted(found) if number not in code], code


def _add_stated(found: dict[int, ErrorLine], number: int, source: str, line: str) -> None:
    if not _STATED.search(line) or len(line) > 2000:
        return
    is_event = "NCCL WARN" in line or _EVENT.search(line)
    if not is_event and (QUIET.search(line) or GOES_ON.search(line)):
        return
    found[number] = ErrorLine(number, line, source, is_carrier=bool(_CARRIER.search(line)))


def _read_traceback(
    found: dict[int, ErrorLine], code: set[int], now: _Reading, number: int, source: str, line: str
) -> bool:
    """Read a line of a traceback; return whether it is one."""
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
        code.add(number)
    elif (match := _EXCEPTION.match(line.strip())) is not None and not line.startswith("  "):
        _end_traceback(found, code, now, ErrorLine(number, line.strip(), source, match[1].rpartition(".")[2]))
    else:
        return False
    return True


def _end_traceback(found: dict[int, ErrorLine], code: set[int], now: _Reading, error: ErrorLine) -> None:
    error = replace(error, place=now.place, in_library=bool(_LIBRARY.search(now.file)))
    last = now.last if now.link else None
    is_linked = last is not None and last.number in found
    error = replace(error, chain=last.chain if is_linked and last is not None else error.number)
    if now.survived:
        code.add(error.number)
    else:
        if (
            is_linked
            and last is not None
            and (now.link == "original" or (now.link == "during" and last.name in _FALLBACKS))
        ):
            del found[last.number]
        found[error.number] = now.last = error
    now.inside = now.survived = False
    now.link = now.indent = ""


def _bare_exceptions(log: LogText) -> Iterator[ErrorLine]:
    """Find exceptions near the end of a log without a traceback: it is cut, or has messages only."""
    begin = max(0, len(log.lines) - _LAST_LINES)
    for number, raw in enumerate(log.lines[begin:], begin):
        source, line = split_prefix(raw)
        match = _EXCEPTION.match(line.strip())
        if (
            match is not None
            and ("Error" in match[1] or "Exception" in match[1])
            and not GOES_ON.search(line)
        ):
            name = match[1].rpartition(".")[2]
            yield ErrorLine(number, line.strip(), source, name, chain=number)
