"""Where the facts of another program's run come from, in words; `outcome.sources` of `run.json` names it."""

from collections.abc import Mapping
from typing import Any

_WORDS = {
    "declared": "reported by the program",
    "observed": "observed",
    "structured": "from the program's files",
    "checkpoint": "from its checkpoint",
    "printed": "printed by the program",
    "guessed": "a guess",
}


def describe_count(number: int, noun: str) -> str:
    """Return `1 step` or `1,000 steps`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def source_in_words(outcome: Mapping[str, Any], fact: str) -> str:
    """Return ` (printed by the program)` for `steps` or a figure of a run; empty where none is on record."""
    sources = outcome.get("sources")
    words = _WORDS.get(str(sources.get(fact))) if isinstance(sources, Mapping) else None
    return f" ({words})" if words else ""


def describe_steps(outcome: Mapping[str, Any], steps: int) -> str:
    """Return a number of steps of a run in words; they are epochs if nothing else was counted."""
    return describe_count(steps, "epoch" if outcome.get("unit") == "epochs" else "step")
