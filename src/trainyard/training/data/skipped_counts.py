"""Tally files and rows that were skipped while gathering data: a count per reason and the first few names.

The readers of files and rows decide what to skip and report it here; errors and reports quote the tally.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

_EXAMPLES = 3


@dataclass(frozen=True)
class SkipCount:
    """The files or rows that were skipped for one reason."""

    reason: str
    """The kind of skipped files or rows in the plural, such as `binary files`."""
    count: int
    examples: tuple[str, ...]
    """The first few, by name; a row is `file:line`."""

    @property
    def is_of_files(self) -> bool:
        """Return whether it counts files instead of rows."""
        return re.search(r"\bfiles\b", self.reason) is not None

    def __str__(self) -> str:
        more = ", …" if self.count > len(self.examples) else ""
        what = _singular(self.reason) if self.count == 1 else self.reason
        return f"{self.count:,} {what} ({', '.join(self.examples)}{more})"


class SkipTally:
    """Counts skipped files and rows; the reasons are in order of first appearance."""

    def __init__(self, known: Sequence[SkipCount] = ()) -> None:
        """`known` are earlier counts to start from."""
        self._counted = {skipped.reason: skipped for skipped in known}

    def add(self, reason: str, example: str) -> None:
        """Count one more for `reason`; keep `example` if there are few yet."""
        self.include([SkipCount(reason, 1, (printable_text(example),))])

    def include(self, others: Sequence[SkipCount]) -> None:
        """Add the counts of another tally."""
        for other in others:
            known = self._counted.get(other.reason, SkipCount(other.reason, 0, ()))
            examples = (*known.examples, *other.examples)[:_EXAMPLES]
            self._counted[other.reason] = SkipCount(other.reason, known.count + other.count, examples)

    def summary(self) -> tuple[SkipCount, ...]:
        return tuple(self._counted.values())


def printable_text(name: str) -> str:
    """`name` with invalid UTF-8 bytes replaced, so that it can be printed and stored."""
    return os.fsencode(name).decode("utf-8", "replace")


def skip_sentence(skipped: tuple[SkipCount, ...]) -> str:
    """A sentence about skipped files for the end of an error; empty if there are none."""
    return f" Skipped: {'; '.join(map(str, skipped))}." if skipped else ""


def _singular(reason: str) -> str:
    """The singular of a reason, such as `line that is not JSON` for `lines that are not JSON`."""
    return re.sub(r"\b(file|folder|line|row)s\b", r"\1", reason, count=1).replace(
        " that are ", " that is ", 1
    )
