"""The values of configuration files with the place of each; lines for people about values and problems."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainyard.config.key_lookup import examples_of, unknown_key
from trainyard.config.yaml_reader import KeyPath, plain_value
from trainyard.errors import ConfigError

_SHOWN_CHARACTERS = 80
# Most columns of the values in a list; a longer value moves only the origin in its own line.
_WIDEST_VALUE = 48
_YES_NO = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}
# Pydantic's words where they are those of Python and not of YAML.
_EXPECTED = {
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "float_type": "a number",
    "int_type": "a whole number",
    "model_type": "a section of keys",
    "string_too_short": "text",
    "string_type": "text",
    "tuple_type": "a list of texts",
}


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
    files: list[str] = field(default_factory=list)
    """The files in the order in which they were merged, a base before the files that extend it."""
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

    def remove(self, path: KeyPath) -> None:
        """Remove the value at `path`, so that it has its default."""
        section: Any = self.values
        for name in path[:-1]:
            section = section.get(name) if isinstance(section, dict) else None
        if isinstance(section, dict):
            section.pop(path[-1], None)
        self.places.pop(path, None)

    def origin_of(self, path: KeyPath, otherwise: Origin) -> Origin:
        """Return where the value of `path`, or the nearest section around it, was written."""
        above = (path[:length] for length in range(len(path), 0, -1))
        return next((self.places[each] for each in above if each in self.places), otherwise)

    def error(self, *problem: Any) -> ConfigError:
        """Return all problems, and this last one, as one error: in the order of the files, then of lines."""
        rank = {file: number for number, file in enumerate([*self.files, SET])}
        ordered = sorted(
            [*self.problems, *([problem] if problem else [])],
            key=lambda each: (rank.get(each[0].file, len(rank)), each[0].line or 0),
        )
        lines = list(dict.fromkeys(_line(*each) for each in ordered))
        count = "1 error" if len(lines) == 1 else f"{len(lines):,} errors"
        return ConfigError("\n".join([*lines, f"{count}. Nothing was started."]))


def merge(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Put the values of `above` over those of `below`, and return that; sections are merged key by key."""
    for key, value in above.items():
        section = below.get(key)
        if isinstance(value, dict):
            value = merge(section if isinstance(section, dict) else {}, value)
        below[key] = value
    return below


def _line(origin: Origin, key: str, message: str) -> str:
    place = f"{SET} {shorten(origin.argument)}" if origin.file == SET else str(origin)
    named = "" if key == origin.argument.partition("=")[0].strip() else shorten(key)
    return ": ".join(part for part in (place, named, message) if part)


def shorten(text: str) -> str:
    """Return `text` on one line, cut to a readable length."""
    line = text if text.isprintable() else repr(text[: 2 * _SHOWN_CHARACTERS])[1:-1]
    return line if len(line) <= _SHOWN_CHARACTERS else line[:_SHOWN_CHARACTERS] + "…"


def show_value(value: Any) -> str:
    """Show `value` as in YAML, on one line of limited length."""
    if isinstance(value, dict | list) and value:
        return "a mapping" if isinstance(value, dict) else "a list"
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else "-.inf" if value < 0 else ".inf"
    if not isinstance(value, str):
        return shorten(json.dumps(value))
    return f'"{shorten(json.dumps(value, ensure_ascii=False)[1:-1])}"'


def describe_error(error: Mapping[str, Any], path: KeyPath) -> str:
    """Describe an error of pydantic: `expected a number, got "5e-5" (a string: remove the quotes)`."""
    if error["type"] == "extra_forbidden":
        return unknown_key(path)
    if error["type"] == "missing":
        return "missing"
    words = error["msg"].removeprefix("Input should be ")
    expected = _EXPECTED.get(error["type"], words)
    if words.startswith(("greater", "less")):
        expected = f"a number {words}"
    if error["type"] == "string_pattern_mismatch" and (examples := examples_of(path)):
        expected = f"text like {', '.join(map(show_value, examples))}"
    hint = _hint(error["input"], expected)
    return f"expected {expected}, got {show_value(error['input'])}" + (f" ({hint})" if hint else "")


def _hint(value: Any, expected: str) -> str:
    """Return how to write a text that was meant as a truth value or a number; empty if it was not."""
    if not isinstance(value, str) or len(value) > _SHOWN_CHARACTERS:
        return ""
    meant = plain_value(value.lower())
    if expected == _EXPECTED["bool_type"]:
        fits, unquoted = isinstance(meant, bool), _YES_NO.get(value.lower())
        return f"write {unquoted}" if unquoted else "a string: remove the quotes" if fits else ""
    is_number = isinstance(meant, int | float) and not isinstance(meant, bool)
    fits = "number" in expected or value in re.split(", | or ", expected)
    return "a string: remove the quotes" if is_number and fits else ""


def explanation_lines(values: Mapping[str, Any], origins: Mapping[str, Origin]) -> Iterator[str]:
    """Aligned lines of key, value and origin: `training.max_steps   600   configs/smoke.yaml:28`."""
    rows = [(key, show_value(value_at(values, key)), str(origin)) for key, origin in origins.items()]
    widest_key = max(len(key) for key, _, _ in rows)
    widest_value = min(max(len(value) for _, value, _ in rows), _WIDEST_VALUE)
    for key, value, origin in rows:
        yield f"{key:<{widest_key}}  {value:<{widest_value}}  {origin}"


def value_at(values: Mapping[str, Any], key: str) -> Any:
    """Return the value under a dotted key."""
    found: Any = values
    for name in key.split("."):
        found = found[name]
    return found
