"""The values of configuration files with the place of each, and their problems: one line each."""

from dataclasses import dataclass, field
from typing import Any

from trainyard.config.yaml_reader import KeyPath
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


@dataclass
class Document:
    """The values of the files and of `--set`, merged."""

    values: dict[str, Any] = field(default_factory=dict)
    places: dict[KeyPath, Origin] = field(default_factory=dict)
    sources: list[str] = field(default_factory=list)
    """The files, a base before the files that extend it, then the arguments of `--set`."""
    problems: list[tuple[Origin, str, str]] = field(default_factory=list)
    """Where, the dotted key (empty for the complete file), and what is wrong."""

    def put(self, path: KeyPath, value: Any, origin: Origin) -> None:
        """Set the value at `path`; missing sections are created."""
        section = self.values
        for name in path[:-1]:
            if not isinstance(section.get(name), dict):
                section[name] = {}
            section = section[name]
        section[path[-1]] = value
        self.places[path] = origin

    def origin_of(self, path: KeyPath, otherwise: Origin) -> Origin:
        """Return where the value of `path`, or the nearest section around it, was written."""
        above = (path[:length] for length in range(len(path), 0, -1))
        return next((self.places[each] for each in above if each in self.places), otherwise)

    def error(self) -> ConfigError:
        """Return all problems as one error, in the order of the sources, then of lines."""
        rank = {source: number for number, source in enumerate(self.sources)}
        ordered = sorted(self.problems, key=lambda each: (_rank(each[0], rank), each[0].line or 0))
        lines = list(dict.fromkeys(_line(*each) for each in ordered))
        more = [f"… and {len(lines) - _SHOWN_PROBLEMS:,} more"] if len(lines) > _SHOWN_PROBLEMS else []
        count = "1 error" if len(lines) == 1 else f"{len(lines):,} errors"
        return ConfigError("\n".join([*lines[:_SHOWN_PROBLEMS], *more, f"{count}. Nothing was started."]))


def _rank(origin: Origin, rank: dict[str, int]) -> int:
    return rank.get(origin.argument or origin.file, len(rank))


def _line(origin: Origin, key: str, message: str) -> str:
    place = f"{SET} {shorten(origin.argument)}" if origin.file == SET else str(origin)
    named = "" if key == origin.argument.partition("=")[0].strip() else shorten(key)
    return ": ".join(part for part in (place, named, message) if part)


def shorten(text: str) -> str:
    """Return `text` on one line, cut to a readable length."""
    line = text if text.isprintable() else repr(text[: 2 * _SHOWN_CHARACTERS])[1:-1]
    return line if len(line) <= _SHOWN_CHARACTERS else line[:_SHOWN_CHARACTERS] + "…"
