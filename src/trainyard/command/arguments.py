"""The types of all command lines: each parses the text of one option, or explains why it is wrong.

    text of an option --type--> value | ArgumentTypeError, which argparse prints with the option's name

Numbers are written in ASCII digits, have bounds, and are neither infinite nor "not a number". Nothing is
opened here.
"""

import argparse
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from trainyard.errors import ConfigError

Value = TypeVar("Value")

MOST_SHOWN = 60
"""A wrong value is repeated in its message up to this many characters."""
_DIGITS = 18
"""Most digits of a whole number, so that it fits into every counter and file name."""
_DAY_SECONDS = 86400.0
_MOST_PROCESSES = 1024
_LONGEST_DAYS = 36500
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": _DAY_SECONDS}
_DECIMAL = re.compile(r"([0-9]{1,30}(\.[0-9]{0,30})?|\.[0-9]{1,30})([eE][-+]?[0-9]{1,3})?")
_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)([smhd])")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
_OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_OBJECT_NAME_LETTERS = 253
"""A DNS subdomain of RFC 1123, as Kubernetes names objects."""


def quote(text: str) -> str:
    """`text` in quotes; a long text is cut off."""
    return repr(text) if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]!r}… ({len(text):,} letters)"


def refusal(value: str, why: str) -> argparse.ArgumentTypeError:
    """The error for a wrong `value`: `'x' is not a whole number above 0`."""
    return argparse.ArgumentTypeError(f"{quote(value)} {why}")


def parse(read: Callable[[str], Value], value: str, name: str) -> Value:
    """Return the value of an input that is no option, such as one of a workflow. Raises ConfigError."""
    try:
        return read(value)
    except argparse.ArgumentTypeError as error:
        raise ConfigError(f"{name}: {error}") from None


def text(value: str) -> str:
    """Any text that is valid UTF-8; the default type of options."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise refusal(value, "is not UTF-8") from None
    return value


def variable(value: str) -> tuple[str, str]:
    """An environment variable `NAME=VALUE`, as name and value."""
    name, equals, content = text(value).partition("=")
    if not equals or not _VARIABLE.fullmatch(name):
        raise refusal(value, "is not NAME=VALUE, such as NCCL_DEBUG=INFO")
    return name, content


def object_name(value: str) -> str:
    """The name of an object in a cluster, such as a job. An empty one would mean every object of its kind."""
    if not _OBJECT_NAME.fullmatch(value) or len(value) > _OBJECT_NAME_LETTERS:
        raise refusal(value, "is not the name of an object in a cluster, such as llama-2")
    return value


def object_name_if_given(value: str) -> str:
    """The name of an object in a cluster, or an empty text, the default of an option."""
    return object_name(value) if value else value


def path(value: str) -> Path:
    """A path. An empty one, which would mean the working directory, is refused."""
    if not value:
        raise argparse.ArgumentTypeError("the path is empty; write . for the working directory")
    return Path(value)


def run_directory(value: str) -> Path:
    """A run's directory; the name of one in runs/, which is what reports show, is enough."""
    given = path(value)
    in_runs = Path("runs") / given
    return in_runs if "/" not in value and not given.exists() and in_runs.is_dir() else given


def duration(value: str) -> float:
    """Seconds of `30d`, `8h`, `25m` or `90s`; at most a hundred years."""
    match = _DURATION.fullmatch(value)
    found = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if not 0 < found <= _LONGEST_DAYS * _DAY_SECONDS:
        raise refusal(value, f"is not a duration such as 8h, 25m or 90s, at most {_LONGEST_DAYS}d")
    return found


def step(value: str) -> int | None:
    """The step number in `value`; None for any text without digits only, such as `newest`."""
    return int(value) if value.isascii() and value.isdecimal() and len(value) <= _DIGITS else None


def step_or_newest(value: str) -> int | None:
    """A step's number; None for `newest`."""
    if value != "newest" and step(value) is None:
        raise refusal(value, "is neither a step nor newest")
    return step(value)


def natural_number(value: str) -> int:
    """A whole number from 0."""
    if (found := step(value)) is None:
        raise refusal(value, "is not a whole number from 0")
    return found


def positive(value: str) -> int:
    """A whole number above 0."""
    if not (found := step(value)):
        raise refusal(value, "is not a whole number above 0")
    return found


def processes(value: str) -> int:
    """Number of processes on one machine: from 1 to 1,024."""
    found = step(value) or 0
    if not 0 < found <= _MOST_PROCESSES:
        raise refusal(value, f"is not a whole number above 0, at most {_MOST_PROCESSES:,}")
    return found


def share(value: str) -> float:
    """A number above 0 and up to 1."""
    return _decimal(value, lambda found: 0 < found <= 1, "is not a share such as 0.4 (above 0, at most 1)")


def pause(value: str) -> float:
    """Seconds to wait: from 0, and at most a day."""
    words = "is not a number of seconds from 0, at most a day"
    return _decimal(value, lambda found: 0 <= found <= _DAY_SECONDS, words)


def _decimal(value: str, fits: Callable[[float], bool], words: str) -> float:
    found = float(value) if _DECIMAL.fullmatch(value) else math.nan
    if not fits(found):
        raise refusal(value, words)
    return found
