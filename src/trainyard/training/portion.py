"""Which part of a file is read where each file is split for validation: its end, or rows spread over it.

    text, bare tokens   the last `fraction` of the bytes or tokens; text is cut where a line begins
    rows                one row in about 1 / `fraction`, whole, spread evenly; at least one of two or more

A file's split depends on that file alone, so it stays when another one is added. It reads no file.
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
    """This is the side for validation."""

    @property
    def is_whole(self) -> bool:
        return self.fraction == 0

    def span(self, size: int, boundary: Callable[[int], int] | None = None) -> tuple[int, int]:
        """Where this side begins and ends among `size` bytes or tokens.

        `boundary` moves the cut to a place that may be cut.
        """
        cut = size - int(size * self._share)
        if boundary is not None and cut < size:
            cut = boundary(cut)
        return (cut, size) if self.held_out else (0, cut)

    def has_row(self, row: int, rows: int) -> bool:
        """Whether this side has `row`, counted from 0, of `rows`."""
        share = max(self._share, Fraction(1, rows)) if self.fraction and rows > 1 else Fraction(0)
        is_held_out = int((row + 1) * share) > int(row * share)
        return is_held_out is self.held_out

    @cached_property
    def _share(self) -> Fraction:
        """As it is written, so that 0.1 of 10 is 1 exactly."""
        return Fraction(repr(self.fraction))


WHOLE = Portion(0.0)
