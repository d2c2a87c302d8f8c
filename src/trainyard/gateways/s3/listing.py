"""A page of a listing (ListObjectsV2): how it is asked for, and what its XML says, in boto3's words."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, unquote_plus
from xml.etree import ElementTree

_NAMES = {
    "ContinuationToken": "continuation-token",
    "Delimiter": "delimiter",
    "Prefix": "prefix",
}
_FIXED = {"encoding-type": "url", "list-type": "2"}
_AS_TEXT = ("Key", "Prefix")
"""What comes quoted, where the store says so."""


def listing_query(arguments: Mapping[str, Any]) -> str | None:
    """The query, quoted and in the order of its names, as it is signed; None for what is not known here."""
    if not arguments.keys() <= _NAMES.keys():
        return None
    fields = _FIXED | {_NAMES[name]: str(value) for name, value in arguments.items()}
    return "&".join(f"{name}={quote(fields[name], safe='-._~')}" for name in sorted(fields))


def listing_of(content: bytes) -> dict[str, Any]:
    """What a page lists. Raises ValueError for what is no such page."""
    try:
        parser = ElementTree.XMLParser(encoding="utf-8")  # noqa: S314 - expat limits entities
        root = ElementTree.fromstring(content, parser)  # noqa: S314
    except ElementTree.ParseError as error:
        raise ValueError(f"no listing: {error}") from None
    if _name(root) != "ListBucketResult":
        raise ValueError(f"no listing: <{_name(root)}>")
    fields = {_name(child): child.text or "" for child in root}
    is_quoted = fields.get("EncodingType") == "url"
    found: dict[str, Any] = {"IsTruncated": _truth(fields["IsTruncated"])} if "IsTruncated" in fields else {}
    if "NextContinuationToken" in fields:
        found["NextContinuationToken"] = fields["NextContinuationToken"]
    for kind in ("Contents", "CommonPrefixes"):
        entries = [_entry(child, is_quoted=is_quoted) for child in root if _name(child) == kind]
        found |= {kind: entries} if entries else {}
    return found


def _entry(element: ElementTree.Element, *, is_quoted: bool) -> dict[str, Any]:
    entry: dict[str, Any] = {_name(child): child.text or "" for child in element}
    for name in _AS_TEXT:
        if is_quoted and name in entry:
            entry[name] = unquote_plus(entry[name], errors="strict")
    if "Size" in entry:
        entry["Size"] = int(entry["Size"])
    if "LastModified" in entry:
        entry["LastModified"] = _time(entry["LastModified"])
    return entry


def _time(text: str) -> datetime:
    """In UTC, where the store names no zone."""
    try:
        found = datetime.fromisoformat(text)
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except OverflowError:
        raise ValueError(f"{text!r} is no time") from None


def _truth(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(f"{text!r} is neither true nor false")
    return text == "true"


def _name(element: ElementTree.Element) -> str:
    """Without the namespace, which stores do not agree on."""
    return element.tag.rpartition("}")[2]
