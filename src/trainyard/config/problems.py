"""The problems of a configuration with their places: one line each, and the error that lists them.

`schema_validation` and `combinations` find the problems.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from trainyard.errors import ConfigError

_SHOWN_CHARACTERS = 80
_SHOWN_PROBLEMS = 100


@dataclass(frozen=True)
class Origin:
    """The origin of a value: a file and line, `--set`, or the default."""

    file: str
    """The path as the person wrote it, or `--set`, or `default`."""
    line: int | None = None
    """Counted from 1; absent outside files."""
    argument: str = ""
    """The complete `key=value` of a `--set`."""

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


DEFAULT = Origin("default")
SET = "--set"


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong."""

    origin: Origin
    key: str
    """Dotted; empty for the complete file."""
    message: str

    def __str__(self) -> str:
        place, named = str(self.origin), ""
        if self.origin.file == SET:
            place = f"{SET} {shorten(self.origin.argument)}"
            named = self.origin.argument.partition("=")[0].strip()
        parts = (place, "" if self.key == named else shorten(self.key), self.message)
        return ": ".join(part for part in parts if part)


def shorten(text: str) -> str:
    """`text` on one line, cut to a readable length."""
    line = text if text.isprintable() else repr(text[: 2 * _SHOWN_CHARACTERS])[1:-1]
    return line if len(line) <= _SHOWN_CHARACTERS else line[:_SHOWN_CHARACTERS] + "…"


def error_of(problems: Sequence[Problem], sources: Sequence[str]) -> ConfigError:
    """All problems as one error, in the order of `sources` (files, then --set arguments), then of lines."""
    rank = {source: position for position, source in enumerate(sources)}

    def place(problem: Problem) -> tuple[int, int]:
        source = problem.origin.argument or problem.origin.file
        return rank.get(source, len(rank)), problem.origin.line or 0

    ordered = sorted(problems, key=place)
    lines = list(dict.fromkeys(str(problem) for problem in ordered))
    shown = lines[:_SHOWN_PROBLEMS]
    if len(lines) > len(shown):
        shown.append(f"… and {len(lines) - len(shown):,} more")
    count = "1 error" if len(lines) == 1 else f"{len(lines):,} errors"
    return ConfigError("\n".join([*shown, f"{count}. Nothing was started."]))
