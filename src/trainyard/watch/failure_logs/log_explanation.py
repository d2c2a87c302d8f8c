"""Choose the cause of a failure from all evidence in its logs: the line nearest to the cause, not the last.

    logs, events, exit code  ──evidence──>  what counts  ──choose──>  LogExplanation

A line does not count when training continued after it, when a later line revokes it, or when it is about an
earlier start of a container. Different causes, in one log or in several, give `unknown` with both of them,
unless one exception led to the other. A wrong class would decide wrongly about a retry.
"""

import builtins
import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainyard.watch.failure_classes import HEALS, FailureClass
from trainyard.watch.failure_logs.evidence_rules import (
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
from trainyard.watch.failure_logs.log_structure import Raised, lines_of_help, read_tracebacks, split_prefix

_STEPS_THAT_SHOW_LIFE = 3
"""A line did not end the training if so many steps follow it; slower ranks may still log one or two."""
_SHOWN, _SHOWN_LETTERS = 5, 300
_LONGEST_LINE = 20_000
_WORDS_BEFORE = 200
"""Characters before the evidence in which a line may say that it only mentions it."""
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
    """A log: its name and its lines."""

    name: str
    lines: tuple[str, ...]


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
    """The class of a failure and its evidence."""

    klass: FailureClass
    evidence: tuple[str, ...]
    """The deciding line first, then others; sentences if no line says it."""
    retryable: bool

    def record(self) -> dict[str, Any]:
        """Return the data that `scripts/explain_failure.py --json` prints."""
        return {"class": str(self.klass), "evidence": list(self.evidence), "retryable": self.retryable}


def log_of(name: str, text: str) -> LogText:
    """Return the log of a text; a carriage return also ends a line."""
    plain = _COLOUR.sub("", text).replace("\x00", "")
    return LogText(name, tuple(line[:_LONGEST_LINE] for line in re.split(r"\r\n|\n|\r", plain)))


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
    """Return the class of the failure in the logs, and the lines that show it."""
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
    """Explain an exit code without logs: 137 may be a lack of memory, an eviction or a person."""
    if exit_code == _STOPPED:
        said = "exit code 75: it stopped early with a good checkpoint"
        return LogExplanation(FailureClass.STOPPED, (said,), True)
    if exit_code == _INTERRUPTED or exit_code == -2:
        said = "it was interrupted from the keyboard (SIGINT)"
        return LogExplanation(FailureClass.CANCELLED, (said,), False)
    said = "no line of the logs says why it ended"
    if exit_code is not None:
        signal = -exit_code if exit_code < 0 else exit_code - _SIGNALS
        by = f", which is signal {signal}" if 0 < signal < 65 else ""
        said += f"; exit code {exit_code}{by} alone does not either"
    return LogExplanation(FailureClass.UNKNOWN, (said, *_last_lines(logs)), False)


def _last_lines(logs: Sequence[LogText]) -> Iterator[str]:
    """Return the last line of each log, which is not evidence but helps a person to begin."""
    for log in logs[:_SHOWN]:
        written = [(number, line) for number, line in enumerate(log.lines, 1) if line.strip()]
        if written:
            number, line = written[-1]
            yield f"{log.name}:{number}: the last line: {line.strip()[:_SHOWN_LETTERS]}"


def _deciding(found: Iterable[Evidence], nearest: Nearness) -> list[Evidence]:
    """Return each log's first evidence nearest to the cause, and other causes in that log that contradict it.

    Each log is judged alone, because line numbers of different logs cannot be compared.
    """
    deciding: dict[str, list[Evidence]] = {}
    for each in found:
        chosen = deciding.setdefault(each.log, [])
        is_other = each.rule.klass not in {other.rule.klass for other in chosen}
        if _contests(each, chosen[0]) and is_other if chosen else each.rule.nearness is nearest:
            chosen.append(each)
    return [each for chosen in deciding.values() for each in chosen]


def _contests(later: Evidence, first: Evidence) -> bool:
    """Return whether the later line may be the cause, and the first a problem that the program survived."""
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
    """Remove exceptions that follow a broken connection of the same process: they are its consequence."""
    broken = [each for each in found if each.rule.nearness in (Nearness.COMMUNICATION, Nearness.WAITED)]
    return [
        each
        for each in found
        if each.rule.nearness is not Nearness.RAISED or not any(_answers(each, other) for other in broken)
    ]


def _answers(raised: Evidence, broken: Evidence) -> bool:
    """Lines of different processes stand in no order, where their prefixes tell them apart."""
    here, there = raised.source, broken.source
    is_other = not here.startswith(there) and not there.startswith(here)
    return raised.log == broken.log and raised.number > broken.number and not is_other


def _evidence_in(log: LogText, exit_code: int | None) -> Iterator[Evidence]:
    """Return the evidence in a log that counts, in the order of its lines."""
    alive_until = _last_sign_of_life(log)
    tracebacks = read_tracebacks(log.lines)
    split = [split_prefix(line) for line in log.lines]
    lines = [plain for _, plain in split]
    ignored = _lines_of_earlier_life(lines) | lines_of_help(lines) | tracebacks.no_evidence
    by_signal = exit_code is not None and (exit_code < 0 or exit_code > _SIGNALS)
    for number, line in enumerate(lines):
        if number < alive_until or number in ignored or HARMLESS.search(line):
            continue
        raised = tracebacks.raised.get(number)
        matching = [rule for rule, match in _matches(line) if _tells(rule, match, raised)]
        if not matching and raised is not None and raised.is_own:
            matching = [_RAISED]
        if not matching:
            continue
        rule = min(matching, key=lambda each: each.nearness)
        if rule.nearness is Nearness.RAISED and by_signal:
            continue
        if not _is_resolved(rule.klass, log.lines[number + 1 :]):
            yield Evidence(rule, log.name, number + 1, log.lines[number], raised, split[number][0])


@functools.lru_cache(maxsize=1024)
def _matches(line: str) -> tuple[tuple[Rule, re.Match[str]], ...]:
    """Return the rules that match a line, and where. The processes of a run write many equal lines."""
    return tuple((rule, match) for rule in RULES if (match := rule.pattern.search(line)))


def _tells(rule: Rule, match: re.Match[str], raised: Raised | None) -> bool:
    """Return whether a line reports the evidence, and does not only mention it."""
    if raised is not None:
        return True
    if rule.nearness is Nearness.RAISED:
        return False
    line = match.string
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
    """Return the line after which several higher steps were logged: nothing before it ended the training."""
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
