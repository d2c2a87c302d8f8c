"""Apply single values from the command line, `--set training.max_steps=50`, over the files' values."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from trainyard.config.json_schema import fragment_of
from trainyard.config.keys import leaf_keys, section_at, unknown_key
from trainyard.config.problems import SET, Origin, Problem
from trainyard.config.yaml.scalars import CoreLoader, plain_value
from trainyard.config.yaml.syntax import compose
from trainyard.config.yaml.yaml_document import Document, KeyPath, read_nodes


def settings_text(values: Mapping[str, Any]) -> str:
    """Return the `--set` options that set these values by dotted key, quoted for a shell."""
    return " ".join(f"--set {shlex.quote(f'{key}={_written(value)}')}" for key, value in _leaves(values))


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _written(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def apply_overrides(document: Document, overrides: Sequence[str]) -> None:
    """Apply `overrides` to `document`; for the same key the last one wins."""
    for argument in overrides:
        problem = _apply(document, argument)
        if problem:
            document.problems.append(Problem(Origin(SET, argument=argument), *problem))


def _apply(document: Document, argument: str) -> tuple[str, str] | None:
    key, equals, text = argument.partition("=")
    key = key.strip()
    if not equals or not key:
        return key, "expected key=value, for example training.max_steps=50"
    path = tuple(key.split("."))
    if key not in leaf_keys():
        return key, _no_value(path)
    try:
        value = _collection(text.strip()) if _holds_collection(key, text) else _scalar(text.strip())
    except ValueError as error:
        return key, str(error)
    document.put(path, value, Origin(SET, argument=argument))
    return None


def _holds_collection(key: str, text: str) -> bool:
    """Return whether `text` is a list or mapping, such as `[python, train.py]`, and the key takes one."""
    fragment = fragment_of(key)
    kinds = {choice.get("type") for choice in fragment.get("anyOf", [fragment])}
    return bool(kinds & {"array", "object"}) and text.strip()[:1] in ("[", "{")


def _collection(text: str) -> Any:
    """Parse `text` as a YAML list or mapping, by the rules of files. Raises ValueError with the reason."""
    node = compose(f"value: {text}", SET)
    if isinstance(node, Problem) or not isinstance(node, yaml.MappingNode) or len(node.value) != 1:
        raise ValueError("not a YAML list or mapping; quote words with special characters")
    document = read_nodes(node, SET)
    if document.problems:
        raise ValueError(document.problems[0].message)
    return document.values["value"]


def _no_value(path: KeyPath) -> str:
    if section := section_at(path):
        keys = ", ".join(".".join((*path, name)) for name in section.model_fields)
        return f"a section; set one of its values: {keys}"
    if ".".join(path[:-1]) in leaf_keys():
        return f"unknown key; {'.'.join(path[:-1])} is a single value"
    return unknown_key(path, dotted=True)


def _scalar(text: str) -> Any:
    """Parse `text` as a YAML scalar. Unquoted text is one value: `a: b` is text."""
    if text[:1] not in ("'", '"'):
        return plain_value(text)
    try:
        node = yaml.compose(text, Loader=CoreLoader)
    except yaml.YAMLError:
        node = None
    if not isinstance(node, yaml.ScalarNode):
        raise ValueError("the quotes are not closed, or text follows them")
    return node.value
