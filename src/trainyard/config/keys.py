"""The valid keys of a configuration and their JSON Schema, from its models; the nearest to a misspelt key."""

import difflib
from collections.abc import Iterable
from functools import cache
from typing import Any

from trainyard.config.schema import Config
from trainyard.config.section import Section
from trainyard.config.yaml_reader import KeyPath


def section_at(path: KeyPath) -> type[Section] | None:
    """Return the section at `path`; None if there is a single value or nothing."""
    section: type[Section] | None = Config
    for name in path:
        field = section.model_fields.get(name) if section else None
        below = field.annotation if field else None
        section = below if isinstance(below, type) and issubclass(below, Section) else None
    return section


@cache
def leaf_keys(path: KeyPath = ()) -> tuple[str, ...]:
    """Return the dotted key of every single value below `path`, in the order of the schema."""
    section = section_at(path)
    if section is None:
        return (".".join(path),)
    return tuple(key for name in section.model_fields for key in leaf_keys((*path, name)))


@cache
def _whole_schema() -> dict[str, Any]:
    return Config.model_json_schema()


def fragment_of(key: str) -> dict[str, Any]:
    """The schema of the value or section under a dotted key; empty if there is none."""
    root = _whole_schema()
    fragment = root
    for name in key.split("."):
        if "properties" in fragment:
            fragment = fragment["properties"].get(name, {})
        else:  # an item of a list, or a value of a mapping
            choices = fragment.get("anyOf", [fragment])
            below = (choice.get("items") or choice.get("additionalProperties") for choice in choices)
            fragment = next((each for each in below if isinstance(each, dict)), {})
        if "$ref" in fragment:
            described = {"description": fragment["description"]} if "description" in fragment else {}
            fragment = {**root["$defs"][fragment["$ref"].rpartition("/")[2]], **described}
    return fragment


def types_of(key: str) -> set[str]:
    """Return the types of JSON that the value under a dotted key can have."""
    fragment = fragment_of(key)
    return {str(choice.get("type")) for choice in fragment.get("anyOf", [fragment])}


def unknown_key(path: KeyPath, *, dotted: bool = False) -> str:
    """Return the message for an unknown key. `dotted` writes the suggestion in full, as --set needs it."""
    name, around, leaves = path[-1], path[:-1], leaf_keys()
    section = section_at(around)
    siblings = list(section.model_fields) if section else []
    if name == "<<":
        return "unknown key; merge keys are not read, use extends"
    if "." in name and {".".join(path), name} & set(leaves):
        return "unknown key; dotted keys are for --set, here each name is on its own line, indented"
    by_name = {key.rpartition(".")[2]: key for key in reversed(leaves)}
    if name not in by_name and (near := _nearest(name, siblings)):
        near = ".".join((*around, near)) if dotted else near
    else:
        near = by_name.get(_nearest(name, by_name), "")
    if near:
        return f"unknown key; did you mean {near}?"
    return f"unknown key; valid here: {', '.join(siblings)}" if siblings else "unknown key"


def _nearest(name: str, names: Iterable[str]) -> str:
    # A text longer than any key is not a misspelling, and the comparison takes quadratic time.
    return next(iter(difflib.get_close_matches(name[:100], names, n=1)), "")
