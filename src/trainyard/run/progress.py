"""How long work tells how far it is, to whoever shows it. Nothing is shown here."""

from typing import Protocol


class Progress(Protocol):
    """Is told what is being done and how much of it is done; any thread may tell."""

    def begin(self, what: str, total: int | None = None, unit: str = "B") -> None:
        """Now `what` ("reading the store") is done, in place of what was before.

        `total` is how much there is of it, None where that is not known; in bytes, unless `unit` is a noun in
        the plural such as `files`.
        """
        ...

    def advance(self, count: int) -> None:
        """So much more of it is done."""
        ...


class Unseen:
    """Nobody watches."""

    def begin(self, what: str, total: int | None = None, unit: str = "B") -> None:
        pass

    def advance(self, count: int) -> None:
        pass


UNSEEN = Unseen()
