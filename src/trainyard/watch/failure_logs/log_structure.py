"""Find the parts of a log that span several lines: tracebacks, their chains, and help texts.

It finds the last line of each traceback, and the lines of source code and help. It judges no cause.
"""

import builtins
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from trainyard.watch.failure_logs.evidence_rules import (
    EXCEPTION,
    GOES_ON,
    HELP,
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
_ARRAYS = re.compile(
    r"-packages/(?:torch/(?!distributed|utils|serialization|hub|multiprocessing|_inductor|_dynamo|cuda/__init__)"
    r"|numpy/|pandas/|scipy/|sklearn/|PIL/|cv2/|jax/|flax/|tensorflow/|keras/|torchmetrics/|torchaudio/|librosa/"
    r"|skimage/|matplotlib/|einops/|timm/|torchvision/(?!datasets)|transformers/models/|diffusers/models/)"
    r"|/lib(?:64)?/python3[\d.]*/(?!(?:site|dist)-packages)"
)
"""Files that refuse values which the program computed, rather than settings that a person gave."""
_CHECK = re.compile(r"^(?:assert\b|raise (?:\w+\.)*(?:[A-Z]\w*Error|[A-Z]\w*Exception|Exception)\b)")
"""A line of source code that refuses something on purpose."""
_MARKED = re.compile(r"^\s*(?:│ ❱|-{2,4}>)\s*\d+ [│\s]*(.*?)[│\s]*$")
"""The line of source code at which rich or IPython point."""
_CHECKED = re.compile(
    r"AssertionError|ValueError|RuntimeError|Exception|KeyError|NotImplementedError|EnvironmentError"
)
_RAISE = re.compile(r"^\s{4,}raise ((?:\w+\.)*\w*(?:Error|Exception))\([rf]{0,2}[\"']\s*([^\"'\n]+)")
"""A statement that raises an exception, and its message as the source code has it."""
_COMPARED = re.compile(
    r"(?i)not close|mismatch|shapes?\b|tensors?\b|\bdim\w*|\bexpected\b[^\n]*\bgot\b|\bdtype"
    r"|\bdownload|\bcorrupt|\banswer|\brespon[ds]|\bconnect|\btimed out\b|\bunavailable\b"
)
"""Messages of checks on values that the program computed, and on what came from elsewhere."""
_OF_SETTINGS = re.compile(
    r"\b(?:args|opt|opts|cfg|config|conf|hparams|hp|params|flags|FLAGS|settings|kwargs)\b"
    r"|os\.path|\.exists\(|\.is_(?:file|dir)\(|isfile|isdir|environ"
)
"""Source code of a check without a message, if it is about settings or files."""
_LIBRARY = re.compile(r"(?:site|dist)-packages/|/lib(?:64)?/python3|(?i:/python3\d*/lib/)|<frozen ")
_CUT = re.compile(
    r"(?i)\[?\.{3} ?\[?(?:output |log |\d+ (?:lines|bytes|characters) )?(?:truncated|omitted|skipped)"
    r"|(?:log|output)s? (?:was |were |is |has been )?(?:truncated|cut off)\b"
)
_INSIDE = re.compile(
    r"(?i:\b(?:error|failed|fatal|exception|critical|raised|gives|got)\b)[^\n]{0,200}?\s"
    r"(?P<exception>(?:[A-Za-z_]\w{0,40}\.){0,8}[A-Z]\w{0,60}(?:Error|Exception): [^\n]*)$"
)
"""A message that quotes an exception."""
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
    is_check: bool = False
    """Whether the program or a library refuses on purpose what it was given, such as a setting."""


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
    source: str = ""
    """The line of source code of the innermost frame."""
    indent: str = ""
    """The prefix of each of its lines: spaces, or the mark of a quotation."""

    def end(self) -> None:
        self.inside = self.survived = self.caused = self.chained = False
        self.indent = self.source = ""


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


def finish_last_raise(lines: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the lines of a log; a `raise` as its last line becomes the exception that it would print.

    Such a log was copied without the last line of its traceback.
    """
    found = list(lines)
    written = [number for number, (_, line) in enumerate(found) if line.strip()][-2:]
    if len(written) == 2 and _FRAME.match(found[written[0]][1]):
        source, line = found[written[1]]
        if (match := _RAISE.match(line)) is not None:
            found[written[1]] = (source, f"{match[1]}: {match[2]}")
    return found


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
        match = EXCEPTION.match(_without_marks(line))
        if match is None and (inside := _INSIDE.search(line)) is not None:
            match = EXCEPTION.match(inside["exception"])
        if match is not None and GOES_ON.search(line) is None:
            before = _source_before(lines, number)
            raised = _make_raised(match, number, None, caused=False, source=before)
            is_mistake = _MISTAKES.fullmatch(raised.name) is not None
            is_own = raised.is_own and hasattr(builtins, raised.name)
            found.raised[number] = replace(raised, is_own=is_own, in_library=not is_mistake)


def _source_before(lines: Sequence[tuple[str, str]], number: int) -> str:
    """Return the statement above the line of an exception whose traceback is cut, without its later lines."""
    for _, line in reversed(lines[max(0, number - 6) : number]):
        text = line.strip(" >")
        if _CHECK.match(text):
            return text
    return ""


def _without_marks(line: str) -> str:
    """Return a line without the brackets or marks of emphasis around it."""
    line = line.strip(" \t*`")
    return line[1:-1] if line.startswith("(") and line.endswith(")") else line


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
        now.inside, now.frame, now.source = True, file, ""
        if not _LIBRARY.search(file):
            now.place = f"{file}:{number_of_line}"
    elif now.inside and (marked := _MARKED.match(line)) is not None:
        now.source = marked[1]
    elif now.inside and _SOURCE.match(line):
        found.no_evidence.add(number)
        now.source = now.source or line.strip()
    elif now.inside and (match := EXCEPTION.match(line)) is not None:
        if now.survived:
            found.no_evidence.add(number)
        else:
            earlier = now.newest if now.chained else None
            now.newest = replace(
                _make_raised(match, number, earlier, caused=now.caused, frame=now.frame, source=now.source),
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
    source: str = "",
) -> Raised:
    name, message = match[1].rpartition(".")[2], match[2] or ""
    is_mistake = _MISTAKES.fullmatch(name) or (name == "RuntimeError" and _TENSORS.search(frame))
    return Raised(
        name,
        not LAUNCHER_EXCEPTIONS.fullmatch(name) and not OF_ANOTHER.search(message),
        earlier.caused_by if earlier is not None and caused else number,
        earlier.chain if earlier is not None else number,
        bool(_LIBRARY.search(frame)) and not is_mistake,
        is_check=_is_check(name, message, frame, source),
    )


def _is_check(name: str, message: str, frame: str, source: str) -> bool:
    """Return whether an exception is a refusal on purpose, from the statement that raised it or its words."""
    if not _CHECKED.fullmatch(name) or _ARRAYS.search(frame) or _COMPARED.search(f"{message} {source}"):
        return False
    if message.startswith("assert "):
        return False  # pytest shows what it compared
    if name == "AssertionError" and not message:
        return _OF_SETTINGS.search(source) is not None
    return name == "AssertionError" or _CHECK.match(source) is not None


def missing_part(lines: Sequence[str]) -> str:
    """Return which part of a log is missing: `beginning`, `end` or `middle`; empty if it looks complete."""
    written = [line for line in lines if line.strip()]
    if any(
        _CUT.search(line) for line in written if "truncated" in line or "omitted" in line or "skipped" in line
    ):
        return "middle"
    frames = (n for n, line in enumerate(written) if 'File "' in line and _FRAME.match(split_prefix(line)[1]))
    first_frame = next(frames, None)
    if first_frame is not None and not any(_TRACEBACK in line for line in written[:first_frame]):
        return "beginning"
    last = split_prefix(written[-1])[1] if written else ""
    is_inside = _FRAME.match(last) or _TRACEBACK in last or (_SOURCE.match(last) and first_frame is not None)
    return "end" if is_inside else ""


def lines_of_help(lines: Sequence[str]) -> set[int]:
    """Return the lines of help texts, which describe options and report nothing."""
    found: set[int] = set()
    inside = False
    for number, line in enumerate(lines):
        inside = bool(HELP.match(line)) or (inside and (not line.strip() or line[0].isspace()))
        if inside:
            found.add(number)
    return found
