"""Read YAML: the one reader of the house, for configurations and for files from outside.

Plain words follow the core schema of YAML 1.2: `5e-5` is a number; `yes`, `on`, `1:30` and dates are text
(https://yaml.org/spec/1.2.2/#1032-tag-resolution). Only texts, numbers, true, false, null, lists and mappings
are made, so no tag runs code. It opens no file.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import Any

import yaml

from trainyard.errors import ConfigError, DamagedFileError

MOST_BYTES = 4 << 20
MOST_VALUES = 100_000
MOST_DEPTH = 100
KeyPath = tuple[str, ...]
_PREFIX = "tag:yaml.org,2002:"
# A kind of value: the form of its plain words, and how their value is made.
_KINDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "null": (r"~|null|Null|NULL|", lambda _: None),
    "bool": (r"true|True|TRUE|false|False|FALSE", lambda text: text.lower() == "true"),
    "int": (
        r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+",
        lambda text: int(text, 0 if text[1:2] in ("o", "x") else 10),
    ),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        lambda text: float(text.replace(".", "", 1) if text[-1:].isalpha() else text),
    ),
    "str": (r"(?s:.*)", str),
}

_OCTAL = re.compile(r"0[0-7]+")


class YamlError(ValueError):
    """A fault of a text, with its line and dotted key where they are known."""

    def __init__(self, message: str, line: int | None = None, key: str = "") -> None:
        super().__init__(message)
        self.line, self.key = line, key

    def at(self, name: str) -> str:
        """Return the message with the name of its file and the line."""
        return f"{name}:{self.line}: {self}" if self.line else f"{name}: {self}"


# The parser in C is a hundred times as fast as that in Python, and gives the same lines.
class CoreLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Tags plain words by the core schema instead of YAML 1.1."""

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        """Return the tag of a node that carries none."""
        if kind is yaml.ScalarNode:
            return _PREFIX + (_plain_kind(value) if implicit[0] else "str")
        return _PREFIX + ("map" if kind is yaml.MappingNode else "seq")


def compose(content: bytes | str) -> list[Any]:
    """Return the root node of each document. Raises YamlError."""
    if len(content) > MOST_BYTES:
        raise YamlError(f"more than {MOST_BYTES >> 20} MB")
    depth = 0
    event: Any
    try:
        text = content if isinstance(content, str) else content.decode("utf-8-sig")
        # The parser's events are counted before nodes are built, which deep nesting would crash.
        for number, event in enumerate(yaml.parse(text, Loader=CoreLoader)):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MOST_DEPTH or number > 2 * MOST_VALUES:
                much = f"more than {MOST_DEPTH} levels or {MOST_VALUES:,} values"
                raise YamlError(much, event.start_mark.line + 1)
        return [node for node in yaml.compose_all(text, Loader=CoreLoader) if node is not None]
    except UnicodeDecodeError as error:
        byte, line = error.object[error.start], error.object.count(b"\n", 0, error.start) + 1
        raise YamlError(f"byte 0x{byte:02x} is not UTF-8; is this YAML?", line) from None
    except yaml.YAMLError as error:
        mark, reason = getattr(error, "problem_mark", None), str(getattr(error, "problem", None))
        if mark is None:  # a character that YAML does not allow
            raise YamlError(f"not valid YAML: {getattr(error, 'reason', None) or error}") from None
        source = text.split("\n", mark.line + 1)[: mark.line + 1][-1]
        if "\t" in source[: len(source) - len(source.lstrip())]:
            raise YamlError("a tab; write spaces, which YAML needs before words", mark.line + 1) from None
        if "mapping values" in reason:
            reason = "a second colon, or wrong indentation; text with a colon and a space needs quotes"
        raise YamlError(f"not valid YAML: {reason}", mark.line + 1) from None


def compose_one(content: bytes | str) -> Any:
    """Return the root node of the only document, null if there is none. Raises YamlError."""
    roots = compose(content)
    if len(roots) > 1:
        raise YamlError("a second document starts here; a file holds one", roots[1].start_mark.line + 1)
    return roots[0] if roots else yaml.compose("null", Loader=CoreLoader)


def merge_pairs(node: Any) -> list[Any]:
    """Return the pairs of a mapping and those that `<<` merges into it, which YAML 1.2 leaves out.

    Raises YamlError.
    """
    merged = [value for key, value in node.value if key.value == "<<"]
    # Replaced first, so that a mapping that merges itself ends.
    node.value = [pair for pair in node.value if pair[0].value != "<<"]
    for value in merged:
        for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
            if not isinstance(source, yaml.MappingNode):
                raise YamlError("<< merges mappings only", value.start_mark.line + 1)
            own = {str(key.value) for key, _ in node.value}
            node.value += [pair for pair in merge_pairs(source) if str(pair[0].value) not in own]
    return list(node.value)


def values_of(root: Any, lines: dict[KeyPath, int], *, old: bool = False) -> Any:
    """Return the values of a document, and note the line of each key in `lines`.

    With `old` a number that begins with 0 is octal, and `<<` merges mappings, as in YAML 1.1.

    Raises YamlError for a key that is given twice, an unknown tag, and aliases that repeat themselves.
    """
    numbers = count(1)

    def value(node: Any, path: KeyPath) -> Any:
        line = node.start_mark.line + 1
        try:
            if next(numbers) > MOST_VALUES or len(path) > MOST_DEPTH:
                raise YamlError(f"an alias repeats itself: over {MOST_VALUES:,} values, {MOST_DEPTH} levels")
            if isinstance(node, yaml.ScalarNode):
                is_octal = old and node.tag == f"{_PREFIX}int" and _OCTAL.fullmatch(node.value)
                return int(node.value, 8) if is_octal else value_of(node.tag, node.value)
            if node.tag not in (f"{_PREFIX}map", f"{_PREFIX}seq"):
                raise YamlError(f"the tag {node.tag[:80]} is not read here")
        except ValueError as error:
            raise YamlError(str(error), line, ".".join(path[:9])) from None
        if isinstance(node, yaml.SequenceNode):
            return [value(item, (*path, str(index))) for index, item in enumerate(node.value)]
        found = {}
        for key, inner in merge_pairs(node) if old else node.value:
            line, below = key.start_mark.line + 1, (*path, str(key.value))
            if not isinstance(key, yaml.ScalarNode):
                raise YamlError("a key must be a word", line, ".".join(path))
            if key.value in found:
                raise YamlError(f"given twice, first on line {lines[below]}", line, ".".join(below))
            lines[below] = line
            found[key.value] = value(inner, below)
        return found

    return value(root, ())


def value_of(tag: str, text: str) -> Any:
    """Return the value of a scalar under `tag`. Raises ValueError with the reason if there is none."""
    if tag.removeprefix(_PREFIX) not in _KINDS:
        raise ValueError(f"the tag {tag[:80]} is not read here")
    return _KINDS[tag.removeprefix(_PREFIX)][1](text)


def _plain_kind(text: str) -> str:
    return next(kind for kind, (form, _) in _KINDS.items() if re.fullmatch(form, text))


def plain_value(text: str) -> Any:
    """Return the value of `text` without quotes. Raises ValueError as `value_of` does."""
    return value_of(_PREFIX + _plain_kind(text), text)


def parse_documents(content: bytes | str, name: str) -> list[Any]:
    """Return the values of all documents that are not empty, for Kubernetes or Ray, which read YAML 1.1.

    Raises ConfigError with the line.
    """
    try:
        found = [values_of(root, {}, old=True) for root in compose(content)]
        return [value for value in found if value is not None]
    except YamlError as error:
        raise ConfigError(error.at(name)) from None


def parse_yaml(content: bytes | str, name: str) -> Any:
    """Return the value of the only document; None if there is none. Raises DamagedFileError with the line."""
    try:
        return values_of(compose_one(content), {})
    except YamlError as error:
        raise DamagedFileError(error.at(name)) from None


# The emitter in C takes a quarter of the time of that in Python. It writes emoji and
# some odd keys in another form, which reads back equal.
class _CoreDumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Quotes text that YAML 1.1 or the core schema would take for something else; repeats no anchors."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the name is the base class's
        return True

    def represent_str(self, data: str) -> yaml.ScalarNode:
        """Write lines as a block. Escape what does not print: YAML would read some of it as a line break."""
        is_printable = data.replace("\n", "").isprintable()
        style = "|" if "\n" in data else None
        node: yaml.ScalarNode = self.represent_scalar(
            _PREFIX + "str", data, style=style if is_printable else '"'
        )
        return node


_CoreDumper.add_representer(str, _CoreDumper.represent_str)
_NUMBER = re.compile(f"({_KINDS['int'][0]}|{_KINDS['float'][0]})$")
_CoreDumper.add_implicit_resolver(_PREFIX + "float", _NUMBER, list("-+.0123456789"))


def dump_values(values: dict[str, Any]) -> str:
    """Return `values` as YAML that reads back equal, under YAML 1.1 and under the core schema."""
    return dump_documents([values])


def dump_documents(documents: Iterable[Mapping[str, Any]]) -> str:
    """Return values as YAML documents in their order, each as `dump_values` writes one."""
    options: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "width": 2**16}
    text: str = yaml.dump_all(list(documents), Dumper=_CoreDumper, **options)
    return text
