"""What a file's bytes are named by: the SHA-256 of the whole and, of a large one, the BLAKE3 of each part.

A SHA-256 can only be taken of a whole file, in order, by one processor. The digests of its parts, taken in
the same pass, let whoever fetches the file compare each part by itself, in any order and on any number of
processors (docs/decisions/0012). Where the digests are kept is the manifests' affair.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from blake3 import blake3

PART_BYTES = 16 << 20
_CHUNK_BYTES = 1 << 20
_HEX = frozenset("0123456789abcdef")
_HEX_LENGTH = 64


@dataclass(frozen=True)
class PartDigests:
    """The BLAKE3 of every part of a file, in order; all parts but the last are of one size."""

    part_bytes: int
    digests: tuple[str, ...]
    """Lower-case hex."""

    def to_json(self) -> dict[str, Any]:
        return {"part_bytes": self.part_bytes, "parts": list(self.digests)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any], size: int) -> Self:
        """Of a file of `size` bytes. Raises ValueError, KeyError or TypeError for what cannot be that."""
        found = cls(int(value["part_bytes"]), tuple(str(digest) for digest in value["parts"]))
        if found.part_bytes < 1 or len(found.digests) != -(-size // found.part_bytes):
            raise ValueError(f"{len(found.digests)} digests of parts do not make up {size:,} bytes")
        if any(len(digest) != _HEX_LENGTH or not _HEX.issuperset(digest) for digest in found.digests):
            raise ValueError("a digest of a part is not the hex of 32 bytes")
        return found


class FileDigests:
    """Takes both kinds of digest of the bytes of a file that pass by in order."""

    def __init__(self) -> None:
        self.size = 0
        self._whole, self._part, self._digests = hashlib.sha256(), blake3(), list[str]()

    def update(self, content: bytes | memoryview) -> None:
        self._whole.update(content)
        rest = memoryview(content)
        while rest:
            piece = rest[: PART_BYTES - self.size % PART_BYTES]
            self._part.update(piece)
            self.size += len(piece)
            if self.size % PART_BYTES == 0:
                self._digests.append(self._part.hexdigest())
                self._part.reset()
            rest = rest[len(piece) :]

    @property
    def sha256(self) -> str:
        """Lower-case hex."""
        return self._whole.hexdigest()

    @property
    def parts(self) -> PartDigests | None:
        """None of a file of one part, which its SHA-256 speaks for."""
        if self.size <= PART_BYTES:
            return None
        last = [self._part.hexdigest()] if self.size % PART_BYTES else []
        return PartDigests(PART_BYTES, (*self._digests, *last))


def digests_of_file(path: Path) -> FileDigests:
    """Of the bytes of `path`, read once in constant memory."""
    digests, buffer = FileDigests(), memoryview(bytearray(_CHUNK_BYTES))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digests.update(buffer[:count])
    return digests
