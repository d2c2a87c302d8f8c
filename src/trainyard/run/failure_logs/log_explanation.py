"""The cause of a failure, chosen from all evidence in its logs: the nearest to the cause, not the last line.

    logs, events, exit code  ──evidence──>  what counts  ──choose──>  LogExplanation

A line is no evidence when training went on after it, when a later line takes it back, or when it tells of an
earlier life of a container. Different causes, in one log or in several, give `unknown` with both unless one
exception led to the other: a wrong class would be retried, or not retried, for a wrong reason.
"""

import builtins
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainyard.run.failure_classes import HEALS, FailureClass
from trainyard.run.failure_logs.evidence_rules import (
    EXCEPTION,
    GLOSSARY,
    GOES_ON,
    HARMLESS,
    HYPOTHETICAL,
    NAMED,
    OFTEN_SURVIVED,
    PROGRESS,
    QUOTED,
    RESOLVED_BY,
    RULES,
    WARNING,
    Nearness,
    Rule,
)
from trainyard.run.failure_logs.log_structure import Raised, lines_of_help, read_tracebacks

_STEPS_THAT_SHOW_LIFE = 3
"""Later steps after which a line did not end the training; ranks that are slower may still log one or two."""
_SHOWN, _SHOWN_LETTERS = 5, 300
_LONGEST_LINE = 20_000
_WORDS_BEFORE = 200
"""Letters of a line before its evidence that may say it is only mentioned."""
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_LAST_STATE = re.compile(r"^\s*Last State:|lastState")
_NEXT_FIELD = re.compile(
    r"^\s*\"?([Ss]tate|[Rr]eady|name|Restart Count|restartCount|Limits|Requests|Environment|Mounts)\"?:"
)
_RUNNING = re.compile(r"^\s*State:\s*Running|\brunning\"?:\s*(?:\{|$)")
_INTERRUPTED, _STOPPED, _SIGNALS = 130, 75, 128
_RAISED = Rule(FailureClass.USER_CODE, Nearness.RAISED, EXCEPTION)


@dataclass(frozen=True)
class LogText:
    """A log by its name, as lines."""

    name: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Evidence:
    """One line that says something."""

    rule: Rule
    log: str
    number: int
    """Of the line, counted from 1."""
    text: str
    raised: Raised | None = None
    """The exception, where the line is the last one of a traceback."""

    def __str__(self) -> str:
        text = self.text.strip()
        shown = text if len(text) <= _SHOWN_LETTERS else f"{text[:_SHOWN_LETTERS]}…"
        return f"{self.log}:{self.number}: {shown}"


@dataclass(frozen=True)
class LogExplanation:
    """Why it ended."""

    klass: FailureClass
    evidence: tuple[str, ...]
    """The deciding line first, then others; sentences where there is no line."""
    retryable: bool

    def record(self) -> dict[str, Any]:
        """It as `scripts/explain_failure.py --json` prints it."""
        return {"class": str(self.klass), "evidence": list(self.evidence), "retryable": self.retryable}


def log_of(name: str, text: str) -> LogText:
    """A log from its text. What a carriage return wrote over is a line of its own."""
    plain = _COLOUR.sub("", text).replace("\x00", "")
    return LogText(name, tuple(line[:_LONGEST_LINE] for line in re.split(r"\r\n|\n|\r", plain)))


def events_of(name: str, text: str) -> LogText:
    """Events as a log: JSON of Kubernetes, or of a run's events.jsonl; else the text as it is."""
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


def explain(logs: Sequence[LogText], exit_code: int | None = None) -> LogExplanation:
    """The class of the failure that the logs tell of, with the lines that show it."""
    if exit_code == 0:
        return LogExplanation(FailureClass.FINISHED, ("it ended with exit code 0",), False)
    found = [evidence for log in logs for evidence in _evidence_in(log, exit_code)]
    nearest = min((each.rule.nearness for each in found), default=None)
    if nearest is None or (exit_code == _STOPPED and nearest > Nearness.CAUSE):
        return _by_exit_code(exit_code, logs)
    if nearest is Nearness.RAISED:
        found = _without_later_exceptions(found)
        nearest = min(each.rule.nearness for each in found)
    first = _deciding(found, nearest)
    classes = {each.rule.klass for each in first}
    shown = tuple(str(each) for each in [*first, *(e for e in found if e not in first)][:_SHOWN])
    if len(classes) > 1:
        names = " and ".join(sorted(classes))
        return LogExplanation(FailureClass.UNKNOWN, (f"the logs name several causes: {names}", *shown), False)
    rule = first[0].rule
    heals = rule.klass in HEALS if rule.heals is None else rule.heals
    return LogExplanation(rule.klass, shown, heals)


def _by_exit_code(exit_code: int | None, logs: Sequence[LogText]) -> LogExplanation:
    """What an exit code alone says, which is little: 137 is a lack of memory, an eviction or a person."""
    if exit_code == _STOPPED:
        said = "exit code 75: it stopped early with a good checkpoint"
        return LogExplanation(FailureClass.STOPPED, (said,), True)
    if exit_code == _INTERRUPTED or exit_code == -2:
        return LogExplanation(
            FailureClass.CANCELLED, ("it was interrupted from the keyboard (SIGINT)",), False
        )
    said = "no line of the logs says why it ended"
    if exit_code is not None:
        signal = -exit_code if exit_code < 0 else exit_code - _SIGNALS
        by = f", which is signal {signal}" if 0 < signal < 65 else ""
        said += f"; exit code {exit_code}{by} alone does not either"
    return LogExplanation(FailureClass.UNKNOWN, (said, *_last_lines(logs)), False)


def _last_lines(logs: Sequence[LogText]) -> Iterator[str]:
    """Where each log ends: no evidence, but where a person begins to read."""
    for log in logs[:_SHOWN]:
        written = [(number, line) for number, line in enumerate(log.lines, 1) if line.strip()]
        if written:
            number, line = written[-1]
            yield f"{log.name}:{number}: the last line: {line.strip()[:_SHOWN_LETTERS]}"


def _deciding(found: Iterable[Evidence], nearest: Nearness) -> list[Evidence]:
    """The first of the nearest evidence of each log, as line numbers of different logs cannot be compared;
    and what speaks against it in the same log: another cause that it did not lead to."""
    deciding: dict[str, list[Evidence]] = {}
    for each in found:
        chosen = deciding.setdefault(each.log, [])
        is_other = each.rule.klass not in {other.rule.klass for other in chosen}
        if _contests(each, chosen[0]) and is_other if chosen else each.rule.nearness is nearest:
            chosen.append(each)
    return [each for chosen in deciding.values() for each in chosen]


def _contests(later: Evidence, first: Evidence) -> bool:
    """Whether the later line of a log may be the cause, and the first one something the program survived."""
    nearness = first.rule.nearness
    if nearness not in (Nearness.CAUSE, Nearness.RAISED):
        return False
    if later.rule.nearness > Nearness.RAISED:
        is_doubtful = first.raised is None and first.rule.klass in OFTEN_SURVIVED
        is_broken = later.rule.nearness in (Nearness.COMMUNICATION, Nearness.WAITED)
        return is_doubtful and is_broken and "NCCL WARN" not in first.text
    if later.raised is not None and first.raised is not None:
        if later.raised.caused_by == first.raised.caused_by:
            return False
        if nearness is Nearness.CAUSE and later.raised.chain == first.raised.chain:
            return False
    if nearness is Nearness.CAUSE and later.rule is _RAISED:
        return later.raised is not None and hasattr(builtins, later.raised.name)
    return True


def _without_later_exceptions(found: list[Evidence]) -> list[Evidence]:
    """An exception after a broken connection in the same log is the program's answer to it."""
    broken = {
        each.log: each.number
        for each in reversed(found)
        if each.rule.nearness in (Nearness.COMMUNICATION, Nearness.WAITED)
    }
    return [
        each
        for each in found
        if each.rule.nearness is not Nearness.RAISED or each.number <= broken.get(each.log, each.number)
    ]


def _evidence_in(log: LogText, exit_code: int | None) -> Iterator[Evidence]:
    """The evidence in a log that counts, in the order of its lines."""
    alive_until = _last_sign_of_life(log)
    tracebacks = read_tracebacks(log.lines)
    ignored = _lines_of_earlier_life(log) | lines_of_help(log.lines) | tracebacks.no_evidence
    by_signal = exit_code is not None and (exit_code < 0 or exit_code > _SIGNALS)
    for number, line in enumerate(log.lines):
        if number < alive_until or number in ignored or HARMLESS.search(line):
            continue
        raised = tracebacks.raised.get(number)
        matching = [rule for rule in RULES if _tells(rule, line, raised)]
        if not matching and raised is not None and raised.is_own:
            matching = [_RAISED]
        if not matching:
            continue
        rule = min(matching, key=lambda each: each.nearness)
        if rule.nearness is Nearness.RAISED and by_signal:
            continue
        if not _is_resolved(rule.klass, log.lines[number + 1 :]):
            yield Evidence(rule, log.name, number + 1, line, raised)


def _tells(rule: Rule, line: str, raised: Raised | None) -> bool:
    """Whether a line states what a rule looks for, and does not only mention it."""
    match = rule.pattern.search(line)
    if match is None or (rule.nearness is Nearness.RAISED and raised is None):
        return False
    if raised is not None:
        return True
    before = line[max(0, match.start() - _WORDS_BEFORE) : match.start()]
    if HYPOTHETICAL.search(before) or QUOTED.search(before) or _only_warns(rule, line):
        return False
    if GLOSSARY.search(before) or NAMED.search(line[match.end() : match.end() + _WORDS_BEFORE]):
        return False
    return rule.nearness in (Nearness.PLATFORM, Nearness.PENDING) or GOES_ON.search(line) is None


def _only_warns(rule: Rule, line: str) -> bool:
    return rule.nearness is Nearness.CAUSE and "NCCL WARN" not in line and bool(WARNING.search(line))


def _is_resolved(klass: FailureClass, later: Sequence[str]) -> bool:
    ends = RESOLVED_BY.get(klass)
    return ends is not None and any(ends.search(line) for line in later)


def _last_sign_of_life(log: LogText) -> int:
    """The line before which nothing ended the training: several higher steps were logged from there on."""
    found = ((number, _step_on(line)) for number, line in enumerate(log.lines))
    steps = [(number, step) for number, step in found if step is not None]
    highest_later: list[float] = []
    for number, step in reversed(steps):
        if not highest_later or step < highest_later[-1]:
            highest_later.append(step)
        if len(highest_later) >= _STEPS_THAT_SHOW_LIFE:
            return number
    return 0


def _step_on(line: str) -> float | None:
    found = next((match for pattern in PROGRESS if (match := pattern.search(line))), None)
    return float(found[1][:18]) if found else None


def _lines_of_earlier_life(log: LogText) -> set[int]:
    """Lines of `kubectl describe` on how a container ended before, while it now runs."""
    if not any(_RUNNING.search(line) for line in log.lines):
        return set()
    found: set[int] = set()
    inside = False
    for number, line in enumerate(log.lines):
        inside = bool(_LAST_STATE.search(line)) or (inside and not _NEXT_FIELD.match(line))
        if inside:
            found.add(number)
    return found
