"""The rules of a `.dockerignore`: they exclude files of a folder from the build.

The patterns are those of moby's patternmatcher, without its escapes: `*`, `?` and `[…]` in a name, `**` for
any number of folders. A line that begins with `!` includes files again, and the last matching line decides. A
pattern that matches a folder matches everything in it.
"""

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from trainyard.errors import ConfigError


@dataclass(frozen=True)
class IgnoreRule:
    """One line of the file."""

    parts: tuple[str, ...]
    """The pattern, split at `/`."""
    takes_back: bool


def parse_ignore_file(text: str, name: str) -> tuple[IgnoreRule, ...]:
    """Return the rules of an ignore file, called `name` in messages. Raises ConfigError for a bad pattern."""
    return tuple(
        rule
        for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), start=1)
        if (rule := _rule(line.strip(), f"{name}:{number}")) is not None
    )


def is_ignored(path: str, rules: tuple[IgnoreRule, ...]) -> bool:
    """Return whether the file at `path` (relative, `/` between its names) is excluded."""
    ignored, names = False, path.split("/")
    for rule in rules:
        if rule.takes_back == ignored and _matches(rule.parts, names):
            ignored = not rule.takes_back
    return ignored


def _rule(line: str, place: str) -> IgnoreRule | None:
    if not line or line.startswith("#"):
        return None
    pattern = line.removeprefix("!").strip()
    if not pattern:
        raise ConfigError(f"{place}: ! alone includes nothing; name a file after it")
    # Python writes [!…] for [^…].
    parts = (posixpath.normpath(pattern).lstrip("/") or ".").replace("[^", "[!").split("/")
    if any("[" in part and "]" not in part.partition("[")[2] for part in parts):
        raise ConfigError(f"{place}: {line!r} is not a pattern; is a [ not closed?")
    # One for the whole context is ignored.
    return None if parts == ["."] else IgnoreRule(tuple(parts), line.startswith("!"))


def _matches(parts: Sequence[str], names: Sequence[str]) -> bool:
    """Return whether the pattern matches the path, or a folder that it is in."""
    if not parts:
        return True
    if parts[0] == "**":
        return any(_matches(parts[1:], names[place:]) for place in range(len(names)))
    return bool(names) and fnmatchcase(names[0], parts[0]) and _matches(parts[1:], names[1:])
