"""Lists of pods and nodes in the protobuf encoding of the API server, as the objects that JSON would give.

An API server encodes protobuf with a fraction of the work that JSON takes, which is most of the time of a
large list. Only the fields that are needed are decoded; the others are skipped by their length, so unknown
fields of a newer server do no harm.

    b"k8s\\0" + Unknown{raw} ──> PodList{metadata, items} ──FIELDS──> {"metadata": …, "items": […]}

The numbers are those of `generated.proto` in k8s.io/api/core/v1 and k8s.io/apimachinery; they never change.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Any

MAGIC = b"k8s\x00"
_RAW = 2
_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5


class NotDecodableError(ValueError):
    """The bytes are not a list in protobuf."""


class Kind(Enum):
    TEXT = auto()
    NUMBER = auto()
    FLAG = auto()
    MOMENT = auto()
    """Time{seconds}, which JSON writes as text."""
    MESSAGE = auto()
    TEXTS = auto()
    """A map of text to text."""
    QUANTITIES = auto()
    """A map of text to Quantity{text}."""


_TEXT = Kind.TEXT  # looked up for every field of every pod


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message that is decoded."""

    name: str
    """The name in JSON; empty where JSON has the message's fields directly."""
    kind: Kind = Kind.TEXT
    fields: "Mapping[int, Field]" = field(default_factory=dict)
    repeated: bool = False


def message(name: str, fields: Mapping[int, Field], *, repeated: bool = False) -> Field:
    return Field(name, Kind.MESSAGE, fields, repeated)


_TYPED = {1: Field("type"), 2: Field("status"), 5: Field("reason"), 6: Field("message")}
_OWNER = {1: Field("kind"), 3: Field("name"), 5: Field("apiVersion")}
_META = {
    1: Field("name"),
    3: Field("namespace"),
    8: Field("creationTimestamp", Kind.MOMENT),
    9: Field("deletionTimestamp", Kind.MOMENT),
    11: Field("labels", Kind.TEXTS),
    12: Field("annotations", Kind.TEXTS),
    13: message("ownerReferences", _OWNER, repeated=True),
}
_AMOUNTS = {1: Field("limits", Kind.QUANTITIES), 2: Field("requests", Kind.QUANTITIES)}
_CONTAINER = {
    1: Field("name"),
    2: Field("image"),
    8: message("resources", _AMOUNTS),
    24: Field("restartPolicy"),
}
_VOLUME = {1: Field("name"), 2: message("", {1: message("hostPath", {1: Field("path")})})}
_STATE = {1: message("waiting", {1: Field("reason"), 2: Field("message")})}
_CONTAINER_STATUS = {1: Field("name"), 2: message("state", _STATE)}
_POD_SPEC = {
    1: message("volumes", _VOLUME, repeated=True),
    2: message("containers", _CONTAINER, repeated=True),
    10: Field("nodeName"),
    20: message("initContainers", _CONTAINER, repeated=True),
    25: Field("priority", Kind.NUMBER),
    32: Field("overhead", Kind.QUANTITIES),
    40: message("resources", _AMOUNTS),
}
_POD_STATUS = {
    1: Field("phase"),
    2: message("conditions", _TYPED, repeated=True),
    8: message("containerStatuses", _CONTAINER_STATUS, repeated=True),
    10: message("initContainerStatuses", _CONTAINER_STATUS, repeated=True),
}
_TAINT = {1: Field("key"), 2: Field("value"), 3: Field("effect")}
_NODE_SPEC = {
    3: Field("providerID"),
    4: Field("unschedulable", Kind.FLAG),
    5: message("taints", _TAINT, repeated=True),
}
_NODE_STATUS = {
    1: Field("capacity", Kind.QUANTITIES),
    2: Field("allocatable", Kind.QUANTITIES),
    4: message("conditions", _TYPED, repeated=True),
    7: message("nodeInfo", {5: Field("osImage"), 7: Field("kubeletVersion")}),
}
_LIST_META = {2: Field("resourceVersion"), 3: Field("continue")}


def _list_of(spec: Mapping[int, Field], status: Mapping[int, Field]) -> Mapping[int, Field]:
    item = {1: message("metadata", _META), 2: message("spec", spec), 3: message("status", status)}
    return {1: message("metadata", _LIST_META), 2: message("items", item, repeated=True)}


LISTS = {
    "/api/v1/pods": _list_of(_POD_SPEC, _POD_STATUS),
    "/api/v1/nodes": _list_of(_NODE_SPEC, _NODE_STATUS),
}
"""Path of a list -> its fields."""


def decode_list(body: bytes, fields: Mapping[int, Field]) -> dict[str, Any]:
    """Return the list in an answer of the API server. Raises NotDecodableError."""
    if body[: len(MAGIC)] != MAGIC:
        raise NotDecodableError("no protobuf of Kubernetes")
    try:
        start, end = _raw(body)
        return _message(body[start:end], fields)
    except (IndexError, UnicodeDecodeError, OverflowError, OSError):
        raise NotDecodableError("cut off, or of another form") from None


def decode_refusal(body: bytes) -> str:
    """Return the message of the Status with which an API server refuses a list; empty if there is none."""
    try:
        start, end = _raw(body)
        return str(_message(body[start:end], {3: Field("message")}).get("message", ""))
    except (IndexError, UnicodeDecodeError, OverflowError, NotDecodableError):
        return ""


def continue_token(body: bytes) -> str:
    """The token of the next page, from the metadata, which come first; empty at the end of the list."""
    try:
        start, end = _raw(body)
        number, _, at, size = _next(body, start)
        if number != 1 or at + size > end:
            return ""
        return str(_message(body[at : at + size], _LIST_META).get("continue", ""))
    except (IndexError, UnicodeDecodeError, NotDecodableError):
        return ""


def _raw(body: bytes) -> tuple[int, int]:
    """Return the beginning and the end of the message itself in its envelope."""
    at = len(MAGIC)
    while at < len(body):
        number, wire, at, size = _next(body, at)
        if number == _RAW and wire == _BYTES:
            if at + size > len(body):
                raise NotDecodableError("cut off")
            return at, at + size
        at += size
    raise NotDecodableError("an envelope with nothing in it")


def _next(body: bytes, at: int) -> tuple[int, int, int, int]:
    """Number, wire type, beginning and length in bytes of the content of the field at `at`."""
    tag, at = _varint(body, at)
    wire = tag & 7
    if wire == _BYTES:
        size, at = _varint(body, at)
        return tag >> 3, wire, at, size
    if wire == _VARINT:
        return tag >> 3, wire, at, _varint(body, at)[1] - at
    if wire in (_EIGHT, _FOUR):
        return tag >> 3, wire, at, 8 if wire == _EIGHT else 4
    raise NotDecodableError(f"a field of the form {wire}")


def _varint(body: bytes, at: int) -> tuple[int, int]:
    value = body[at]
    if value < 0x80:
        return value, at + 1
    value, shift = value & 0x7F, 7
    while True:
        at += 1
        byte = body[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
        shift += 7
        if shift > 63:
            raise NotDecodableError("a number that does not end")


def _message(body: bytes, fields: Mapping[int, Field]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    at, end = 0, len(body)
    while at < end:
        tag = body[at]
        if tag < 0x80 and tag & 7 == _BYTES and body[at + 1] < 0x80:  # as most fields are
            number, size, at = tag >> 3, body[at + 1], at + 2
        else:
            number, _, at, size = _next(body, at)
        field = fields.get(number)
        if field is not None:
            if field.kind is _TEXT:
                found[field.name] = body[at : at + size].decode()
            else:
                _take(found, field, body[at : at + size])
        at += size
    if at != end:
        raise NotDecodableError("a field that goes over the end of its message")
    return found


def _take(found: dict[str, Any], field: Field, body: bytes) -> None:
    kind = field.kind
    if kind is Kind.MESSAGE:
        inner = _message(body, field.fields)
        if field.repeated:
            found.setdefault(field.name, []).append(inner)
        elif field.name:
            found[field.name] = inner
        else:
            found.update(inner)
    elif kind is Kind.TEXTS:
        entry = _message(body, _TEXT_ENTRY)
        found.setdefault(field.name, {})[entry.get("key", "")] = entry.get("value", "")
    elif kind is Kind.QUANTITIES:
        entry = _message(body, _QUANTITY_ENTRY)
        found.setdefault(field.name, {})[entry.get("key", "")] = entry.get("value", {}).get("string", "")
    elif kind is Kind.MOMENT:
        seconds = _message(body, _TIME).get("seconds", 0)
        found[field.name] = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    else:
        value = _varint(body, 0)[0]
        signed = value - (1 << 64) if value >> 63 else value
        found[field.name] = bool(value) if kind is Kind.FLAG else signed


_TEXT_ENTRY = {1: Field("key"), 2: Field("value")}
_QUANTITY_ENTRY = {1: Field("key"), 2: message("value", {1: Field("string")})}
_TIME = {1: Field("seconds", Kind.NUMBER)}
