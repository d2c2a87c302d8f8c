"""Parse YAML text into nodes, or say why that fails: syntax, tabs, depth, number of values.

The parser's events are checked before nodes are built, so that deep nesting is refused cheaply.
`yaml_document` converts the nodes into values.
"""

import re
from collections.abc import Iterator
from typing import Any

import yaml

from trainyard.config.problems import Origin, Problem, shorten
from trainyard.config.yaml.scalars import CoreLoader

MAX_EVENTS = 200_000
MAX_DEPTH = 64
_MAX_KEY = 1024
_KEY = re.compile(r"\s*([\w.-]+)\s*:")
_SECTION = re.compile(r"([\w.-]+)\s*:\s*(\{\s*)?(#.*)?$")
_Found = tuple[int | None, str]
"""Line, if known, and message."""
_TAB = "a tab; write spaces, which YAML needs between and before words"


def compose(text: str, shown: str) -> yaml.Node | Problem | None:
    """Return the root node of `text`, the content of the file called `shown`; None if it is empty."""
    try:
        found = _problem_in_events(text)
        if found is None:
            node: yaml.Node | None = yaml.compose(text, Loader=CoreLoader)
            return node
    except yaml.MarkedYAMLError as error:
        found = _explain(error, text)
    except yaml.YAMLError as error:
        found = (None, f"not valid YAML: {getattr(error, 'reason', None) or error}")
    line, message = found
    key = _key_on(text, line) if line and message == _TAB else ""
    return Problem(Origin(shown, line), key, message)


def _problem_in_events(text: str) -> _Found | None:
    depth, documents = 0, 0
    scalars: list[Any] = []
    events: Iterator[Any] = yaml.parse(text, Loader=CoreLoader)
    for count, event in enumerate(events):
        if isinstance(event, yaml.ScalarEvent):
            scalars.append(event)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        documents += isinstance(event, yaml.DocumentStartEvent)
        line = event.start_mark.line + 1
        if depth > MAX_DEPTH:
            return line, f"nested more than {MAX_DEPTH} levels deep"
        if count > MAX_EVENTS:
            return line, f"more than {MAX_EVENTS // 2:,} values; a configuration has some hundreds"
        if documents > 1:
            return line, "a second document starts here; a file holds one"
    return next(((line, _TAB) for line in _lines_with_stray_tabs(text, scalars)), None)


def _lines_with_stray_tabs(text: str, scalars: list[Any]) -> Iterator[int]:
    """Yield the lines that have a tab before a word, outside of scalars and comments."""
    if "\t" not in text:
        return
    end = 0
    for scalar in scalars:
        *finished, last = text[end : scalar.start_mark.index].split("\n")
        line = text.count("\n", 0, end) + 1
        for offset, part in enumerate([*(re.sub(r"\s*(#.*)?$", "", whole) for whole in finished), last]):
            if "\t" in part:
                yield line + offset
        end = scalar.end_mark.index


def _explain(error: yaml.MarkedYAMLError, text: str) -> _Found:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else 1
    lines = text.split("\n", line)
    source = lines[line - 1] if len(lines) >= line else ""
    if "\t" in source[: len(source) - len(source.lstrip())]:
        return line, _TAB
    if "mapping values" in str(error.problem):
        long = mark is not None and mark.column > _MAX_KEY
        what = (
            f"a key of more than {_MAX_KEY:,} characters" if long else "a second colon, or wrong indentation"
        )
        return line, f"not valid YAML: {what}; text with a colon and a space needs quotes"
    return line, shorten(f"not valid YAML: {error.problem}")


def _key_on(text: str, line: int) -> str:
    """Guess the dotted key on `line` from the text, because the parser stopped there."""
    lines = text.split("\n", line)[:line]
    key = _KEY.match(lines[-1])
    section = next((match[1] for above in reversed(lines[:-1]) if (match := _SECTION.match(above))), None)
    return ".".join(part for part in (section, key[1] if key else None) if part)
