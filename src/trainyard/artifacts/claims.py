"""What a checkpoint's own manifest says of a large file, and whether the bytes that are sent are those.

The trainer took the SHA-256 of the file and the BLAKE3 of its parts in one pass over what it wrote. Bytes
that have the digests of all parts are those bytes, so that their SHA-256 is known and not taken again.
"""

from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from trainyard.errors import CheckpointError
from trainyard.run.checkpoints import ManifestFile
from trainyard.run.digests import PartDigests


@dataclass(frozen=True)
class Claim:
    """Of a file whose parts are named by digest."""

    path: Path
    size: int
    sha256: str
    """Lower-case hex."""
    parts: PartDigests

    @property
    def part_bytes(self) -> int:
        return self.parts.part_bytes

    def part(self, number: int) -> "PartCheck":
        """Compares the part of this number, from 0 on."""
        return PartCheck(self, number)


class PartCheck:
    """Is told the bytes of a part as they pass by."""

    def __init__(self, claim: Claim, number: int) -> None:
        self._claim, self._number, self._digest = claim, number, blake3()

    def update(self, piece: memoryview, /) -> None:
        self._digest.update(piece)

    def require(self) -> None:
        """Raise CheckpointError when they were not those of the manifest."""
        found, wanted = self._digest.hexdigest(), self._claim.parts.digests[self._number]
        if found != wanted:
            start = self._number * self._claim.part_bytes
            end = min(start + self._claim.part_bytes, self._claim.size)
            raise CheckpointError(
                f"{self._claim.path}: BLAKE3 {found[:12]}… of bytes {start:,} to {end:,}, "
                f"the checkpoint's manifest says {wanted[:12]}…"
            )


def claim_of(path: Path, file: ManifestFile | None) -> Claim | None:
    """What `file` says of `path`; None where it has no digests of parts."""
    if file is None or file.parts is None:
        return None
    return Claim(path, file.size, file.sha256, file.parts)
