"""Read logs: their text, the prefixes of collectors, clocks, and steps that show that training continued.

It judges no line.
"""

import functools
import json
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

from trainyard.config.yaml_reader import parse_yaml
from trainyard.run.untrusted_files import open_regular

_LONGEST_LINE = 20_000
_MOST_BYTES = 256 << 20
"""Most bytes of the end of a log that are read."""
_STEPS_THAT_SHOW_LIFE = 3
"""A line did not end the training if this many steps follow it; slower ranks may still log one or two."""
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_TIME = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.,]*(?:Z|[+-]\d\d:?\d\d)?\s(?:std(?:out|err) [FP] )?"
_PREFIX = re.compile(
    rf"(?:\s*(?:{_TIME}|(?:> )+|\[pod/[\w./-]+\] ?|[\w.-]+ +\| |\[?(?:default|rank)?\d{{1,6}}\]?:\s?"
    r"|\([^()\n]{0,80}pid=\d+[^()\n]{0,80}\)\s|##\[(?:error|warning|debug|command)\]"
    r"|#\d{1,4} \d{1,6}\.\d{1,4} |(?:ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[\w./-]{1,80}:\d+\] ?"
    r"|E\d{4} \d\d:\d\d:\d\d\.\d{3,9} +\d{1,9} [\w./-]{1,120}:\d+\] ?"
    r"|\[Container\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d(?:\.\d+)? |[^\t\n]{1,80}\t[^\t\n]{1,80}\t(?=\d{4}-)))+"
)
"""What collectors write before a line: kubectl, container logs, compose, BuildKit, torchrun, vLLM, Slurm,
Ray, GitHub and CodeBuild."""
_STAMP = re.compile(_TIME)
_STEP = re.compile(
    r"(?i)\b(?:global_?)?(?:step|iteration|iter)\b[\s\"']*[:=]?\s*(\d{1,18})(?!/\d+ ?:)"
    r"|(\d{1,18})/\d+ \[[\d:]+<|\bepoch\b[\s\"']*[:=]?\s*(\d{1,9}(?:\.\d{1,9})?)"
)


@functools.cache
def _words() -> dict[str, re.Pattern[str]]:
    """Return the regular expressions of the groups of words.yaml."""
    file = resources.files(__package__) / "words.yaml"
    groups = parse_yaml(file.read_bytes(), str(file))
    return {name: re.compile("|".join(each).replace("(?i)|", "(?i)", 1)) for name, each in groups.items()}


def has_words(group: str, line: str) -> bool:
    """Return whether a line has words of a group."""
    return _words()[group].search(line) is not None


@dataclass(frozen=True)
class LogText:
    """A log: its name and its lines."""

    name: str
    lines: tuple[str, ...]
    is_cut: bool = False
    """Whether its first lines were not read."""


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
    """Return a run's events.jsonl as a log; a line that is cut off stays as it is."""
    return log_of(name, "\n".join(map(_event_line, text.splitlines())))


def _event_line(line: str) -> str:
    with suppress(ValueError, RecursionError):
        if isinstance(event := json.loads(line), dict):
            words = (event.get(key) for key in ("type", "reason", "event", "message"))
            return " ".join(str(word).replace("\n", " ") for word in words if word)
    return line


def split_prefix(line: str) -> tuple[str, str]:
    """Return the process that a line is from, as its prefix names it, and the line without the prefix."""
    found = _PREFIX.match(line)
    if found is None:
        return "", line
    return _STAMP.sub("", found[0]).strip(), line[found.end() :]


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


def last_sign_of_life(log: LogText) -> int:
    """Return the line after which several higher steps were logged: nothing before it ended the training."""
    highest_later: list[float] = []
    for number in range(len(log.lines) - 1, -1, -1):
        step = _step_on(log.lines[number])
        if step is not None and (not highest_later or step < highest_later[-1]):
            highest_later.append(step)
            if len(highest_later) >= _STEPS_THAT_SHOW_LIFE:
                return number
    return 0


def shows_steps(log: LogText) -> bool:
    """Return whether a log shows that a step was made."""
    return any(_step_on(line) for line in log.lines)


def _step_on(line: str) -> float | None:
    found = _STEP.search(line)
    return float(found[found.lastindex or 0]) if found and not has_words("no_training", line) else None
