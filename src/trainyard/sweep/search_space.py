"""The values that each key of a sweep may take, read from the command line. Nothing is drawn here."""

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from trainyard.errors import ConfigError

_RANGE = re.compile(r"(?P<log>log:)?(?P<low>[^,]+?)\.\.(?P<high>[^,]+)")
_WHOLE = re.compile(r"-?\d{1,15}")
_FORMS = (
    "KEY=A,B,C (one of these), KEY=LOW..HIGH (between them), or KEY=log:LOW..HIGH (by orders of magnitude)"
)


@dataclass(frozen=True)
class Choices:
    """One of several values, as text that the configuration reads."""

    key: str
    values: tuple[str, ...]

    @property
    def ends(self) -> tuple[str, ...]:
        """The values to try on the configuration: if it allows them, it allows all."""
        return self.values


@dataclass(frozen=True)
class Range:
    """A number between two others, both included."""

    key: str
    low: float
    high: float
    is_log: bool
    is_whole: bool

    @property
    def ends(self) -> tuple[str, ...]:
        return format_number(self.low), format_number(self.high)


Dimension = Choices | Range


def read_space(texts: Sequence[str]) -> tuple[Dimension, ...]:
    """Return a dimension for each text. Raises ConfigError for a wrong text, or a key given twice."""
    dimensions = tuple(_dimension(text) for text in texts)
    keys = [each.key for each in dimensions]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise ConfigError(f"--space {twice}: given twice; give all of its values in one --space")
    return dimensions


def _dimension(text: str) -> Dimension:
    key, equals, values = text.partition("=")
    key = key.strip()
    if not key or not equals or not values.strip():
        raise ConfigError(f"--space {text!r}: write {_FORMS}")
    if match := _RANGE.fullmatch(values):
        return _range(text, key, match)
    choices = tuple(value.strip() for value in values.split(","))
    if "" in choices or len(set(choices)) < len(choices):
        raise ConfigError(f"--space {text!r}: a value is empty or given twice")
    return Choices(key, choices)


def _range(text: str, key: str, match: re.Match[str]) -> Range:
    try:
        low, high = float(match["low"]), float(match["high"])
    except ValueError:
        raise ConfigError(f"--space {text!r}: a range needs a number at each end; write {_FORMS}") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ConfigError(f"--space {text!r}: a range has two finite numbers, the smaller one first")
    is_log = match["log"] is not None
    if is_log and low <= 0:
        raise ConfigError(f"--space {text!r}: a range by orders of magnitude begins above 0")
    is_whole = all(_WHOLE.fullmatch(match[name].strip()) for name in ("low", "high"))
    return Range(key, low, high, is_log, is_whole)


def format_number(value: float) -> str:
    """Return a number as the configuration reads it: an integer if it is one, else with all of its digits."""
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))


def combinations(space: Sequence[Dimension]) -> list[dict[str, str]]:
    """Return every combination of the values, the first key slowest. Raises ConfigError for a range."""
    if ranges := [each.key for each in space if isinstance(each, Range)]:
        raise ConfigError(f"--sampler grid takes values, not ranges: list those of {', '.join(ranges)}")
    values = [[(each.key, value) for value in each.ends] for each in space]
    return [dict(each) for each in itertools.product(*values)]
