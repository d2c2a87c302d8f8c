"""Compute the digests of files: the SHA-256 of the file and, for a large file, the BLAKE3 of each part.

One processor computes a SHA-256 over a complete file in order. The digests of the parts, computed in the same
pass, let a reader of the file compare each part separately, in any order and on any number of processors
(docs/decisions/0012). The manifests store the digests.
"""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from trainyard.run.record_models import OF_A_FILE, Digest

if TYPE_CHECKING:
    from blake3 import blake3

PART_BYTES = 16 << 20
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, config=OF_A_FILE)
class PartDigests:
    """The BLAKE3 of every part of a file, in order; all parts except the last have the same size."""

    part_bytes: Annotated[int, Field(strict=True, ge=1)]
    digests: Annotated[tuple[Digest, ...], Field(alias="parts")]
    """Lower-case hex."""

    def span(self, number: int, size: int) -> tuple[int, int]:
        """Return start and end of part `number`, counted from 0, in a file of `size` bytes."""
        start = number * self.part_bytes
        return start, min(start + self.part_bytes, size)

    def to_json(self) -> dict[str, Any]:
        return {"part_bytes": self.part_bytes, "parts": list(self.digests)}


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


def digests_of_file(path: Path) -> FileDigests:
    """Return the digests of `path`, read once in constant memory."""
    digests, buffer = FileDigests(), memoryview(bytearray(_CHUNK_BYTES))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digests.update(buffer[:count])
    return digests
