"""Read recorded facts strictly: a value of the wrong type counts as unknown and never gets a default.

It knows only the JSON types, not the meaning of the facts.
"""

import math
import re
from collections.abc import Mapping
from typing import Any, TypeGuard

from trainyard.config.registries import DEFAULT_RECIPE, RECIPES

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


def other_program(facts: RecordedFacts) -> str | None:
    """Return the recipe of a run of another program; None for a run of this repository's trainer."""
    recipe = facts.get("recipe", DEFAULT_RECIPE)
    return None if isinstance(recipe, str) and recipe in RECIPES else str(recipe)


def is_of_any_program(run: RecordedFacts) -> bool:
    """Return whether it is the run of any program (`recipe.

    Command`), which decides itself which steps it logs.
    """
    return other_program(run) is not None and isinstance(run.get("program"), Mapping)


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
