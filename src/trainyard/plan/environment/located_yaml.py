"""Read YAML and JSON with the line of every value, for findings that name the place.

    text ──composed, bounded──> documents of LocatedMapping, lists and Text

Only these three types are constructed, so no tag of a document runs code.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from trainyard.config.yaml_reader import YamlError, compose, values_of
from trainyard.errors import ConfigError


class Text(str):
    """A scalar as it is written, with its line."""

    line: int

    @property
    def number(self) -> int | None:
        return int(self) if self.isascii() and self.isdecimal() and len(self) < 12 else None

    @property
    def is_true(self) -> bool:
        return self.lower() == "true"


class LocatedMapping(dict[str, Any]):
    """A mapping with the line of each key."""

    line: int
    lines: dict[str, int]

    def mapping(self, *keys: str) -> "LocatedMapping":
        """Return the mapping below these keys, or an empty one."""
        found: Any = self
        for key in keys:
            found = found.get(key) if isinstance(found, LocatedMapping) else None
        return found if isinstance(found, LocatedMapping) else _empty(self.line)

    def items_of(self, key: str) -> list["LocatedMapping"]:
        """Return the mappings in the list below `key`; empty if there is no list."""
        found = self.get(key)
        return [item for item in found if isinstance(item, LocatedMapping)] if isinstance(found, list) else []

    def text(self, key: str) -> Text:
        """Return the scalar below `key`, or an empty one."""
        found = self.get(key)
        return found if isinstance(found, Text) else _text("", self.line)


def read_documents(text: str, name: str) -> list[LocatedMapping]:
    """Return the documents of a file that are mappings. Raises ConfigError if it is not YAML."""
    try:
        roots = compose(text)
        for root in roots:
            values_of(root, {}, old=True)  # merges mappings, and refuses aliases that repeat themselves
    except YamlError as error:
        raise ConfigError(f"{name}:{error.line}: {error}" if error.line else f"{name}: {error}") from None
    found = map(_locate_node, roots)
    return [document for document in found if isinstance(document, LocatedMapping)]


def locate_objects(objects: Iterable[Mapping[str, Any]]) -> list[LocatedMapping]:
    """Return plain objects as documents; they have no lines, so every value is on line 1."""
    return [_locate_value(value) for value in objects]


def _locate_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        found = _empty(1)
        for key, inner in value.items():
            found[key], found.lines[key] = _locate_value(inner), 1
        return found
    if isinstance(value, list | tuple):
        return [_locate_value(inner) for inner in value]
    return _text("" if value is None else str(value), 1)


def all_mappings(value: Any) -> Iterator[Any]:
    """Yield `value`, if it is a mapping, and every mapping below it."""
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from all_mappings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from all_mappings(inner)


def _locate_node(node: Any) -> Any:
    import yaml

    line = node.start_mark.line + 1
    if isinstance(node, yaml.ScalarNode):
        return _text(node.value, line)
    if isinstance(node, yaml.SequenceNode):
        return [_locate_node(item) for item in node.value]
    found = _empty(line)
    for key, value in node.value:
        if isinstance(key, yaml.ScalarNode):
            found[key.value] = _locate_node(value)
            found.lines[key.value] = key.start_mark.line + 1
    return found


def _text(value: str, line: int) -> Text:
    text = Text(value)
    text.line = line
    return text


def _empty(line: int) -> LocatedMapping:
    found = LocatedMapping()
    found.line, found.lines = line, {}
    return found
