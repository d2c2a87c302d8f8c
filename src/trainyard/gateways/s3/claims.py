"""Interface for facts known before a file is sent: the digest of each part, and the SHA-256 of the whole."""

from typing import Protocol


class DeclaredPart(Protocol):
    """Compares a part with its expected digest."""

    def update(self, piece: memoryview, /) -> None: ...

    def require(self) -> None:
        """Raise CheckpointError when the part differs."""


class DeclaredFile(Protocol):
    """The expected digests of a file's parts."""

    @property
    def size(self) -> int: ...

    @property
    def sha256(self) -> str: ...

    @property
    def part_bytes(self) -> int: ...

    @property
    def is_vouched_for(self) -> bool:
        """Whether the SHA-256 need not be computed if the parts match."""
        ...

    def part(self, number: int) -> DeclaredPart:
        """Return the check of part `number`, counted from 0."""
        ...
