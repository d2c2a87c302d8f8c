"""What the last lines of a log say of a failure: which process failed first, and of which class it is.

This is the one place that takes lines and gives a class. It answers only where no other cause prints the
same words; None leaves the class to the pods' statuses.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from trainyard.run.failure_classes import FailureClass

_ROOT_CAUSE = re.compile(r"Root Cause \(first observed failure\)")
_RANK = re.compile(r"^\s*rank\s*:\s*(\d{1,9})\b")
_EXIT_CODE = re.compile(r"^\s*exitcode\s*:\s*(-?\d{1,5})\b")
_SIGNALS = 128
_PATTERNS = (
    (
        re.compile(r"torch\.(cuda\.)?OutOfMemoryError|CUDA out of memory\. Tried to allocate"),
        FailureClass.GPU_MEMORY,
    ),
    (re.compile(r"^ModuleNotFoundError: No module named"), FailureClass.CONFIGURATION),
)


@dataclass(frozen=True)
class FirstFailure:
    """The process that torchrun names as the first that failed."""

    rank: int
    exit_code: int | None
    """As a shell says it: 128 and the signal's number where a signal ended it."""


def class_of_lines(lines: Sequence[str]) -> FailureClass | None:
    """The class of the failure that these lines tell of; None where they do not say it for certain."""
    for line in lines:
        for pattern, found in _PATTERNS:
            if pattern.search(line):
                return found
    return None


def first_failure(lines: Sequence[str]) -> FirstFailure | None:
    """What torchrun's last report says below `Root Cause`; None where it is not there."""
    starts = [n for n, line in enumerate(lines) if _ROOT_CAUSE.search(line)]
    if not starts:
        return None
    below = lines[starts[-1] :]
    rank = next((int(m[1]) for line in below if (m := _RANK.match(line))), None)
    code = next((int(m[1]) for line in below if (m := _EXIT_CODE.match(line))), None)
    if rank is None:
        return None
    return FirstFailure(rank, _SIGNALS - code if code is not None and code < 0 else code)
