"""The fields of a run's JSON records, the wrong values to plant in them, and the classes of fields.

A run has some thousand fields, and most of them are of a few kinds: the objects of a manifest, the rows of
`metrics.jsonl`, a record as several manifests list it. The rule that makes a sweep of all of them possible:

- Fields are one class when they are in records of the same name (digits aside: `checkpoint-4/…` and
  `checkpoint-8/…`, `records-1/…` and `records-2/…`), have the same path (indices of lists and keys that are
  digests or steps aside) and hold values of the same JSON type; in a file of lines, when their lines are also
  of the same `event`.
- The first, a middle and the last field of a class represent it, each with every wrong value. Fields are
  ordered by record, a later manifest after an earlier one, and by their place in the file.

- A value that no JSON reader may take (`UNREADABLE`) damages the complete document before any field of it is
  read, so that for such a value all fields of the documents of one name are one class. A test of its own
  shows that the product's reader refuses it.

So every path of every record is covered, in its newest and in its oldest place. With
TRAINYARD_EVERY_SITUATION=1 every field is changed.
"""

import copy
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.integration.planted.objects import Thing
from tests.integration.planted.yard import Yard

UNREADABLE = ("NaN", "infinite", "thousands of digits", "deep")
"""Wrong values that damage a document, whatever field has them. In a line of a file, some can be read."""
Place = tuple[Any, ...]
"""The keys and indices that lead to a field."""
MISSING = object()
_STEP_OR_DIGEST = re.compile(r"(?:.*[-_/])?[0-9]+|(?:sha256:)?[0-9a-f]{32,}")


@dataclass(frozen=True)
class _Raw:
    """JSON text that is written as it is."""

    text: str


_DIGITS = _Raw("9" * 5000)
_DEEP = _Raw("[" * 100_000 + "]" * 100_000)
_LONG_TEXT = "x" * 100_000


@dataclass(frozen=True)
class Field:
    """One field of a record."""

    thing: Thing
    at: Place
    value: Any
    line: int | None = None
    """The index of its line, in a file of lines."""
    event: str = ""
    """The `event` of its line."""

    @property
    def path(self) -> tuple[str, ...]:
        """Its place in a form that all fields of its class share."""
        return tuple("*" if isinstance(key, int) else _without_step(key) for key in self.at)

    @property
    def document(self) -> tuple[Any, ...]:
        """Equal for fields in records of one name."""
        return self.thing.place, self.thing.role, re.sub(r"[0-9]+", "#", self.thing.name)

    @property
    def kind(self) -> tuple[Any, ...]:
        """Equal for fields of one class."""
        return (*self.document, self.event, self.path, type(self.value).__name__)


@dataclass(frozen=True)
class Change:
    """A field with a wrong value."""

    field: Field
    value_name: str
    make: Callable[[], str]
    """Returns the content of the changed record."""

    @property
    def thing(self) -> Thing:
        return self.field.thing

    @property
    def name(self) -> str:
        line = "" if self.field.line is None else f"line {self.field.line + 1} "
        return f"{line}{'.'.join(map(str, self.field.at))} {self.value_name}"


def wrong_values(value: object) -> Iterator[tuple[str, Any]]:
    """Wrong values to plant, by name; a number or text of the right type is not one of them."""
    yield "missing", MISSING
    yield "null", None
    yield "of another type", [] if isinstance(value, dict) else {} if not isinstance(value, str) else 7
    yield "true", True
    yield "NaN", float("nan")
    yield "infinite", float("-inf")
    yield "thousands of digits", _DIGITS
    yield "huge float", 1e308
    yield "deep", _DEEP
    yield "long text", _LONG_TEXT
    yield "a list", [{"x": [1]}]


def changes_of(yard: Yard, things: Iterable[Thing], *, every: bool) -> Iterator[Change]:
    """Each wrong value of the fields that represent their class; of every field with `every`."""
    fields = [field for thing in sorted(things, key=_age) for field in _fields_of(thing, yard)]
    contents = {thing: thing.path(yard).read_text() for thing in {field.thing for field in fields}}
    documents = [field for field in fields if field.line is None]
    for_values = _representatives(fields, lambda field: field.kind)
    for_documents = _representatives(documents, lambda field: field.document)
    for field in fields if every else [each for each in fields if id(each) in for_values | for_documents]:
        for name, new in _other_values(field.value):
            is_one = field.line is None and name in UNREADABLE
            if every or id(field) in (for_documents if is_one else for_values):
                yield Change(field, name, partial(_with_change, contents[field.thing], field, new))


def _representatives(fields: Iterable[Field], kind: Callable[[Field], Any]) -> set[int]:
    """The ids of the first, a middle one and the last field of each class."""
    classes: dict[Any, list[Field]] = {}
    for field in fields:
        classes.setdefault(kind(field), []).append(field)
    chosen = ((members[0], members[len(members) // 2], members[-1]) for members in classes.values())
    return {id(field) for members in chosen for field in members}


def _age(thing: Thing) -> tuple[str, list[int]]:
    """A sort key that puts later steps and versions last: numbers count as such, no number is the first."""
    return re.sub(r"[0-9]+", "#", thing.name), [int(number) for number in re.findall("[0-9]+", thing.name)]


def _without_step(key: str) -> str:
    return "#" if _STEP_OR_DIGEST.fullmatch(key) else key


def _fields_of(thing: Thing, yard: Yard) -> Iterator[Field]:
    """Every field of a JSON record, or of each of its lines."""
    content = thing.path(yard).read_text()
    if not thing.name.endswith(".jsonl"):
        value = json.loads(content)
        yield from (Field(thing, at, _value_at(value, at)) for at in places_in(value))
        return
    for number, line in enumerate(content.splitlines()):
        value = json.loads(line)
        event = str(value.get("event", ""))
        yield from (Field(thing, at, _value_at(value, at), number, event) for at in places_in(value))


def places_in(value: Any, at: Place = ()) -> Iterator[Place]:
    """The place of each field in a JSON value."""
    if at:
        yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from places_in(each, (*at, key))


def _other_values(value: object) -> Iterator[tuple[str, Any]]:
    """The wrong values that differ from the present one: some fields are null, or true."""
    for name, new in wrong_values(value):
        if new is MISSING or isinstance(new, _Raw) or json.dumps(new) != json.dumps(value):
            yield name, new


def _with_change(content: str, field: Field, new: Any) -> str:
    if field.line is None:
        return with_field(json.loads(content), field.at, new)
    lines = content.splitlines()
    lines[field.line] = with_field(json.loads(lines[field.line]), field.at, new)
    return "\n".join(lines) + "\n"


def with_field(value: Any, at: Place, new: Any) -> str:
    """The JSON of `value` with `new` at `at`."""
    changed = copy.deepcopy(value)
    inner = _value_at(changed, at[:-1])
    if new is MISSING:
        del inner[at[-1]]
        return json.dumps(changed)
    mark = "@the new value@"
    inner[at[-1]] = mark if isinstance(new, _Raw) else new
    text = json.dumps(changed)
    return text.replace(json.dumps(mark), new.text) if isinstance(new, _Raw) else text


def _value_at(value: Any, at: Place) -> Any:
    for key in at:
        value = value[key]
    return value
