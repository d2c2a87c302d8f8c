"""Find the parts of a log that span several lines: tracebacks and their chains.

It finds the last line of each traceback, and the lines of source code. It judges no cause.
"""

import builtins
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from trainyard.watch.failure_logs.evidence_rules import (
    EXCEPTION,
    GOES_ON,
    LAUNCHER_EXCEPTIONS,
    OF_ANOTHER,
)

_TIME = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.,]*(?:Z|[+-]\d\d:?\d\d)?\s(?:std(?:out|err) [FP] )?"
_PREFIX = re.compile(
    rf"(?:{_TIME}|(?:> )+|\[pod/[\w./-]+\] ?|[\w.-]+ +\| |\[?(?:default|rank)?\d{{1,6}}\]?:\s?"
    r"|\([^()\n]{0,80}pid=\d+[^()\n]{0,80}\)\s|##\[(?:error|warning|debug|command)\]"
    r"|#\d{1,4} \d{1,6}\.\d{1,4} |(?:ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[\w./-]{1,80}:\d+\] ?"
    r"|E\d{4} \d\d:\d\d:\d\d\.\d{3,9} +\d{1,9} [\w./-]{1,120}:\d+\] ?"
    r"|\[Container\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d(?:\.\d+)? |[^\t\n]{1,80}\t[^\t\n]{1,80}\t(?=\d{4}-))+"
)
"""What the tools that collect logs write before a line: kubectl, container logs, compose, BuildKit, torchrun,
vLLM, Slurm, Ray, GitHub and CodeBuild."""
_STAMP = re.compile(_TIME)
_TRACEBACK = "raceback (most recent call last)"
_CAUSED = re.compile(r"The above exception was the direct cause|Original Traceback \(most recent")
_CHAINED = "During handling of the above exception"
_SURVIVED = re.compile(r"^(?:Exception ignored in|--- Logging error ---)")
"""Python prints these tracebacks and continues."""
_ENDED = re.compile(r"(?:KeyboardInterrupt|SystemExit|GeneratorExit)\b")
_SOURCE = re.compile(r"^ {4}(?!.*(?:\^\^|what\(\)))")
_FRAME = re.compile(r'^\s*(?:File "([^"]+)", line (\d+)|│ ([^│:]+\.py):(\d+) in )')
"""A frame as Python writes it, or as rich draws it."""
_INDENT = re.compile(r"[ >]+(?=Traceback)")
_MISTAKES = re.compile(
    r"(?:Type|Attribute|Index|Name|UnboundLocal|ZeroDivision|Recursion|Key|Value|Assertion|NotImplemented"
    r"|Syntax|Indentation|Tab|Overflow)Error|StopIteration"
)
"""Exceptions that show a mistake of the program, even where a library that it called raised them."""
_TENSORS = re.compile(
    r"-packages/(?:torch/(?:nn/(?!parallel)|optim/|autograd/|amp/|utils/checkpoint|_tensor\.py|functional\.py|_refs/"
    r"|_prims|_ops\.py)|transformers/models/|diffusers/models/|peft/tuners/|torchvision/|timm/|einops/)"
)
"""Files of libraries that compute with the tensors that a program gave them."""
_LIBRARY = re.compile(r"(?:site|dist)-packages/|/lib(?:64)?/python3|(?i:/python3\d*/lib/)|<frozen ")
_LAST_LINES = 40
"""An exception without a traceback counts only within this many lines of the end of a log."""


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
    in_library: bool = False
    """Whether the innermost frame is code of an installed package, not the program's own."""
    place: str = ""
    """File and line of the innermost frame that is the program's own; empty if no frame is."""


@dataclass
class Tracebacks:
    """All tracebacks of a log, by the index of their lines."""

    raised: dict[int, Raised] = field(default_factory=dict)
    no_evidence: set[int] = field(default_factory=set)
    """Lines of source code, and of tracebacks that Python ignored."""


@dataclass
class _Reading:
    """The state while a traceback of one process is read."""

    inside: bool = False
    survived: bool = False
    caused: bool = False
    chained: bool = False
    newest: Raised | None = None
    frame: str = ""
    """The file of the innermost frame."""
    place: str = ""
    """File and line of the innermost frame in a file of the program's own."""
    indent: str = ""
    """The prefix of each of its lines: spaces, or the mark of a quotation."""

    def end(self) -> None:
        self.inside = self.survived = self.caused = self.chained = False
        self.indent = ""


def split_prefix(line: str) -> tuple[str, str]:
    """The process that a line is from, as its prefix names it, and the line without the prefix."""
    found = _PREFIX.match(line)
    if found is None:
        return "", line
    return _STAMP.sub("", found[0]), line[found.end() :]


def stamp_of(line: str) -> float | None:
    """Return the time at which a line was written, in Unix seconds; None if it does not begin with one."""
    found = _STAMP.search(line[:200])
    if found is None:
        return None
    text = found[0].split(" std", 1)[0].strip().replace(",", ".")
    try:
        moment = datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text))
    except ValueError:
        return None
    return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()


def read_tracebacks(lines: Sequence[tuple[str, str]]) -> Tracebacks:
    """Return the tracebacks of a log, from what `split_prefix` returned for each line.

    Those of several processes may be mixed if prefixes tell them apart.
    """
    found = Tracebacks()
    readings: dict[str, _Reading] = {}
    for number, (source, plain) in enumerate(lines):
        now = readings.get(source)
        if now is None:
            if not _may_begin(plain) and not readings:
                continue
            now = readings[source] = _Reading()
        if source and not now.inside and (bare := readings.get("")) is not None and bare.inside:
            now = bare  # a rank that names itself in its last line only
        if now.inside or _may_begin(plain):
            _read_line(found, now, number, plain)
    if not found.raised:
        _read_bare_exceptions(found, lines)
    return found


def _may_begin(line: str) -> bool:
    return "raceback" in line or "xception" in line or "File " in line or "---" in line


def _read_bare_exceptions(found: Tracebacks, lines: Sequence[tuple[str, str]]) -> None:
    """Find exceptions near the end of a log without a traceback: it is cut, or has messages only."""
    begin = max(0, len(lines) - _LAST_LINES)
    for number, (_, line) in enumerate(lines[begin:], begin):
        match = EXCEPTION.match(line.strip())
        if match is not None and GOES_ON.search(line) is None:
            raised = _make_raised(match, number, None, caused=False)
            is_mistake = _MISTAKES.fullmatch(raised.name) is not None
            is_own = raised.is_own and hasattr(builtins, raised.name)
            found.raised[number] = replace(raised, is_own=is_own, in_library=not is_mistake)


def _read_line(found: Tracebacks, now: _Reading, number: int, line: str) -> None:
    now.survived = now.survived or bool(_SURVIVED.match(line))
    now.caused = now.caused or bool(_CAUSED.search(line))
    now.chained = now.chained or now.caused or _CHAINED in line
    line = line.removeprefix(now.indent)
    if _TRACEBACK in line:
        now.inside, now.frame, now.place = True, "", ""
        found_indent = _INDENT.match(line)
        now.indent += found_indent[0] if found_indent else ""
    elif (frame := _FRAME.match(line)) is not None:
        file, number_of_line = (frame[1] or frame[3]).replace("\\", "/"), frame[2] or frame[4]
        now.inside, now.frame = True, file
        if not _LIBRARY.search(file):
            now.place = f"{file}:{number_of_line}"
    elif now.inside and _SOURCE.match(line):
        found.no_evidence.add(number)
    elif now.inside and (match := EXCEPTION.match(line)) is not None:
        if now.survived:
            found.no_evidence.add(number)
        else:
            earlier = now.newest if now.chained else None
            now.newest = replace(
                _make_raised(match, number, earlier, caused=now.caused, frame=now.frame),
                place=now.place,
            )
            found.raised[number] = now.newest
        now.end()
    elif now.inside and _ENDED.match(line):
        now.end()


def _make_raised(
    match: re.Match[str],
    number: int,
    earlier: Raised | None,
    *,
    caused: bool,
    frame: str = "",
) -> Raised:
    name, message = match[1].rpartition(".")[2], match[2] or ""
    is_mistake = _MISTAKES.fullmatch(name) or (name == "RuntimeError" and _TENSORS.search(frame))
    return Raised(
        name,
        not LAUNCHER_EXCEPTIONS.fullmatch(name) and not OF_ANOTHER.search(message),
        earlier.caused_by if earlier is not None and caused else number,
        earlier.chain if earlier is not None else number,
        bool(_LIBRARY.search(frame)) and not is_mistake,
    )
