"""The only code that touches the outside world: S3, local stores, Slack, GitHub, git, other processes.

It is transport and imports no room. `artifacts.store.store_address` opens a store by its URL.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainyard.errors import VerificationError

MOST_OBJECT_BYTES = 256 << 20
"""The most bytes of an object that is read at once: the manifest of a million objects is smaller."""
SHOWN_CHARACTERS = 80
"""The most characters of an address that a message repeats."""


@dataclass(frozen=True)
class GatewayObject:
    """An object as its store describes it: `artifacts.store.object_store.StoredObject`."""

    key: str
    size: int
    etag: str = ""
    checksum: Mapping[str, Any] = field(default_factory=dict)
    modified: float = field(default=0.0, compare=False)
    identity: str = field(default="", compare=False)
    has_requested_encryption: bool = field(default=True, compare=False)
    archived: str = field(default="", compare=False)


def join_chunks(key: str, chunks: Iterable[bytes]) -> bytes:
    """Return the bytes of a small object. Raises VerificationError when it is too large for a record."""
    pieces, size = list[bytes](), 0
    for chunk in chunks:
        pieces.append(chunk)
        size += len(chunk)
        require_small(key, size)
    return b"".join(pieces)


def require_small(key: str, size: int) -> None:
    """Raise VerificationError when an object of `size` bytes is too large for a record."""
    if size > MOST_OBJECT_BYTES:
        raise VerificationError(
            f"{key}: damaged: more than {MOST_OBJECT_BYTES:,} bytes, where a record belongs"
        )
