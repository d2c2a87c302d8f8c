"""Convert a plain YAML word to a value by the core schema of YAML 1.2 instead of PyYAML's YAML 1.1.

`5e-5` is a number and `012` is twelve; `yes`, `on`, `1:30` and `2026-01-01` are text.
https://yaml.org/spec/1.2.2/#1032-tag-resolution
"""

import math
import re
from typing import Any

import yaml

_PREFIX = "tag:yaml.org,2002:"
_PLAIN = {
    "null": re.compile(r"~|null|Null|NULL|"),
    "bool": re.compile(r"true|True|TRUE|false|False|FALSE"),
    "int": re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"),
    "float": re.compile(
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
    ),
}
MAX_DIGITS = 4000
"""Python converts at most 4,300 decimal digits to an integer."""

Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The parser in C if PyYAML has it: a hundred times as fast, and with the same marks."""


class CoreLoader(Loader):  # type: ignore[misc]
    """A safe loader that tags plain scalars by the core schema."""

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        """The tag of a node that carries none."""
        if kind is yaml.ScalarNode:
            return _PREFIX + (plain_kind(value) if implicit[0] else "str")
        return _PREFIX + ("map" if kind is yaml.MappingNode else "seq")


def plain_kind(text: str) -> str:
    """The type of `text` without quotes: `null`, `bool`, `int`, `float` or `str`."""
    return next((kind for kind, pattern in _PLAIN.items() if pattern.fullmatch(text)), "str")


def value_of(tag: str, text: str) -> Any:
    """The value of a scalar under `tag`. Raises ValueError with the reason if there is none."""
    kind = tag.removeprefix(_PREFIX)
    if kind == "str":
        return text
    if kind not in _PLAIN:
        raise ValueError(f"the tag {tag.replace(_PREFIX, '!!')} is not read here")
    if kind == "float" and _PLAIN["int"].fullmatch(text):
        return float(text)
    if not _PLAIN[kind].fullmatch(text):
        raise ValueError(f"not a value of the tag !!{kind}")
    if len(text) > MAX_DIGITS:
        raise ValueError(f"a number of {len(text):,} characters")
    return _convert(kind, text)


def plain_value(text: str) -> Any:
    """The value of `text` without quotes. Raises ValueError as `value_of` does."""
    return value_of(_PREFIX + plain_kind(text), text)


def _convert(kind: str, text: str) -> Any:
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() == "true"
    if kind == "int":
        return int(text, 0) if text.startswith(("0o", "0x")) else int(text)
    if text[-1].isalpha():
        return math.nan if text.lower() == ".nan" else math.copysign(math.inf, -1 if text[0] == "-" else 1)
    return float(text)


class _CoreDumper(yaml.SafeDumper):
    """Quotes text that YAML 1.1 or the core schema would take for something else; repeats no anchors."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the name is the base class's
        return True

    def represent_str(self, data: str) -> yaml.ScalarNode:
        """Escape characters that do not print: YAML would read some of them as a line break."""
        return self.represent_scalar(_PREFIX + "str", data, style=None if data.isprintable() else '"')


_CoreDumper.add_representer(str, _CoreDumper.represent_str)
_NUMBER = re.compile(f"({_PLAIN['int'].pattern}|{_PLAIN['float'].pattern})$")
_CoreDumper.add_implicit_resolver(_PREFIX + "float", _NUMBER, list("-+.0123456789"))


def dump_values(values: dict[str, Any]) -> str:
    """`values` as YAML that reads back equal, under YAML 1.1 and under the core schema."""
    text: str = yaml.dump(values, Dumper=_CoreDumper, sort_keys=False, allow_unicode=True, width=2**16)
    return text
