"""Compare the parts of a large file with the digests in its checkpoint's own manifest.

The trainer computed the SHA-256 of the file and the BLAKE3 of its parts in one pass. If all parts have the
right digests, the SHA-256 is known and need not be computed again. If it is computed anyway, both must match,
because `restore` checks the parts.
"""

from dataclasses import dataclass
from pathlib import Path

from trainyard.errors import CheckpointError
from trainyard.run.checkpoint_manifest import ManifestFile
from trainyard.run.digests import PartDigests, part_digest

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class ExpectedFile:
    """The digests of a file whose manifest has digests of its parts."""

    path: Path
    size: int
    sha256: str
    """Lower-case hex."""
    parts: PartDigests
    is_vouched_for: bool
    """Whether the run's events name the manifest's SHA-256, so that the file's is not computed again."""

    @property
    def part_bytes(self) -> int:
        return self.parts.part_bytes

    def part(self, number: int) -> "ExpectedPart":
        """Return the check of part `number`, counted from 0."""
        return ExpectedPart(self, number)

    def require(self) -> None:
        """Read the file. Raises CheckpointError when a part does not match the manifest."""
        with self.path.open("rb", buffering=0) as file:
            for number in range(len(self.parts.digests)):
                check, left = self.part(number), self.part_bytes
                while chunk := file.read(min(_CHUNK_BYTES, left)):
                    check.update(memoryview(chunk))
                    left -= len(chunk)
                check.require()


class ExpectedPart:
    """Hashes the bytes of one part as they pass by."""

    def __init__(self, claim: ExpectedFile, number: int) -> None:
        self._claim, self._number, self._digest = claim, number, part_digest()

    def update(self, piece: memoryview, /) -> None:
        self._digest.update(piece)

    def require(self) -> None:
        """Raise CheckpointError when the bytes do not match the manifest."""
        found, wanted = self._digest.hexdigest(), self._claim.parts.digests[self._number]
        if found != wanted:
            start, end = self._claim.parts.span(self._number, self._claim.size)
            raise CheckpointError(
                f"{self._claim.path}: BLAKE3 {found[:12]}… of bytes {start:,} to {end:,}, "
                f"the checkpoint's manifest says {wanted[:12]}…"
            )


def claim_of(path: Path, file: ManifestFile | None, *, is_vouched_for: bool = False) -> ExpectedFile | None:
    """Return the claim of `file` about `path`; None without digests of parts."""
    if file is None or file.parts is None:
        return None
    return ExpectedFile(path, file.size, file.sha256, file.parts, is_vouched_for)
