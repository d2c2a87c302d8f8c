"""The valid keys of a configuration, and the nearest one to a misspelt key.

It reads only the schema's models, never values.
"""

import difflib
from collections.abc import Iterator
from functools import cache

from trainyard.config.schema import Config
from trainyard.config.section import Section
from trainyard.config.yaml.yaml_document import KeyPath

_LONGEST = 100
"""A longer text is not a misspelling, and the comparison takes quadratic time."""


def section_below(section: type[Section], name: str) -> type[Section] | None:
    """The section called `name` in `section`; None if that is a single value or does not exist."""
    field = section.model_fields.get(name)
    below = field.annotation if field else None
    return below if isinstance(below, type) and issubclass(below, Section) else None


def section_at(path: KeyPath) -> type[Section] | None:
    """The section at `path`; None if there is a single value or nothing."""
    section: type[Section] | None = Config
    for name in path:
        section = section_below(section, name) if section else None
    return section


@cache
def leaf_keys() -> tuple[str, ...]:
    """The dotted key of every single value, in the order of the schema."""
    return tuple(_leaves(Config, ""))


def _leaves(section: type[Section], prefix: str) -> Iterator[str]:
    for name in section.model_fields:
        below = section_below(section, name)
        if below:
            yield from _leaves(below, f"{prefix}{name}.")
        else:
            yield prefix + name


def unknown_key(path: KeyPath, *, dotted: bool = False) -> str:
    """Return the message for an unknown key. `dotted` writes the suggestion in full, as --set needs it."""
    name, around = path[-1], path[:-1]
    section = section_at(around)
    siblings = list(section.model_fields) if section else []
    if name == "<<":
        return "unknown key; merge keys are not read, use extends"
    if "." in name and {".".join(path), name} & set(leaf_keys()):
        return "unknown key; dotted keys are for --set, here each name is on its own line, indented"
    if elsewhere := next((key for key in leaf_keys() if key.endswith(f".{name}")), None):
        return f"unknown key; did you mean {elsewhere}?"
    if near := _nearest(name, siblings):
        return f"unknown key; did you mean {'.'.join((*around, near)) if dotted else near}?"
    if elsewhere := _nearest_elsewhere(path):
        return f"unknown key; did you mean {elsewhere}?"
    return f"unknown key; valid here: {', '.join(siblings)}" if siblings else "unknown key"


def _nearest(name: str, names: list[str]) -> str | None:
    if len(name) > _LONGEST:
        return None
    return next(iter(difflib.get_close_matches(name, names, n=1)), None)


def _nearest_elsewhere(path: KeyPath) -> str | None:
    """The key of another section that `path` may have meant: by its last name, else by its full path."""
    by_name = {key.rpartition(".")[2]: key for key in reversed(leaf_keys())}
    near = _nearest(path[-1], list(by_name))
    if near or section_at(path[:-1]):
        return by_name[near] if near else None
    return _nearest(".".join(path), list(leaf_keys()))
