"""Read recorded facts strictly: a value of the wrong type counts as unknown and never gets a default.

It knows only the JSON types, not the meaning of the facts.
"""

import math
import re
from collections.abc import Mapping
from typing import Any, TypeGuard

RecordedFacts = Mapping[str, Any]
_DIGEST = re.compile(r"(?:sha256:)?[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


def section_or_empty(facts: RecordedFacts, name: str) -> RecordedFacts:
    """Return the object under `name`; empty when there is none."""
    value = facts.get(name)
    return value if isinstance(value, Mapping) else {}


def integer_or_none(value: object) -> int | None:
    """`value` if it is an integer and not a boolean, else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def is_finite_number(value: object) -> TypeGuard[float]:
    """Return whether `value` is a finite number."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer larger than any float
        return False


def digest_or_none(value: object) -> str | None:
    """`value` if it is a SHA-256 in hex, else None."""
    return value if isinstance(value, str) and _DIGEST.fullmatch(value) else None


def commit_or_none(value: object) -> str | None:
    """`value` if it is a full git object name, else None."""
    return value if isinstance(value, str) and _COMMIT.fullmatch(value) else None
