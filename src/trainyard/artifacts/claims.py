"""What a checkpoint's own manifest says of a large file, and whether the bytes that are sent are those.

The trainer took the SHA-256 of the file and the BLAKE3 of its parts in one pass over what it wrote. Bytes
that have the digests of all parts are those bytes, so that their SHA-256 is known and not taken again. Where
it is taken all the same, both must be right: `restore` goes by the parts.
"""

from dataclasses import dataclass
from pathlib import Path

from trainyard.errors import CheckpointError
from trainyard.run.checkpoints import ManifestFile
from trainyard.run.digests import PartDigests, part_digest

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Claim:
    """Of a file whose parts are named by digest."""

    path: Path
    size: int
    sha256: str
    """Lower-case hex."""
    parts: PartDigests
    is_vouched_for: bool
    """Whether the run's events name the manifest by its SHA-256, so that the file's is not taken again."""

    @property
    def part_bytes(self) -> int:
        return self.parts.part_bytes

    def part(self, number: int) -> "PartCheck":
        """Compares the part of this number, from 0 on."""
        return PartCheck(self, number)

    def require(self) -> None:
        """Read the file. Raises CheckpointError when a part is another than the manifest says."""
        with self.path.open("rb", buffering=0) as file:
            for number in range(len(self.parts.digests)):
                check, left = self.part(number), self.part_bytes
                while chunk := file.read(min(_CHUNK_BYTES, left)):
                    check.update(memoryview(chunk))
                    left -= len(chunk)
                check.require()


class PartCheck:
    """Is told the bytes of a part as they pass by."""

    def __init__(self, claim: Claim, number: int) -> None:
        self._claim, self._number, self._digest = claim, number, part_digest()

    def update(self, piece: memoryview, /) -> None:
        self._digest.update(piece)

    def require(self) -> None:
        """Raise CheckpointError when they were not those of the manifest."""
        found, wanted = self._digest.hexdigest(), self._claim.parts.digests[self._number]
        if found != wanted:
            start, end = self._claim.parts.span(self._number, self._claim.size)
            raise CheckpointError(
                f"{self._claim.path}: BLAKE3 {found[:12]}… of bytes {start:,} to {end:,}, "
                f"the checkpoint's manifest says {wanted[:12]}…"
            )


def claim_of(path: Path, file: ManifestFile | None, *, is_vouched_for: bool = False) -> Claim | None:
    """What `file` says of `path`; None where it has no digests of parts."""
    if file is None or file.parts is None:
        return None
    return Claim(path, file.size, file.sha256, file.parts, is_vouched_for)
