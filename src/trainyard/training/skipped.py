"""What was passed over while gathering data: a count for each reason and the first few names.

It decides nothing; the readers of files and rows report here, and errors and reports quote it.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

_EXAMPLES = 3


@dataclass(frozen=True)
class Skipped:
    """One reason for passing something over."""

    reason: str
    """What the things are, in the plural: `binary files`."""
    count: int
    examples: tuple[str, ...]
    """The first few, by name; a row is `file:line`."""

    @property
    def is_of_files(self) -> bool:
        """Whether it counts whole files, not rows in them."""
        return re.search(r"\bfiles\b", self.reason) is not None

    def __str__(self) -> str:
        more = ", …" if self.count > len(self.examples) else ""
        what = _singular(self.reason) if self.count == 1 else self.reason
        return f"{self.count:,} {what} ({', '.join(self.examples)}{more})"


class SkipTally:
    """Counts what is passed over, in the order of its first appearance."""

    def __init__(self, known: Sequence[Skipped] = ()) -> None:
        """`known` was counted before."""
        self._counts = {skipped.reason: skipped.count for skipped in known}
        self._examples = {skipped.reason: list(skipped.examples) for skipped in known}

    def add(self, reason: str, example: str) -> None:
        """Count one more `reason`; `example` is kept while there are few."""
        self._counts[reason] = self._counts.get(reason, 0) + 1
        examples = self._examples.setdefault(reason, [])
        if len(examples) < _EXAMPLES:
            examples.append(printable(example))

    def include(self, others: Sequence[Skipped]) -> None:
        """Count what another tally counted, too."""
        for other in others:
            self._counts[other.reason] = self._counts.get(other.reason, 0) + other.count
            examples = self._examples.setdefault(other.reason, [])
            examples += other.examples[: _EXAMPLES - len(examples)]

    def summary(self) -> tuple[Skipped, ...]:
        return tuple(
            Skipped(reason, count, tuple(self._examples[reason])) for reason, count in self._counts.items()
        )


def printable(name: str) -> str:
    """`name` with the bytes that are no UTF-8 replaced, so that it can be printed and stored."""
    return os.fsencode(name).decode("utf-8", "replace")


def passed_over(skipped: tuple[Skipped, ...]) -> str:
    """A sentence for the end of an error, or nothing."""
    return f" Passed over: {'; '.join(map(str, skipped))}." if skipped else ""


def _singular(reason: str) -> str:
    """`line that is not JSON` for `lines that are not JSON`."""
    return re.sub(r"\b(file|folder|line|row)s\b", r"\1", reason, count=1).replace(
        " that are ", " that is ", 1
    )
