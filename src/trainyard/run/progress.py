"""The interface by which long work reports its progress. Nothing is displayed here."""

from typing import Protocol


class Progress(Protocol):
    """Receives the current work and its progress; any thread may report."""

    def begin(self, what: str, total: int | None = None, unit: str = "B") -> None:
        """Start `what` ("reading the store"), which replaces the current work.

        `total` is its amount, None if unknown. It is in bytes unless `unit` is a plural noun such as `files`.
        """
        ...

    def advance(self, count: int) -> None:
        """Report `count` more units as done."""
        ...


class UnseenProgress:
    """Ignores all progress."""

    def begin(self, what: str, total: int | None = None, unit: str = "B") -> None:
        pass

    def advance(self, count: int) -> None:
        pass


UNSEEN = UnseenProgress()
