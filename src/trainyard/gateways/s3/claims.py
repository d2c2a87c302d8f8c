"""What may be known of a file before it is sent: what each part must be, and the SHA-256 of the whole."""

from typing import Protocol


class PartCheck(Protocol):
    """Compares a part with what it must be."""

    def update(self, piece: memoryview, /) -> None: ...

    def require(self) -> None:
        """Raise CheckpointError when it is another."""


class Claim(Protocol):
    """What is known of a file, by its parts."""

    @property
    def size(self) -> int: ...

    @property
    def sha256(self) -> str: ...

    @property
    def part_bytes(self) -> int: ...

    @property
    def is_vouched_for(self) -> bool:
        """Whether the SHA-256 need not be taken where the parts are right."""
        ...

    def part(self, number: int) -> PartCheck:
        """Of this number, from 0 on."""
        ...
