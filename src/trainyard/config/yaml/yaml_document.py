"""Read one YAML file into plain values with the place of each, and collect all YAML errors.

    bytes -> text -> events (size, depth, tabs) -> nodes -> values and places

It does not know which keys a configuration has, and does not follow `extends`.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from trainyard.config.problems import Origin, Problem, shorten
from trainyard.config.yaml.scalars import value_of
from trainyard.config.yaml.sources import Fault, read_source
from trainyard.config.yaml.syntax import MAX_DEPTH, compose

MAX_VALUES = 100_000

KeyPath = tuple[str, ...]
"""Names of the sections around a key, then the key's own name."""


@dataclass
class Document:
    """The values of one file, or of several merged."""

    values: dict[str, Any] = field(default_factory=dict)
    places: dict[KeyPath, Origin] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    is_complete: bool = True
    """False when a part could not be read; a key that seems missing may be in that part."""

    def put(self, path: KeyPath, value: Any, origin: Origin) -> None:
        """Set the value at `path`; missing sections are created."""
        section = self.values
        for name in path[:-1]:
            if not isinstance(section.get(name), dict):
                section[name] = {}
            section = section[name]
        section[path[-1]] = value
        self.places[path] = origin


def read_document(path: Path, shown: str) -> Document | Fault:
    """Read `path`, called `shown` in messages; a Fault if no such file can be opened."""
    text = read_source(path)
    if isinstance(text, Fault):
        return (
            text if not text.opened else _broken_document(Problem(Origin(shown, text.line), "", text.message))
        )
    node = compose(text, shown)
    if isinstance(node, Problem):
        return _broken_document(node)
    if not isinstance(node, yaml.MappingNode):
        found = "empty" if node is None else "not a mapping"
        line = None if node is None else node.start_mark.line + 1
        return _broken_document(
            Problem(Origin(shown, line), "", f"{found}; a configuration is a mapping of sections")
        )
    return read_nodes(node, shown)


def read_nodes(node: yaml.MappingNode, shown: str) -> Document:
    """Return the values of `node`, from the file called `shown` in messages."""
    reader = _Reader(shown)
    reader.document.values = reader.mapping(node, ())
    return reader.document


def _broken_document(problem: Problem) -> Document:
    return Document(problems=[problem], is_complete=False)


class _Reader:
    """Convert nodes into values. Aliases are expanded before values are counted."""

    def __init__(self, shown: str) -> None:
        self.document = Document()
        self._shown = shown
        self._values = 0

    def mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._complain(key_node, path, "a key must be a word")
                continue
            below = (*path, key_node.value)
            if below in self.document.places:
                first = self.document.places[below].line
                self._complain(key_node, below, f"given twice, first on line {first}")
                continue
            self.document.places[below] = self._origin(key_node)
            try:
                result[key_node.value] = self._value(value_node, below)
            except ValueError as error:
                self._complain(key_node, below, str(error))
                self.document.is_complete = False
        return result

    def _value(self, node: yaml.Node, path: KeyPath) -> Any:
        self._values += 1
        if self._values > MAX_VALUES or len(path) > MAX_DEPTH:
            if self.document.is_complete:
                limits = f"{MAX_VALUES:,} values or {MAX_DEPTH} levels"
                self._complain(node, path[:1], f"an alias repeats itself: more than {limits}")
            self.document.is_complete = False
            return None
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._value(item, (*path, str(index))) for index, item in enumerate(node.value)]
        return value_of(node.tag, node.value)

    def _complain(self, node: yaml.Node, path: KeyPath, message: str) -> None:
        self.document.problems.append(Problem(self._origin(node), ".".join(path), shorten(message)))

    def _origin(self, node: yaml.Node) -> Origin:
        return Origin(self._shown, node.start_mark.line + 1)
