"""Compute the digests of files: the SHA-256 of the whole and, for a large file, the BLAKE3 of each part.

One processor computes a SHA-256 over a whole file in order. The digests of the parts, computed in the same
pass, let a reader of the file compare each part separately, in any order and on any number of processors
(docs/decisions/0012). The manifests store the digests.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from blake3 import blake3

PART_BYTES = 16 << 20
_CHUNK_BYTES = 1 << 20
_HEX = frozenset("0123456789abcdef")
_HEX_LENGTH = 64


@dataclass(frozen=True)
class PartDigests:
    """The BLAKE3 of every part of a file, in order; all parts except the last have the same size."""

    part_bytes: int
    digests: tuple[str, ...]
    """Lower-case hex."""

    def span(self, number: int, size: int) -> tuple[int, int]:
        """Return the begin and end of part `number`, counted from 0, in a file of `size` bytes."""
        start = number * self.part_bytes
        return start, min(start + self.part_bytes, size)

    def to_json(self) -> dict[str, Any]:
        return {"part_bytes": self.part_bytes, "parts": list(self.digests)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any], size: int) -> Self:
        """Parse the digests for a file of `size` bytes. Raises ValueError, KeyError or TypeError."""
        found = cls(int(value["part_bytes"]), tuple(require_digest(digest) for digest in value["parts"]))
        if found.part_bytes < 1 or len(found.digests) != -(-size // found.part_bytes) or not found.digests:
            raise ValueError(f"{len(found.digests)} digests of parts do not make up {size:,} bytes")
        return found


def part_digest() -> "blake3":
    """Return a hash object for one part. The import is here because readers of manifests do not need it."""
    from blake3 import blake3

    return blake3()


class PartHasher:
    """Hashes each part of bytes that arrive in order, starting at the beginning of a part."""

    def __init__(self, part_bytes: int) -> None:
        self.size, self._part_bytes = 0, part_bytes
        self._part, self._digests = part_digest(), list[str]()

    def update(self, content: bytes | memoryview) -> None:
        rest = memoryview(content)
        while rest:
            piece = rest[: self._part_bytes - self.size % self._part_bytes]
            self._part.update(piece)
            self.size += len(piece)
            if self.size % self._part_bytes == 0:
                self._digests.append(self._part.hexdigest())
                self._part.reset()
            rest = rest[len(piece) :]

    @property
    def digests(self) -> tuple[str, ...]:
        """Lower-case hex, including a last part that is incomplete but not empty."""
        last = [self._part.hexdigest()] if self.size % self._part_bytes else []
        return (*self._digests, *last)


class FileDigests:
    """Computes both kinds of digest for the bytes of a file that arrive in order."""

    def __init__(self, part_bytes: int | None = None) -> None:
        self._part_bytes = part_bytes or PART_BYTES
        self._whole, self._parts = hashlib.sha256(), PartHasher(self._part_bytes)

    def update(self, content: bytes | memoryview) -> None:
        self._whole.update(content)
        self._parts.update(content)

    @property
    def size(self) -> int:
        return self._parts.size

    @property
    def sha256(self) -> str:
        """Lower-case hex."""
        return self._whole.hexdigest()

    @property
    def parts(self) -> PartDigests | None:
        """The part digests; None for a file of one part, because its SHA-256 is enough."""
        return PartDigests(self._part_bytes, self._parts.digests) if self.size > self._part_bytes else None


def require_digest(value: object) -> str:
    """Return the lower-case hex of 32 bytes. Raises ValueError for anything else."""
    if not isinstance(value, str) or len(value) != _HEX_LENGTH or not _HEX.issuperset(value):
        raise ValueError(f"{str(value)[:80]!r} is not a digest: 64 hex digits in lower case")
    return value


def digests_of_file(path: Path) -> FileDigests:
    """Return the digests of `path`, read once in constant memory."""
    digests, buffer = FileDigests(), memoryview(bytearray(_CHUNK_BYTES))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digests.update(buffer[:count])
    return digests
