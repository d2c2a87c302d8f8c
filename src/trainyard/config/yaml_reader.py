"""Read YAML: the one reader of the house, for configurations and for files from outside.

    text --events: depth, number--> nodes --aliases counted in full--> values, and the line of each key

Plain words follow the core schema of YAML 1.2: `5e-5` is a number; `yes`, `on`, `1:30` and dates are text
(https://yaml.org/spec/1.2.2/#1032-tag-resolution). Only texts, numbers, true, false, null, lists and mappings
are made, so no tag runs code. It opens no file.
"""

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from trainyard.errors import DamagedFileError

MOST_BYTES = 4 << 20
MOST_VALUES = 100_000
MOST_DEPTH = 100
# Python converts at most 4,300 decimal digits to an integer.
MOST_DIGITS = 4000
KeyPath = tuple[str, ...]
_PREFIX = "tag:yaml.org,2002:"
_PLAIN = {
    "null": re.compile(r"~|null|Null|NULL|"),
    "bool": re.compile(r"true|True|TRUE|false|False|FALSE"),
    "int": re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"),
    "float": re.compile(
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
    ),
}
_KEY, _SECTION = re.compile(r"\s*([\w.-]+)\s*:"), re.compile(r"([\w.-]+)\s*:")
_TAB = "a tab; write spaces, which YAML needs before words"


class YamlError(Exception):
    """A fault of a text, with its line and dotted key where they are known."""

    def __init__(self, message: str, line: int | None = None, key: str = "") -> None:
        super().__init__(message)
        self.line, self.key = line, key


# The parser in C is a hundred times as fast as that in Python, and gives the same lines.
class CoreLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Tags plain words by the core schema instead of YAML 1.1."""

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        """Return the tag of a node that carries none."""
        if kind is yaml.ScalarNode:
            return _PREFIX + (_plain_kind(value) if implicit[0] else "str")
        return _PREFIX + ("map" if kind is yaml.MappingNode else "seq")


def compose(text: str) -> list[Any]:
    """Return the root node of each document. Raises YamlError."""
    if len(text) > MOST_BYTES:
        raise YamlError(f"more than {MOST_BYTES:,} bytes")
    depth = 0
    event: Any
    try:
        # The parser's events are counted before nodes are built, which deep nesting would crash.
        for count, event in enumerate(yaml.parse(text, Loader=CoreLoader)):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MOST_DEPTH or count > 2 * MOST_VALUES:
                much = f"more than {MOST_DEPTH} levels or {MOST_VALUES:,} values"
                raise YamlError(much, event.start_mark.line + 1)
        return [node for node in yaml.compose_all(text, Loader=CoreLoader) if node is not None]
    except yaml.YAMLError as error:
        raise _explain(error, text) from None


def compose_one(text: str) -> Any:
    """Return the root node of the only document, null if there is none. Raises YamlError."""
    roots = compose(text)
    if len(roots) > 1:
        raise YamlError("a second document starts here; a file holds one", roots[1].start_mark.line + 1)
    return roots[0] if roots else yaml.compose("null", Loader=CoreLoader)


def _explain(error: yaml.YAMLError, text: str) -> YamlError:
    mark, reason = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None:  # a character that YAML does not allow
        return YamlError(f"not valid YAML: {getattr(error, 'reason', None) or error}")
    *above, source = text.split("\n", mark.line + 1)[: mark.line + 1]
    if "\t" in source[: len(source) - len(source.lstrip())]:
        section = next((found[1] for each in reversed(above) if (found := _SECTION.match(each))), "")
        key = _KEY.match(source)
        return YamlError(_TAB, mark.line + 1, f"{section}.{key[1]}" if section and key else section)
    if "mapping values" in str(reason):
        reason = "a second colon, or wrong indentation; text with a colon and a space needs quotes"
    return YamlError(f"not valid YAML: {reason}", mark.line + 1)


@dataclass
class Values:
    """Converts the nodes of a document, and collects the line of each key and what is wrong."""

    lines: dict[KeyPath, int] = field(default_factory=dict)
    problems: list[YamlError] = field(default_factory=list)
    _count: int = 0

    def of(self, node: Any, path: KeyPath = ()) -> Any:
        """Return the value of `node` at `path`. Raises YamlError if aliases make it endless."""
        self._count += 1
        line = node.start_mark.line + 1
        if self._count > MOST_VALUES or len(path) > MOST_DEPTH:
            limits = f"{MOST_VALUES:,} values or {MOST_DEPTH} levels"
            raise YamlError(f"an alias repeats itself: more than {limits}", line, ".".join(path[:1]))
        if not isinstance(node, yaml.ScalarNode) and node.tag not in (f"{_PREFIX}map", f"{_PREFIX}seq"):
            self.problems.append(YamlError(f"the tag {node.tag[:80]} is not read here", line, ".".join(path)))
        if isinstance(node, yaml.SequenceNode):
            return [self.of(item, (*path, str(index))) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode):
            new = [(key.value, value) for key, value in node.value if self._is_new(key, path)]
            return {key: self.of(value, (*path, key)) for key, value in new}
        try:
            return value_of(node.tag, node.value)
        except ValueError as error:
            self.problems.append(YamlError(str(error), line, ".".join(path)))
            return None

    def _is_new(self, key: Any, path: KeyPath) -> bool:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            self.problems.append(YamlError("a key must be a word", line, ".".join(path)))
        elif first := self.lines.get((*path, key.value)):
            given = f"given twice, first on line {first}"
            self.problems.append(YamlError(given, line, ".".join((*path, key.value))))
        else:
            self.lines[*path, key.value] = line
            return True
        return False


def value_of(tag: str, text: str) -> Any:
    """Return the value of a scalar under `tag`. Raises ValueError with the reason if there is none."""
    kind = tag.removeprefix(_PREFIX)
    if kind == "str":
        return text
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() == "true"
    if kind == "int" and len(text) > MOST_DIGITS:
        raise ValueError(f"a number of {len(text):,} characters")
    if kind == "int":
        return int(text, 0) if text.startswith(("0o", "0x")) else int(text)
    if kind == "float":
        return float(text.replace(".", "", 1) if text[-1:].isalpha() else text)
    raise ValueError(f"the tag {tag[:80]} is not read here")


def _plain_kind(text: str) -> str:
    return next((kind for kind, pattern in _PLAIN.items() if pattern.fullmatch(text)), "str")


def plain_value(text: str) -> Any:
    """Return the value of `text` without quotes. Raises ValueError as `value_of` does."""
    return value_of(_PREFIX + _plain_kind(text), text)


def decode(content: bytes | str) -> str:
    """Return a file's text. Raises YamlError with the line of the first byte that is not UTF-8."""
    if isinstance(content, str):
        return content
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise YamlError(f"byte 0x{content[error.start]:02x} is not UTF-8; is this YAML?", line) from None


def parse_yaml(content: bytes | str, name: str) -> Any:
    """Return the value of the only document; None if there is none. Raises DamagedFileError with the line."""
    values = Values()
    try:
        found = values.of(compose_one(decode(content)), ())
        if values.problems:
            raise values.problems[0]
    except YamlError as error:
        place = f"{name}:{error.line}" if error.line else name
        raise DamagedFileError(f"{place}: {error}") from None
    return found


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
    """Return `values` as YAML that reads back equal, under YAML 1.1 and under the core schema."""
    text: str = yaml.dump(values, Dumper=_CoreDumper, sort_keys=False, allow_unicode=True, width=2**16)
    return text
