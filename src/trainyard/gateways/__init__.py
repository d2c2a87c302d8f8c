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
    """An object as its store describes it."""

    key: str
    size: int
    """Bytes."""
    etag: str = ""
    """Changes when the bytes do; empty if the store has none."""
    checksum: Mapping[str, Any] = field(default_factory=dict)
    """`algorithm`, `type` and `value` (base64, as the store returned it), which the store computed.

    It covers all bytes. Empty in listings and for stores that compute none.
    """
    modified: float = field(default=0.0, compare=False)
    """When the store last received it, in Unix seconds by the store's clock; 0 if unknown."""
    identity: str = field(default="", compare=False)
    """Distinguishes the object from all others under this key, past or future; empty if unknown."""
    archived: str = field(default="", compare=False)
    """The archive (`GLACIER`, …) from which the object cannot be read now; empty if it can be read.

    A listing reports it also for an object that was restored from the archive; `describe` does not.
    """


def join_chunks(key: str, chunks: Iterable[bytes]) -> bytes:
    """Return the bytes of a small object. Raises VerificationError when it is too large for a record."""
    pieces, size = list[bytes](), 0
    for chunk in chunks:
        pieces.append(chunk)
        size += len(chunk)
        if size > MOST_OBJECT_BYTES:
            raise VerificationError(
                f"{key}: damaged: more than {MOST_OBJECT_BYTES:,} bytes, where a record belongs"
            )
    return b"".join(pieces)
