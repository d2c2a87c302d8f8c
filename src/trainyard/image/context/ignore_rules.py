"""The rules of a `.dockerignore`: they exclude files of a folder from the build.

The patterns are those of moby's patternmatcher: Go's `filepath.Match`, with `**` for any number of folders. A
line that begins with `!` includes files again, and the last matching line decides. A pattern that matches a
folder matches everything in it.
"""

import re
from dataclasses import dataclass

from trainyard.errors import ConfigError


@dataclass(frozen=True)
class IgnoreRule:
    """One line of the file."""

    pattern: re.Pattern[str]
    takes_back: bool


def parse_ignore_file(text: str, name: str) -> tuple[IgnoreRule, ...]:
    """Return the rules of an ignore file, called `name` in messages. Raises ConfigError for a bad pattern."""
    return tuple(
        rule
        for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), start=1)
        if (rule := _rule(line, f"{name}:{number}")) is not None
    )


def is_ignored(path: str, rules: tuple[IgnoreRule, ...]) -> bool:
    """Return whether the file at `path` (relative, `/` between its names) is excluded."""
    ignored = False
    for rule in rules:
        if rule.takes_back == ignored and rule.pattern.fullmatch(path):
            ignored = not rule.takes_back
    return ignored


def _rule(line: str, place: str) -> IgnoreRule | None:
    line = line.strip()
    if not line or line.startswith("#"):
        return None
    takes_back = line.startswith("!")
    pattern = line[1:].strip() if takes_back else line
    if takes_back and not pattern:
        raise ConfigError(f"{place}: ! alone includes nothing; name a file after it")
    parts: list[str] = []
    for part in pattern.split("/"):
        if part == "..":
            parts[-1:] = []
        elif part not in ("", "."):
            parts.append(part)
    if not parts:
        return None  # Docker ignores a pattern for the context itself
    try:
        return IgnoreRule(re.compile(_expression(parts) + r"(?:/.*)?", re.DOTALL), takes_back)
    except (re.error, ValueError):
        raise ConfigError(f"{place}: {line!r} is not a pattern; is a [ not closed?") from None


def _expression(parts: list[str]) -> str:
    found = ""
    for place, part in enumerate(parts):
        last = place == len(parts) - 1
        if part == "**":
            found += ".*" if last else "(?:.*/)?"
        else:
            found += _TOKEN.sub(_translate, part) + ("" if last else "/")
    return found


_TOKEN = re.compile(
    r"(?P<stars>\*+)|(?P<one>\?)|\[(?P<set>.[^\]]*)\]|\\(?P<escaped>.)|(?P<letter>.)", re.DOTALL
)


def _translate(token: re.Match[str]) -> str:
    """Return the regular expression for one token of a pattern, between two `/`."""
    if token["stars"]:
        return "[^/]*" if token["stars"] == "*" else ".*"
    if token["set"]:
        return f"[{token['set']}]".replace("\\", "\\\\")
    if token["letter"] == "[":
        raise ValueError("it is not closed")
    return "[^/]" if token["one"] else re.escape(token["escaped"] or token["letter"])
