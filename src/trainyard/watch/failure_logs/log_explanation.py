"""Choose the cause of a failure from all evidence in its logs: the line nearest to the cause, not the last.

    logs, events, exit code  ──evidence──>  what counts  ──choose──>  LogExplanation

A line does not count when training continued after it, when a later line revokes it, or when it is about an
earlier start of a container. Of several causes the first in time decides, and a retry is right only if it
recovers from all of them. Where the logs of several processes name different causes and no clock orders
them, the answer is `unknown` with all of them. A wrong class would decide wrongly about a retry.
"""

import collections
import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainyard.run.untrusted_files import open_regular
from trainyard.watch.failure_classes import FailureClass
from trainyard.watch.failure_logs.evidence_rules import (
    GLOSSARY,
    GOES_ON,
    HARMLESS,
    HYPOTHETICAL,
    NAMED,
    NO_TRAINING,
    OFTEN_SURVIVED,
    PROGRESS,
    QUOTED,
    RESOLVED_BY,
    WARNING,
    Nearness,
    Rule,
    rule_index,
)
from trainyard.watch.failure_logs.log_structure import (
    Raised,
    read_tracebacks,
    split_prefix,
    stamp_of,
)

_STEPS_THAT_SHOW_LIFE = 3
"""A line did not end the training if this many steps follow it; slower ranks may still log one or two."""
_SHOWN, _SHOWN_LETTERS = 5, 300
_LONGEST_LINE = 20_000
_WORDS_BEFORE = 200
"""Characters before the evidence in which a line may say that it only mentions it."""
_MOST_BYTES = 256 << 20
"""Most bytes of the end of a log that are read."""
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_LAST_STATE = re.compile(r"^\s*Last State:|lastState")
_NEXT_FIELD = re.compile(
    r"^\s*\"?([Ss]tate|[Rr]eady|name|Restart Count|restartCount|Limits|Requests|Environment|Mounts)\"?:"
)
_RUNNING = re.compile(r"^\s*State:\s*Running|\brunning\"?:\s*(?:\{|$)")
_ERROR = re.compile(r"(?:^|[\s\[\]|#])(?:[Ee]rror|ERROR|fatal|FATAL|CRITICAL|panic)\b[\]:!]")
"""A line by which a tool reports an error that no rule knows."""
_INTERRUPTED, _STOPPED, _SIGNALS = 130, 75, 128
_CLOCK_SECONDS = 5.0
"""The clocks of two machines may differ by this much."""
_BY_TIME = (Nearness.SYMPTOM, Nearness.RAISED)
"""Among these, the first in time decides, unless one led to the other."""
_RAISED = Rule(
    FailureClass.USER_CODE,
    Nearness.RAISED,
    "the program raised an exception that it did not handle",
    "program",
    "no",
    "start at the last frame of the traceback in a file of your own",
)
"""The rule of an exception that no row of the table knows; its place is added where a traceback shows it."""
_RAISED_IN_LIBRARY = replace(
    _RAISED,
    klass=FailureClass.UNKNOWN,
    cause="a library of the program raised an exception that no rule knows",
    fix="the message is from the library; the last frame of your own file shows the call",
)
_LOOK = "look at the last lines, the kernel's log and, on a cluster, the pod's events (--events)"
_HINTS = {
    126: "the command cannot be executed: check its file mode and interpreter",
    127: "the command or its interpreter does not exist on this machine or in this image",
    134: "a native library aborted: read its lines near the end of the log",
    135: "SIGBUS: a memory-mapped file on a full disk, or /dev/shm is too small",
    137: "the process was killed: the kernel's log and the pod's events (--events) show memory or a limit",
    139: "native code crashed: run with PYTHONFAULTHANDLER=1 to see the place",
    143: "a preemption, a drained node, a limit or a person ended it: the events show which",
}
"""The fix by exit code, where no line of a log decides."""


@dataclass(frozen=True)
class LogText:
    """A log: its name and its lines."""

    name: str
    lines: tuple[str, ...]
    is_cut: bool = False
    """Whether its first lines were not read."""


@dataclass(frozen=True)
class Evidence:
    """A line that matches a rule."""

    rule: Rule
    log: str
    number: int
    """The number of the line, counted from 1."""
    text: str
    raised: Raised | None = None
    """The exception, if the line is the last one of a traceback."""
    source: str = ""
    """The process that the line is from, as its prefix names it; empty if it has none."""

    def __str__(self) -> str:
        text = self.text.strip()
        shown = text if len(text) <= _SHOWN_LETTERS else f"{text[:_SHOWN_LETTERS]}…"
        return f"{self.log}:{self.number}: {shown}"


@dataclass(frozen=True)
class LogExplanation:
    """The class of a failure, its cause, and what to do about it."""

    klass: FailureClass
    evidence: tuple[str, ...]
    """The deciding line first, then others; sentences if no line decides."""
    retryable: bool
    """Whether a retry from the newest good checkpoint recovers from this cause, on the same machine too."""
    cause: str = ""
    who: str = ""
    """Who must act; empty if unknown."""
    fix: str = ""
    other_node: bool = False
    """Whether a retry recovers on another node only: the fault of this one stays."""

    def record(self) -> dict[str, Any]:
        """Return the data that `trainyard explain --json` prints."""
        return {
            "class": str(self.klass),
            "cause": self.cause,
            "who": self.who or None,
            "fix": self.fix,
            "retryable": self.retryable,
            "other_node": self.other_node,
            "evidence": list(self.evidence),
        }


def log_of(name: str, text: str) -> LogText:
    """Return the log of a text; a carriage return also ends a line."""
    plain = _COLOUR.sub("", text).replace("\x00", "")
    return LogText(name, tuple(line[:_LONGEST_LINE] for line in re.split(r"\r\n|\n|\r", plain)))


def read_log(path: Path) -> LogText:
    """Return the log in a file. Raises FileNotFoundError, and DamagedFileError for what is no file."""
    text, is_cut = read_end(path)
    return replace(log_of(str(path), text), is_cut=is_cut)


def read_end(path: Path) -> tuple[str, bool]:
    """Return the last _MOST_BYTES of a file as text, and whether its beginning is left out."""
    with open_regular(path) as file:
        start = max(0, file.seek(0, 2) - _MOST_BYTES)
        file.seek(start)
        return file.read().decode(errors="replace"), start > 0


def events_of(name: str, text: str) -> LogText:
    """Return events as a log: JSON of Kubernetes, a run's events.jsonl, or any other text unchanged."""
    try:
        found = json.loads(text)
        objects = found.get("items", [found]) if isinstance(found, dict) else found
    except (ValueError, RecursionError):
        objects = [_object(line) for line in text.splitlines()]
    if not isinstance(objects, list) or not any(isinstance(each, dict) for each in objects):
        return log_of(name, text)
    lines = (_event_line(each) if isinstance(each, dict) else str(each) for each in objects)
    return LogText(name, tuple(line[:_LONGEST_LINE] for line in lines))


def _object(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return line


def _event_line(event: Mapping[str, Any]) -> str:
    words = (event.get(key) for key in ("type", "reason", "event", "note", "message"))
    return " ".join(str(word).replace("\n", " ") for word in words if word)


def explain_logs(logs: Sequence[LogText], exit_code: int | None = None) -> LogExplanation:
    """Return the cause of the failure in the logs, and the lines that show it."""
    if exit_code == 0:
        why = "it ended with exit code 0"
        return LogExplanation(FailureClass.FINISHED, (why,), False, why, "", "nothing to do")
    found = [evidence for log in logs for evidence in _evidence_in(log, exit_code)]
    if exit_code == _STOPPED:
        found = [each for each in found if _counts_despite_75(each)]
    first = _first_causes(found)
    if not first:
        return _explain_exit_code(exit_code, logs)
    cut = _cut_logs(logs)
    shown = tuple(str(each) for each in [*first, *(e for e in found if e not in first)][:_SHOWN])
    if all(each.rule.klass is FailureClass.UNKNOWN and each.raised is None for each in first):
        cut = (*cut, *_last_lines(logs))
    decisive = _earliest(first)
    others = [each for each in found if decisive and _is_another_cause(each, decisive)]
    if decisive is not None and any(each.rule.nearness > Nearness.CAUSE for each in others):
        first, decisive = [decisive, *others], None
    if decisive is None:
        names = " and ".join(sorted({each.rule.klass for each in first}))
        why = f"the logs name several causes: {names}"
        fixes = "; ".join(dict.fromkeys(f"{each.rule.klass}: {_fill(each)[1]}" for each in first))
        return LogExplanation(FailureClass.UNKNOWN, (why, *shown, *cut), False, why, "", fixes)
    cause, fix = _fill(decisive)
    retries = {each.rule.retry for each in [*first, *others]}
    retryable, other_node = retries <= {"same", "later"}, "other" in retries and "no" not in retries
    evidence, who = (*shown, *cut), decisive.rule.who
    return LogExplanation(decisive.rule.klass, evidence, retryable, cause, who, fix, other_node)


def _says_nothing(each: Evidence) -> bool:
    """Return whether the line only reports that something ended."""
    return each.rule.nearness is Nearness.AFTERMATH and each.rule.klass is FailureClass.UNKNOWN


def _is_another_cause(each: Evidence, decisive: Evidence) -> bool:
    """Return whether a line names another cause that the decisive one may not explain.

    Outside a traceback programs often survive some problems, so a later broken connection makes them
    doubtful.
    """
    if each.rule.klass == decisive.rule.klass or decisive.rule.nearness is not Nearness.CAUSE:
        return False
    is_doubtful = (
        decisive.raised is None and decisive.rule.klass in OFTEN_SURVIVED and not decisive.rule.exact
    )
    is_broken = (
        each.rule.nearness in (Nearness.COMMUNICATION, Nearness.WAIT) and "NCCL WARN" not in decisive.text
    )
    return each.rule.nearness is Nearness.CAUSE or (is_doubtful and is_broken and each.log == decisive.log)


def _fill(evidence: Evidence) -> tuple[str, str]:
    """Return cause and fix with the names and figures of the line."""
    groups = [match.groupdict() for match in evidence.rule.matches(evidence.text)]
    words = {name: word for found in reversed(groups) for name, word in found.items() if word}
    known = collections.defaultdict(lambda: "?", words)
    if "{who_is}" in evidence.rule.cause:
        known.setdefault("who_is", "the identity")
    return evidence.rule.cause.format_map(known), evidence.rule.fix.format_map(known)


def _counts_despite_75(each: Evidence) -> bool:
    """Return whether a run that ended with 75, which may have survived other problems, died of this one."""
    return each.rule.nearness <= Nearness.CAUSE and each.rule.klass not in OFTEN_SURVIVED


def _first_causes(found: list[Evidence]) -> list[Evidence]:
    """Return the first evidence of each log that is nearest to the cause; empty if there is none."""
    nearest = min((each.rule.nearness for each in found), default=None)
    if nearest is None:
        return []
    if nearest in _BY_TIME:
        found = _without_later_exceptions(found)
        nearest = min(each.rule.nearness for each in found)
    deciding: dict[str, Evidence] = {}
    for each in found:
        chosen = deciding.get(each.log)
        if chosen is None:
            if each.rule.nearness is nearest or (nearest in _BY_TIME and each.rule.nearness in _BY_TIME):
                deciding[each.log] = each
        elif _replaces(each, chosen):
            deciding[each.log] = each
    return list(deciding.values())


def _replaces(later: Evidence, first: Evidence) -> bool:
    """Return whether the later line is the cause, and the first one a problem that the program survived.

    A time limit explains why processes end. An exception that led to another one is its cause, unless only
    the later one has a rule.
    """
    near, nearer = first.rule.nearness, later.rule.nearness
    if near is Nearness.PLATFORM:
        return False
    if _says_nothing(first):
        return later.rule.klass is FailureClass.TIME_LIMIT
    is_same_chain = (
        first.raised is not None and later.raised is not None and first.raised.chain == later.raised.chain
    )
    if near is Nearness.RAISED and is_same_chain:
        if nearer is Nearness.RAISED and later.raised and first.raised:
            return later.raised.caused_by != first.raised.caused_by and later.rule.klass != first.rule.klass
        return nearer < near
    if first.raised is None and first.rule.klass in OFTEN_SURVIVED and not first.rule.exact:
        return later.raised is not None and nearer <= Nearness.RAISED and later.rule.klass != first.rule.klass
    return False


def _earliest(first: list[Evidence]) -> Evidence | None:
    """Return the first cause in time of several logs; None if the logs differ and show no order."""
    if len({each.rule.klass for each in first}) == 1:
        return first[0]
    times = [(stamp_of(each.text), each) for each in first]
    known = sorted((time, n, each) for n, (time, each) in enumerate(times) if time is not None)
    if len(known) < len(first) or known[1][0] - known[0][0] < _CLOCK_SECONDS:
        return None
    return known[0][2]


def _explain_exit_code(exit_code: int | None, logs: Sequence[LogText]) -> LogExplanation:
    """Explain an exit code without logs: 137 may be a lack of memory, an eviction or a person."""
    cut = _cut_logs(logs)
    if exit_code == _STOPPED:
        why = "exit code 75: it stopped early with a good checkpoint"
        return LogExplanation(
            FailureClass.STOPPED, (why, *cut), True, why, "", "run the same command again to continue"
        )
    if exit_code == _INTERRUPTED or exit_code == -2:
        why = "it was interrupted from the keyboard (SIGINT)"
        return LogExplanation(
            FailureClass.CANCELLED, (why, *cut), False, why, "person", "start it again when you want it"
        )
    why = "no line of the logs shows why it ended"
    if exit_code is not None:
        signal = -exit_code if exit_code < 0 else exit_code - _SIGNALS
        by = f", which is signal {signal}," if 0 < signal < 65 else ""
        why += f"; exit code {exit_code}{by} alone does not either"
    code = exit_code or 0
    fix = _HINTS.get(code if code >= 0 else _SIGNALS - code, _LOOK)
    return LogExplanation(FailureClass.UNKNOWN, (why, *cut, *_last_lines(logs)), False, why, "", fix)


def _cut_logs(logs: Sequence[LogText]) -> tuple[str, ...]:
    return tuple(f"{log.name}: the beginning of this log is missing" for log in logs if log.is_cut)


def _last_lines(logs: Sequence[LogText]) -> Iterator[str]:
    """Return the last error of each log, or else its last line: no evidence, but a place to start.

    The log whose line is the first in time comes first.
    """
    found = [each for log in logs if (each := _last_error(log)) is not None]
    found.sort(key=lambda each: stamp_of(each[2]) or 0.0)
    for log, what, line, number in found[:_SHOWN]:
        yield f"{log}:{number}: {what}: {split_prefix(line)[1].strip()[:_SHOWN_LETTERS]}"


def _last_error(log: LogText) -> tuple[str, str, str, int] | None:
    """Return the name of the log, what the line is, the line, and its number; None if the log is empty."""
    written = [(number, line) for number, line in enumerate(log.lines, 1) if line.strip()]
    if not written:
        return None
    raised = read_tracebacks([split_prefix(line) for line in log.lines]).raised
    last = [(number, log.lines[number - 1]) for number in (max(raised) + 1,)] if raised else []
    errors = last or [each for each in written if _ERROR.search(each[1]) and not HARMLESS.search(each[1])]
    number, line = errors[-1] if errors else written[-1]
    return log.name, "the last error" if errors else "the last line", line, number


def _without_later_exceptions(found: list[Evidence]) -> list[Evidence]:
    """Remove exceptions that follow a broken connection of the same process: they are its consequence."""
    broken = [each for each in found if each.rule.nearness in (Nearness.COMMUNICATION, Nearness.WAIT)]
    return [
        each
        for each in found
        if each.rule.nearness not in _BY_TIME
        or each.rule.exact
        or not any(_follows(each, other) for other in broken)
    ]


def _follows(raised: Evidence, broken: Evidence) -> bool:
    """Return whether one line follows another of its process; other processes write in no fixed order."""
    here, there = raised.source, broken.source
    is_other = not here.startswith(there) and not there.startswith(here)
    return raised.log == broken.log and raised.number > broken.number and not is_other


def _evidence_in(log: LogText, exit_code: int | None) -> Iterator[Evidence]:
    """Return the evidence in a log that counts, in the order of its lines."""
    alive_until = _last_sign_of_life(log)
    split = [split_prefix(line) for line in log.lines]
    tracebacks = read_tracebacks(split)
    lines = [plain for _, plain in split]
    ignored = _lines_of_earlier_life(lines) | tracebacks.no_evidence
    by_signal = exit_code is not None and (exit_code < 0 or exit_code > _SIGNALS)
    for number, line in enumerate(lines):
        if number < alive_until or number in ignored:
            continue
        raised = tracebacks.raised.get(number)
        matching = [
            rule
            for rule, match in _matches(line)
            if _reports(rule, match, raised)
            and (rule.after is None or any(rule.after.search(earlier) for earlier in lines[:number]))
        ]
        if not matching and raised is not None and raised.is_own:
            matching = [_rule_of_exception(raised)]
        if any(rule.klass is FailureClass.IMAGE_PULL for rule in matching):  # other errors are the registry's
            pulls = FailureClass.IMAGE_PULL
            matching = [r for r in matching if r.klass is pulls or r.nearness is Nearness.PLATFORM]
        if not matching:
            continue
        rule = min(matching, key=lambda each: each.nearness)
        if rule.nearness is Nearness.RAISED and by_signal:
            continue
        ends = RESOLVED_BY.get(rule.klass)
        if ends is None or not any(ends.search(later) for later in log.lines[number + 1 :]):
            yield Evidence(rule, log.name, number + 1, log.lines[number], raised, split[number][0])


def _rule_of_exception(raised: Raised) -> Rule:
    """Return the rule of an exception by its frames, where no row of the table knows its message."""
    rule = _RAISED_IN_LIBRARY if raised.in_library else _RAISED
    if not raised.place:
        return rule
    place = raised.place.replace("{", "{{").replace("}", "}}")
    where = f"{raised.name}, called at {place}" if raised.in_library else f"{raised.name} at {place}"
    return replace(rule, cause=f"{rule.cause} ({where})")


@functools.lru_cache(maxsize=1024)
def _matches(line: str) -> tuple[tuple[Rule, re.Match[str]], ...]:
    """Return the rules that match a line, and where. The processes of a run write many equal lines."""
    found = rule_index().candidates(line)
    return tuple((rule, match) for rule, pattern in found if (match := pattern.search(line)))


def _reports(rule: Rule, match: re.Match[str], raised: Raised | None) -> bool:
    """Return whether a line reports the evidence, and does not only mention it."""
    if raised is not None:
        return True
    if rule.nearness is Nearness.RAISED:
        return False
    line = match.string
    if rule.exact:
        return QUOTED.search(line[: match.start()]) is None
    if HARMLESS.search(line):
        return False
    before = line[max(0, match.start() - _WORDS_BEFORE) : match.start()]
    if HYPOTHETICAL.search(before) or QUOTED.search(before) or _only_warns(rule, line):
        return False
    if GLOSSARY.search(before) or NAMED.search(line[match.end() : match.end() + _WORDS_BEFORE]):
        return False
    return rule.nearness in (Nearness.PLATFORM, Nearness.PENDING) or GOES_ON.search(line) is None


def _only_warns(rule: Rule, line: str) -> bool:
    is_cause = rule.nearness in (Nearness.CAUSE, Nearness.SYMPTOM, Nearness.COMMUNICATION)
    return is_cause and "NCCL" not in line and bool(WARNING.search(line))


def _last_sign_of_life(log: LogText) -> int:
    """Return the line after which several higher steps were logged: nothing before it ended the training."""
    highest_later: list[float] = []
    for number in range(len(log.lines) - 1, -1, -1):
        step = _step_on(log.lines[number])
        if step is None:
            continue
        if not highest_later or step < highest_later[-1]:
            highest_later.append(step)
        if len(highest_later) >= _STEPS_THAT_SHOW_LIFE:
            return number
    return 0


def _step_on(line: str) -> float | None:
    found = next((match for pattern in PROGRESS if (match := pattern.search(line))), None)
    return float(found[1][:18]) if found and not NO_TRAINING.search(line) else None


def _lines_of_earlier_life(lines: Sequence[str]) -> set[int]:
    """Return the lines of `kubectl describe` about an earlier end of a container that runs now."""
    if not any(_RUNNING.search(line) for line in lines):
        return set()
    found: set[int] = set()
    inside = False
    for number, line in enumerate(lines):
        inside = bool(_LAST_STATE.search(line)) or (inside and not _NEXT_FIELD.match(line))
        if inside:
            found.add(number)
    return found
