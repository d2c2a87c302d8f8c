"""Split each file into a training and a validation side: hold out its end, or rows spread over it.

    text, bare tokens   hold out the last `fraction` of the bytes or tokens; cut text where a line begins
    rows                hold out one row in about 1 / `fraction`, spread evenly; at least one of two or more

The split of a file depends on that file alone, so it stays the same when files are added. The module reads no
file.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property


@dataclass(frozen=True)
class Portion:
    """One side of the split of every file."""

    fraction: float
    """The share of each file that is held out; 0 does not split."""
    held_out: bool = False
    """Whether this is the validation side."""

    @property
    def is_complete(self) -> bool:
        return self.fraction == 0

    def span(self, size: int, boundary: Callable[[int], int] | None = None) -> tuple[int, int]:
        """The start and end of this side among `size` bytes or tokens.

        `boundary` moves the cut to an allowed position.
        """
        cut = size - int(size * self._share)
        if boundary is not None and cut < size:
            cut = boundary(cut)
        return (cut, size) if self.held_out else (0, cut)

    def has_row(self, row: int, rows: int) -> bool:
        """Return whether this side has the 0-based `row` of `rows`."""
        share = max(self._share, Fraction(1, rows)) if self.fraction and rows > 1 else Fraction(0)
        is_held_out = int((row + 1) * share) > int(row * share)
        return is_held_out is self.held_out

    @cached_property
    def _share(self) -> Fraction:
        """The fraction as written in decimal, so that 0.1 of 10 is exactly 1."""
        return Fraction(repr(self.fraction))


WHOLE = Portion(0.0)
