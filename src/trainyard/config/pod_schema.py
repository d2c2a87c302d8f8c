"""Check a fragment of a pod template against the fields that Kubernetes has, without a cluster.

`pod_fields.json` has them, generated from an API server: a type's name -> its fields, each with its type.
`T[]` is a list, `T[name]` a list whose entries are merged by their field `name`, `T{}` a mapping with values
of T, `=A|B` one of these words, `string|number` either; `*` lists the fields that a type must have. Which
values Kubernetes accepts beyond that is found by a dry run.
"""

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from trainyard.config.problems import show_value

ROOT = "PodTemplateSpec"
_LIST = re.compile(r"(.*)\[(\w*)\]")
_WORDS = {"boolean": "true or false", "integer": "a whole number", "number": "a number", "string": "text"}
_TYPES = {"boolean": bool, "integer": int, "number": int | float, "string": str}
_INCOMPLETE = (ROOT, "PodSpec")
"""A fragment may leave out what these must have."""


@cache
def pod_fields() -> Mapping[str, Any]:
    """Return the table: a type's name -> field -> type."""
    found: Mapping[str, Any] = json.loads(files("trainyard.config").joinpath("pod_fields.json").read_text())
    return found


def split_list(kind: str) -> tuple[str, str] | None:
    """Return the type of a list's entries and the field that they are merged by; None if it is no list."""
    found = _LIST.fullmatch(kind)
    return (found[1], found[2]) if found else None


def find_schema_problems(value: Any, kind: str = ROOT, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path and the reason of everything that the type `kind` does not have.

    Entries of a list are named as in `spec.containers[main]`. A null removes a field when it is merged.
    """
    if value is None:
        return
    if listed := split_list(kind):
        yield from _find_in_list(value, *listed, path)
    elif kind.endswith("{}"):
        inner = kind.removesuffix("{}")
        for key, each in _mapping(value):
            yield from find_schema_problems(each, inner, f"{path}.{key}")
        if not isinstance(value, dict):
            yield path, f"expected a mapping, got {show_value(value)}"
    elif kind in pod_fields():
        yield from _find_in_object(value, kind, path)
    elif not _is_a(value, kind):
        words = " or ".join(_WORDS.get(each, each) for each in kind.split("|"))
        words = kind.removeprefix("=").replace("|", ", ") if kind.startswith("=") else words
        yield path, f"expected {words}, got {show_value(value)}"


def _find_in_list(value: Any, inner: str, key: str, path: str) -> Iterator[tuple[str, str]]:
    if not isinstance(value, list):
        yield path, f"expected a list, got {show_value(value)}"
        return
    names = [each.get(key) if isinstance(each, dict) and key else None for each in value]
    for number, (each, name) in enumerate(zip(value, names, strict=True)):
        place = f"{path}[{number if name is None else name}]"
        if each is None:
            yield place, "an entry may not be null"
        elif name is not None and name in names[:number]:
            yield place, f"there are two entries with this {key}"
        yield from find_schema_problems(each, inner, place)


def _find_in_object(value: Any, kind: str, path: str) -> Iterator[tuple[str, str]]:
    fields = pod_fields()[kind]
    known = [name for name in fields if name != "*"]
    if not isinstance(value, dict):
        yield path, f"expected a mapping, got {show_value(value)}"
    for key, each in _mapping(value):
        place = f"{path}.{key}".removeprefix(".")
        if key.startswith("$"):
            yield place, "not supported: entries are merged by their names, and null removes a field"
        elif key not in known:
            near = difflib.get_close_matches(key[:100], known, n=1)
            names = f"did you mean {near[0]}?" if near else f"valid here: {', '.join(known)}"
            yield place, f"unknown key; {names}"
        else:
            yield from find_schema_problems(each, fields[key], place)
    if isinstance(value, dict) and kind not in _INCOMPLETE:
        for name in fields.get("*", ()):
            if value.get(name) is None:
                yield f"{path}.{name}", "missing"


def _mapping(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((str(key), each) for key, each in value.items())


def _is_a(value: Any, kind: str) -> bool:
    if kind.startswith("="):
        return value in kind[1:].split("|")
    if isinstance(value, bool):
        return kind == "boolean"
    return any(isinstance(value, _TYPES[each]) for each in kind.split("|"))


def list_fields(value: Any, kind: str = ROOT, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path and the type of every field of a valid fragment, also of those that hold others."""
    if path:
        yield path.removeprefix("."), kind
    if isinstance(value, list) and (listed := split_list(kind)):
        inner, key = listed
        for number, each in enumerate(value):
            yield from list_fields(each, inner, f"{path}[{each[key] if key else number}]")
    elif isinstance(value, dict):
        fields = pod_fields().get(kind, {})
        for key, each in value.items():
            yield from list_fields(each, fields.get(key, kind.removesuffix("{}")), f"{path}.{key}")
