"""Which process torchrun names as the first that failed, in the last lines of a pod."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

_ROOT_CAUSE = re.compile(r"Root Cause \(first observed failure\)")
_RANK = re.compile(r"^\s*rank\s*:\s*(\d{1,9})\b")
_EXIT_CODE = re.compile(r"^\s*exitcode\s*:\s*(-?\d{1,5})\b")
_SIGNALS = 128


@dataclass(frozen=True)
class FirstFailure:
    """The process that torchrun names as the first that failed."""

    rank: int
    exit_code: int | None
    """As a shell says it: 128 and the signal's number where a signal ended it."""


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
