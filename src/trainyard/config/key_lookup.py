"""The valid keys of a configuration, from its models, and the nearest to a misspelt key."""

import difflib
from collections.abc import Iterable
from functools import cache
from typing import Any, get_args

from pydantic.fields import FieldInfo

from trainyard.config.schema import Config
from trainyard.config.section import Section
from trainyard.config.yaml_reader import KeyPath


def section_at(path: KeyPath) -> type[Section] | None:
    """Return the section at `path`; None if there is a single value or nothing."""
    below: Any = getattr(_field_at(path), "annotation", None) if path else Config
    return below if isinstance(below, type) and issubclass(below, Section) else None


def _field_at(path: KeyPath) -> FieldInfo | None:
    section = section_at(path[:-1])
    return section.model_fields.get(path[-1]) if section else None


@cache
def leaf_keys(path: KeyPath = ()) -> tuple[str, ...]:
    """Return the dotted key of every single value below `path`, in the order of the schema."""
    section = section_at(path)
    if section is None:
        return (".".join(path),)
    return tuple(key for name in section.model_fields for key in leaf_keys((*path, name)))


def takes_collection(path: KeyPath) -> bool:
    """Return whether the value at `path` is a list or a mapping."""
    kind = str(getattr(_field_at(path), "annotation", ""))
    return "tuple[" in kind or "dict[" in kind


def examples_of(path: KeyPath) -> list[str]:
    """Return the examples of the text at `path`; empty if it has none."""
    parts: list[Any] = [_field_at(path)]
    while parts:
        part = parts.pop()
        if isinstance(part, FieldInfo):
            if part.examples:
                return part.examples
            parts += [part.annotation, *part.metadata]
        parts += [*get_args(part), *getattr(part, "__metadata__", ())]
    return []


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
