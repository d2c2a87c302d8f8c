"""Explain why a training ended: from facts on record first, from its logs only where no fact answers.

    facts ──> LogExplanation (level: fact)
    logs ──error lines, rows of causes.yaml──> the one that decides ──> LogExplanation (level: log)

Whatever decides, the root error is shown verbatim: of the first process that failed, the deepest cause of its
exception, and not the lines of others that lost it. A line does not count when training continued after it,
when a later line revokes it, or when it is about an earlier start of a container.
"""

import errno
import functools
import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from http import HTTPStatus
from importlib import resources
from typing import Any

from trainyard.config.yaml_reader import parse_yaml
from trainyard.watch.failure_classes import FailureClass
from trainyard.watch.failure_logs.error_lines import EVENT, ErrorLine, find_errors
from trainyard.watch.failure_logs.log_text import (
    LogText,
    has_words,
    last_sign_of_life,
    shows_steps,
    split_prefix,
    stamp_of,
)

_SHOWN_LETTERS = 420
_AROUND, _AFTER = 5, 3
"""Lines that are shown around the root error, and those after it that advice may need."""
_CLOCK_SECONDS = 5.0
"""The clocks of two machines may differ by this much."""
_USAGE, _STOPPED = 2, 75
_SENT = (signal.SIGKILL, signal.SIGTERM)
"""Another process sends these; a crash may follow the exception that is its cause."""
_OWN = (signal.SIGILL, signal.SIGFPE, signal.SIGSEGV, signal.SIGBUS)
"""A program ends itself by these, in the same way again."""
_DEADLY = (signal.SIGKILL, *_OWN)
_YES = ("same", "later")
_SURVIVABLE = frozenset((FailureClass.SERVICE, FailureClass.NETWORK, FailureClass.IMAGE_PULL))
"""Outside a traceback, programs survive these; an exception that follows is the cause."""
_LAST_STATE = re.compile(r"^\s*Last State:|lastState")
_NEXT_FIELD = re.compile(
    r"^\s*\"?([Ss]tate|[Rr]eady|name|Restart Count|restartCount|Limits|Requests|Environment|Mounts)\"?:"
)
_ENDED_BY = re.compile(
    r"(?:(?:exit|return) ?code\s*[:=]?\s*-|\b(?:got|terminated by) signal:? |\bReceived (?=\d+ death))"
    r"(?P<number>\d{1,2})\b"
    r"|\bexit(?:ed with)? (?:code|status)? ?(?P<code>1[345]\d)\b|\bwas (?P<cancelled>cancell?ed)\b"
    r"|(?:\(|was killed by )(?P<name>SIG(?:KILL|TERM|ABRT|SEGV|BUS|FPE|ILL))\b"
    r"|^\s*(?:\S+: line \d+: +\d+ )?(?P<killed>Killed)\b"
)
"""What launchers, shells and GitHub print of a process that a signal ended."""
_NCCL = re.compile(r"\bnccl\w+Error\b|NCCL error")
_RUNNING = re.compile(r"^\s*State:\s*Running|\brunning\"?:\s*(?:\{|$)")


class Says(IntEnum):
    """Who reports a cause, the strongest first."""

    PLATFORM = 0
    PROGRAM = 1
    VICTIM = 2
    STATED = 3
    """A tool states an error that no row knows."""
    END = 4


@dataclass(frozen=True)
class FailureFacts:
    """What is recorded about an end, other than what was printed."""

    exit_code: int | None = None
    """As a shell reports it; a negative one is a signal."""
    exception: str = ""
    """`TYPE: MESSAGE` that ended the program, or that caused what did, as the observer inside it saw it."""
    place: str = ""
    """File and line of that exception in the program's own code."""
    code: str = ""
    """The errno of that exception, or what a service answered: `[Errno 28]`, `HTTP 503`."""
    rank: int | None = None
    """The rank whose exception it was, if several trained."""
    system: Sequence[str] = ()
    """What the machine recorded since the start: lines of the kernel, counters that rose, a full disk."""
    memory_kills: int | None = None
    """Processes that the kernel ended for memory, by the counter of their cgroup; None if it is not known."""
    steps: int | None = None
    """Steps that were made since the last start; None if that is not known, then the logs may show it."""

    @staticmethod
    def of_exception(named: Mapping[str, Any]) -> dict[str, Any]:
        """Return the facts in the record of an exception: type, message, place, cause and code."""
        text = named.get("cause") or ": ".join(str(named.get(name) or "") for name in ("type", "message"))
        first, code = str(text).split("\n")[0].strip(": "), str(named.get("code") or "")
        rank = named.get("rank")
        known = {"exception": first, "place": str(named.get("place") or ""), "code": code}
        return {**known, "rank": rank if isinstance(rank, int) else None}


@dataclass(frozen=True)
class LogExplanation:
    """The class of a failure, its root error, and what to do about it."""

    klass: FailureClass
    evidence: tuple[str, ...]
    """The root error first, then lines around it; sentences if no line decides."""
    retryable: bool
    """Whether a retry from the newest good checkpoint recovers from this cause, on the same machine too."""
    cause: str = ""
    responsible: str = ""
    """Who acts on the fix; empty if none is known."""
    fix: str = ""
    """What to do, if that was done and worked; empty if it is not known."""
    other_node: bool = False
    """Whether a retry recovers on another node only: the fault of this one stays."""
    level: str = ""
    """`fact` or `log`, which the class or the answer about a retry comes from; empty if neither is known.
    `waiting`: the job has not ended."""
    root: str = ""
    """The root error, verbatim; empty if no line states one."""

    @property
    def retry(self) -> str:
        """Return `yes`, `no`, `other` (on another node), or `unknown`: once, if steps were made."""
        if self.retryable or self.other_node:
            return "yes" if self.retryable else "other"
        return "no" if self.level else "unknown"

    @property
    def next_step(self) -> str:
        """Return the fix, or how to search for it."""
        # A line such as "Process completed with exit code 1" is in every failure: nobody finds a cause by it.
        if self.fix or (self.root and not has_words("carrier", self.root)):
            return self.fix or f"not known. Search for: {search_phrase(self.root)}"
        look = "the last lines, the kernel's log, a pod's events, a workflow run's annotations"
        return f"not known. Read {look}"

    def failure(self) -> dict[str, str]:
        """Return the failure for the record of a run; empty facts are absent."""
        facts = {"class": str(self.klass), "error": self.root or self.cause, "fix": self.fix}
        facts |= {"retry": self.retry, "level": self.level}
        return {name: value for name, value in facts.items() if value}

    def record(self) -> dict[str, Any]:
        """Return the data that `trainyard explain --json` prints."""
        return {
            "class": str(self.klass),
            "cause": self.cause,
            "responsible": self.responsible or None,
            "fix": self.next_step,
            "retryable": self.retryable,
            "other_node": self.other_node,
            "evidence": list(self.evidence),
            "level": self.level or None,
            "root": self.root or None,
        }


@dataclass(frozen=True)
class Row:
    """One row of causes.yaml."""

    klass: FailureClass
    says: Says
    retry: str
    patterns: tuple[re.Pattern[str], ...]
    unless: re.Pattern[str] | None = None
    after: re.Pattern[str] | None = None
    ends: re.Pattern[str] | None = None

    def match(self, line: str) -> re.Match[str] | None:
        """Return where the line has the message."""
        found = next((m for pattern in self.patterns if (m := pattern.search(line))), None)
        return None if found and self.unless and self.unless.search(line) else found


@dataclass(frozen=True)
class Candidate:
    """A line that may be the cause."""

    log: LogText
    error: ErrorLine
    says: Says
    klass: FailureClass
    retry: str

    def __str__(self) -> str:
        return f"{self.log.name}:{self.error.number + 1}: {_shown(self.log.lines[self.error.number])}"


@functools.cache
def table() -> dict[str, Any]:
    """Return the content of causes.yaml."""
    file = resources.files(__package__) / "causes.yaml"
    content: dict[str, Any] = parse_yaml(file.read_bytes(), str(file))
    return content


@functools.cache
def rows() -> tuple[Row, ...]:
    """Return the rows of causes.yaml, in its order."""
    return tuple(_row(each) for each in table()["rows"])


def _has_row(line: str) -> bool:
    return any(row.match(line) for row in rows())


def _row(row: dict[str, Any]) -> Row:
    others = (re.compile(row[key]) if key in row else None for key in ("not", "after", "ends"))
    codes = (spell(row[kind]) for kind, spell in _SPELLINGS.items() if kind in row)
    patterns = tuple(re.compile(pattern) for pattern in (*codes, *row.get("match", ())))
    retry = "unknown" if row["retry"] == "once" else row["retry"]
    return Row(FailureClass(row["class"]), Says[row["says"].upper()], retry, patterns, *others)


def _spell_errnos(codes: Sequence[int]) -> str:
    numbers = "|".join(map(str, codes))
    names = "|".join(errno.errorcode[code] for code in codes)
    words = "|".join(rf"[{w[0].upper()}{w[0].lower()}]{re.escape(w[1:])}" for w in map(os.strerror, codes))
    return rf"\[Errno -?(?:{numbers})\]|\bos error (?:{numbers})\b|\b(?:{names})\b|{words}"


def _spell_statuses(codes: Sequence[int]) -> str:
    numbers = "|".join(map(str, codes))
    phrases = "|".join(each.phrase for each in HTTPStatus if each in codes)
    types = rf"\b(?:{phrases.replace(' ', '')})(?:Error|Exception)?\b"
    before = r"(?i:HTTP(?:/[\d.]+)?|status|code|response|error)[\s:='\"(<\[]{1,3}"
    after = f"Client Error|Server Error|{phrases}"
    return rf"{before}(?:{numbers})\b|\b(?:{numbers}) (?i:{after})|\((?:{numbers})\) when|{types}"


def _spell_grpc(codes: Sequence[str]) -> str:
    in_go = "|".join(name.title().replace("_", "") for name in codes)
    # XLA says RESOURCE_EXHAUSTED and INTERNAL of a device.
    of_tensorflow = "|".join(name for name in codes if name not in ("RESOURCE_EXHAUSTED", "INTERNAL"))
    names = "|".join(codes)
    return rf"\bStatusCode\.(?:{names})\b|\b(?:code|status) = \"?(?:{in_go})\b|\b(?:{of_tensorflow}): "


_SPELLINGS: Mapping[str, Callable[[Sequence[Any]], str]] = {
    "errno": _spell_errnos,
    "http": _spell_statuses,
    "aws": lambda names: rf"\((?:{(n := '|'.join(names))})\)|\b(?:{n})Exception\b|[Cc]ode[\"'>:= ]+(?:{n})\b",
    "grpc": _spell_grpc,
    "curl": lambda codes: rf"\bcurl: \((?:{'|'.join(map(str, codes))})\)",
    "types": lambda names: rf"(?:^|[\s.('\"])(?:{'|'.join(names)})\b(?=[:('\s]|$)",
}
"""How programs print a code or the type of an exception, as a regular expression."""


@functools.cache
def _classes_of_exceptions() -> dict[str, FailureClass]:
    return {name: FailureClass(each["class"]) for each in table()["exceptions"] for name in each["types"]}


def explain_logs(
    logs: Sequence[LogText], exit_code: int | None = None, *, facts: FailureFacts | None = None
) -> LogExplanation:
    """Return the cause of a failure, the root error, and whether a retry recovers from it."""
    facts = facts or FailureFacts(exit_code)
    if facts.steps is None and any(map(shows_steps, logs)):
        facts = replace(facts, steps=1)
    found = _explain(logs, facts)
    cut = tuple(f"{log.name}: the beginning of this log is missing" for log in logs if log.is_cut)
    return replace(found, evidence=(*found.evidence, *cut))


def _explain(logs: Sequence[LogText], facts: FailureFacts) -> LogExplanation:
    code = facts.exit_code
    if code == 0:
        why = "it ended with exit code 0"
        return LogExplanation(FailureClass.FINISHED, (why,), False, why, "", "nothing to do", level="fact")
    system = _decide([LogText("the machine's records", tuple(facts.system))], code) if facts.system else None
    shown, observed = _decide(logs, code), _observed(facts, logs)
    is_first = observed is not None and (shown is None or observed.says <= shown.says)
    root = observed if is_first else shown
    if system is not None and system.says <= Says.PROGRAM:
        return _answer(system, facts, root, level="fact")
    if code == _STOPPED and not (root and root.says <= Says.PROGRAM and root.klass not in _SURVIVABLE):
        why = "exit code 75: it stopped early with a good checkpoint"
        fix = "run the same command again to continue"
        return LogExplanation(FailureClass.STOPPED, (why,), True, why, "", fix, level="fact")
    is_end = root is None or (root.says is Says.END and root.klass is FailureClass.UNKNOWN)
    # The others lose a process that was killed or crashed; an abort may be what they lost it by.
    is_weak = root is not None and root.says in (Says.VICTIM, Says.STATED)
    if root is None or is_end or (is_weak and find_signal(logs)[0] in _DEADLY):
        return _explain_exit_code(facts, root, logs)
    return _answer(root, facts, root, level="fact" if is_first else "log")


def _observed(facts: FailureFacts, logs: Sequence[LogText]) -> Candidate | None:
    """Return the exception that the observer saw, at its line of a log if it was printed."""
    if not facts.exception:
        return None
    name, begin = facts.exception.partition(":")[0].rpartition(".")[2], facts.exception[:_SHOWN_LETTERS]
    places = ((log, n) for log in logs for n, line in enumerate(log.lines) if begin in line)
    log, number = next(places, (LogText("observed", (facts.exception,)), 0))
    source = "" if facts.rank is None else f"rank{facts.rank}"
    error = ErrorLine(number, facts.exception, source, name, facts.place)
    found = _judge(log, replace(error, text=f"{error.text} {facts.code}".strip()), log.lines)
    return None if found is None else replace(found, error=error)


def _answer(
    decisive: Candidate, facts: FailureFacts, root: Candidate | None, *, level: str
) -> LogExplanation:
    root = root or decisive
    line, retry = root.error.text.strip(), decisive.retry
    text = f"{_rank_of(root)}{_shown(line)}" + (f" ({root.error.place})" if root.error.place else "")
    if decisive.klass is FailureClass.UNKNOWN and retry == "no":
        # An error that no row knows ends a program in the same way again if it came before the first step.
        is_last_word = decisive.says is not Says.STATED or (
            facts.exit_code is not None and not signal_of(facts.exit_code)
        )
        retry = "no" if is_last_word and not facts.steps else "unknown"
    if decisive.says is Says.STATED and facts.exit_code == _USAGE:
        decisive = replace(decisive, klass=FailureClass.CONFIGURATION)
    shown = [] if decisive.error is root.error else [str(decisive)]
    after = root.log.lines[root.error.number + 1 : root.error.number + 1 + _AFTER]
    texts = ("\n".join((line, *after)), decisive.error.text)
    fix, who = next(filter(any, map(_advice, texts)), ("", ""))
    if retry == "unknown" and who == "program":  # what only a change of the code repairs fails again
        retry = "no"
    return LogExplanation(
        decisive.klass,
        (*shown, *_with_lines_around(root)),
        retry in _YES,
        text,
        who,
        fix,
        other_node=retry == "other",
        level=level if retry != "unknown" or decisive.klass != FailureClass.UNKNOWN else "",
        root=text,
    )


def _rank_of(root: Candidate) -> str:
    """Return the rank that an error is of, as its prefix or the observer names it; empty if neither does."""
    source = split_prefix(root.log.lines[root.error.number])[0] or root.error.source
    found = re.fullmatch(r"\[?(?:default|rank)?(\d+)\]?:?", source)
    return f"rank {found[1]}: " if found else ""


def _advice(line: str) -> tuple[str, str]:
    """Return the fix of an error, if one was followed and worked, and who acts."""
    for each in table()["advice"]:
        if found := re.search(each["match"], line):
            return re.sub(r"\{(\w+)\}", lambda word: found[word[1]], each["fix"]), each.get("responsible", "")
    return "", ""


def search_phrase(line: str) -> str:
    """Return an error without what is personal: paths, addresses, hosts, numbers, quoted names."""
    place = r"https?://\S+|\b[\w.+-]+@[\w.-]+|(?:[A-Za-z]:)?[/\\][\w./\\ -]*[/\\][\w.-]+|\S+/\S+"
    name = r"0x[0-9a-f]+|\b\d[\d.,:-]*\w*|\b[\w-]*\d{3,}[\w-]*|'[^']{1,80}'|\"[^\"]{1,80}\""
    text = re.sub(name, "…", re.sub(place, "…", re.sub(r"^rank \d+: ", "", line)))
    return " ".join(re.sub(r"(?:[…,:()\[\] ]*…)+", " … ", text).split())[:120].strip(" …,:([") or line[:40]


def _decide(logs: Sequence[LogText], exit_code: int | None) -> Candidate | None:
    """Return the candidate of all logs that decides; None if no line states an error."""
    firsts = [found for log in logs if (found := _first_of(log, exit_code)) is not None]
    if not firsts:
        return None
    strongest = min(each.says for each in firsts)
    firsts = [each for each in firsts if each.says is strongest]
    if len(firsts) == 1 or len({each.klass for each in firsts}) == 1:
        return firsts[0]
    times = sorted(
        ((stamp_of(each.log.lines[each.error.number]), n) for n, each in enumerate(firsts)),
        key=lambda pair: (pair[0] is None, pair[0] or 0.0, pair[1]),
    )
    if times[-1][0] is not None and times[1][0] - times[0][0] >= _CLOCK_SECONDS:  # type: ignore[operator]
        return firsts[times[0][1]]
    # The logs name different causes, and no clock orders them: none is certain.
    retries = {each.retry for each in firsts}
    retry = "no" if "no" in retries else "unknown"
    return replace(firsts[0], klass=FailureClass.UNKNOWN, retry=retry)


def _first_of(log: LogText, exit_code: int | None) -> Candidate | None:
    """Return the strongest candidate of a log; of equally strong ones the first."""
    errors, code = find_errors(log)
    alive_until = last_sign_of_life(log)
    by_number = {each.number: each for each in errors}
    ignored = code | _lines_of_earlier_life(log.lines)
    found: list[Candidate] = []
    by_signal = signal_of(exit_code) in _SENT
    for number, raw in enumerate(log.lines):
        if number < alive_until or number in ignored or not (number in by_number or has_words("alarm", raw)):
            continue
        error = by_number.get(number)
        candidate = _judge(
            log, error or ErrorLine(number, split_prefix(raw)[1]), log.lines, is_error=error is not None
        )
        if candidate is not None and not (
            by_signal and candidate.error.name and not _has_row(candidate.error.text)
        ):
            found.append(candidate)
    return min(_without_consequences(found), key=lambda each: each.says, default=None)


def _without_consequences(found: list[Candidate]) -> Iterator[Candidate]:
    """Remove exceptions that follow a broken connection of their process, and problems that were survived.

    NCCL's error of a rank follows its own warning, unless this warns of a lost peer too.
    """
    warnings = [each for each in found if "NCCL WARN" in each.error.text]
    if warnings and all(each.says is Says.STATED for each in warnings):
        found = [each for each in found if each.says is not Says.VICTIM or not _NCCL.search(each.error.text)]
    lost = [each for each in found if each.says is Says.VICTIM]
    raised = [each for each in found if each.error.name and each.says is Says.PROGRAM]
    for each in found:
        here = each.error
        follows = any(
            other.error.number < here.number
            and (here.source.startswith(other.error.source) or other.error.source.startswith(here.source))
            for other in lost
        )
        if each in raised and follows and not _has_row(here.text):
            continue
        is_survivable = each.klass in _SURVIVABLE and not here.name and each.says is Says.PROGRAM
        if is_survivable and any(
            other.error.number > here.number for other in raised if other.klass != each.klass
        ):
            continue
        yield each


def _judge(
    log: LogText, error: ErrorLine, lines: Sequence[str], *, is_error: bool = True
) -> Candidate | None:
    """Return what a line reports; None if it reports nothing."""
    text = error.text
    for row in rows():
        match = row.match(text)
        if match is None or not (error.name or _reports(row, match)):
            continue
        if row.after and not any(row.after.search(line) for line in lines[: error.number]):
            continue
        if row.ends and any(row.ends.search(line) for line in lines[error.number + 1 :]):
            return None
        return Candidate(log, error, row.says, row.klass, row.retry)
    if not is_error:
        return None
    if not error.name:
        return Candidate(
            log, error, Says.END if error.is_carrier else Says.STATED, FailureClass.UNKNOWN, "no"
        )
    if error.name in table()["reports"]:
        return Candidate(log, error, Says.END, FailureClass.UNKNOWN, "unknown")
    klass = _classes_of_exceptions().get(error.name, FailureClass.UNKNOWN)
    is_own = klass is not FailureClass.USER_CODE or not error.in_library
    return Candidate(log, error, Says.PROGRAM, klass if is_own else FailureClass.UNKNOWN, "no")


def _reports(row: Row, match: re.Match[str]) -> bool:
    """Return whether a line reports the message, and does not only mention it."""
    line = match.string
    if has_words("harmless", line) or has_words("about", line[max(0, match.start() - 200) : match.start()]):
        return False
    if has_words("named", line[match.end() : match.end() + 200]):
        return False
    if row.says in (Says.PLATFORM, Says.END):
        return True
    if EVENT.search(line):
        return True
    return not has_words("continues", line) and ("NCCL WARN" in line or not has_words("quiet", line))


def signal_of(exit_code: int | None) -> int:
    """Return the signal of an exit code: -N, 128 + N, or 256 - N if a launcher hands -N on; else 0."""
    code = exit_code or 0
    if code < 0 or 224 < code < 255:
        return -code if code < 0 else 256 - code
    return code - 128 if 128 < code <= 192 else 0


def find_signal(logs: Sequence[LogText]) -> tuple[int, Candidate | None]:
    """Return the signal that ended a process, as a launcher or a shell printed, and the line; 0 if none did.

    Launchers end the other processes by SIGTERM, so another signal comes first.
    """
    found = []
    for log in logs:
        for number, raw in enumerate(log.lines):
            if (match := _ENDED_BY.search(line := split_prefix(raw)[1])) is None:
                continue
            named = signal.Signals[match["name"]] if match["name"] else int(match["number"] or 0)
            sent = named or signal_of(int(match["code"] or 0)) or (9 if match["killed"] else signal.SIGTERM)
            end = Candidate(log, ErrorLine(number, line.strip()), Says.END, FailureClass.UNKNOWN, "unknown")
            found.append((int(sent), end))
    return min(found, key=lambda each: each[0] == signal.SIGTERM, default=(0, None))


def _explain_exit_code(
    facts: FailureFacts, root: Candidate | None, logs: Sequence[LogText]
) -> LogExplanation:
    """Explain an end that no line explains: 137 may be a lack of memory, an eviction or a person.

    A program that ended by itself before a step was made ends in the same way again. A signal and a report of
    another process do not say that it did: only a record of no step does.
    """
    code, by_code = facts.exit_code or 0, signal_of(facts.exit_code)
    number, line = (by_code, None) if by_code else find_signal(logs)
    shown = line or (root if root and not root.error.text.endswith(":") else None)
    last = _with_lines_around(shown) if shown else tuple(_last_lines(logs))
    if by_code == signal.SIGINT:
        why, fix = "it was interrupted from the keyboard (SIGINT)", "start it again when you want it"
        return LogExplanation(FailureClass.CANCELLED, (why,), False, why, "person", fix, level="fact")
    why = "no line of the logs shows why it ended"
    if facts.exit_code is not None:
        why += f"; exit code {code}{f' (signal {by_code})' if by_code else ''} alone does not either"
    why, klass, is_sent = _MEANINGS.get(code, why), FailureClass.UNKNOWN, False
    if number == signal.SIGKILL and facts.memory_kills == 0:
        why = "it was killed (SIGKILL), and not for memory: the kernel ended no process of its cgroup"
        is_sent = True
    elif number:
        why = _SIGNALS.get(number, why)
    if code in (126, 127):
        klass = FailureClass.CONFIGURATION
    elif number == signal.SIGBUS:
        klass = FailureClass.DATA_LOADER
    has_no_step = facts.steps == 0 or (root is None and not number and not facts.steps)
    is_own = has_no_step and (number in _OWN or (code > 0 and not number))
    text = f"{_rank_of(shown)}{_shown(shown.error.text)}" if shown else ""
    level = "fact" if is_sent or is_own or klass is not FailureClass.UNKNOWN else ""
    fix, responsible = _advice(why)
    return LogExplanation(
        klass, last if shown else (why, *last), is_sent, why, responsible, fix, level=level, root=text
    )


_MEANINGS: Mapping[int, str] = {
    126: "the command cannot be executed: its file mode or its interpreter is wrong",
    127: "the command or its interpreter does not exist on this machine or in this image",
}
_SIGNALS: Mapping[int, str] = {
    signal.SIGKILL: "a process of it was killed (SIGKILL, signal 9), and nothing shows by whom or by what",
    signal.SIGABRT: "a native library aborted (SIGABRT)",
    signal.SIGBUS: "a memory-mapped file could not be read (SIGBUS): its disk or /dev/shm is full",
    signal.SIGFPE: "an arithmetic error (SIGFPE)",
    signal.SIGSEGV: "native code crashed (SIGSEGV)",
}
"""What an exit code or a signal says by itself."""


def _last_lines(logs: Sequence[LogText]) -> Iterator[str]:
    """Return the last lines of each log: no evidence, but a place to start."""
    for log in logs:
        written = [n for n, line in enumerate(log.lines) if not has_words("noise", line)]
        yield from (f"{log.name}:{n + 1}: {_shown(log.lines[n])}" for n in written[-(_AROUND + 1) :])


def _with_lines_around(root: Candidate) -> tuple[str, ...]:
    """Return the root error, then the lines around it that say something, in their order."""
    lines, number = [split_prefix(line)[1] for line in root.log.lines], root.error.number
    before = [n for n in range(max(0, number - 40), number) if not has_words("noise", lines[n])]
    after = [n for n in range(number + 1, min(len(lines), number + 40)) if not has_words("noise", lines[n])]
    shown_after = after[: max(2, _AROUND - len(before))]
    shown = [*before[-(_AROUND - len(shown_after)) :], *shown_after][:_AROUND]
    return tuple(f"{root.log.name}:{n + 1}: {_shown(root.log.lines[n])}" for n in (number, *shown))


def _shown(line: str) -> str:
    text = line.strip()
    end = _SHOWN_LETTERS // 3  # wrappers of wrappers name the cause last
    return text if len(text) <= _SHOWN_LETTERS else f"{text[: 2 * end]} … {text[-end:]}"


def _lines_of_earlier_life(lines: Sequence[str]) -> set[int]:
    """Return the lines of `kubectl describe` about an earlier end of a container that runs now."""
    found: set[int] = set()
    if any(_RUNNING.search(line) for line in lines):
        inside = False
        for number, line in enumerate(lines):
            inside = bool(_LAST_STATE.search(line)) or (inside and not _NEXT_FIELD.match(line))
            if inside:
                found.add(number)
    return found
