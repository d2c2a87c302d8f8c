"""The proof as it was saved beside the run, for showing. Judging is `watch.proof`'s.

A record that is torn, of another run or of another ending of it, or older than what the run did last, is no
proof; and none that claims to be one counts for a run that has not succeeded.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard.report.history import number

_NAMES = ("trained", "network", "stored", "repeatable")


@dataclass(frozen=True)
class PartRecord:
    """One line of the proof."""

    name: str
    holds: bool
    evidence: str
    next_step: str | None


@dataclass(frozen=True)
class ProofRecord:
    """What `report/proof.json` says."""

    parts: tuple[PartRecord, ...]
    claimed: bool
    run_number: int | None
    store: str | None

    @property
    def proven(self) -> bool:
        """All four parts hold, and the record says so too."""
        holding = tuple(part.name for part in self.parts if part.holds)
        return self.claimed and holding == _NAMES and len(self.parts) == len(_NAMES)

    @property
    def failing(self) -> tuple[PartRecord, ...]:
        return tuple(part for part in self.parts if not part.holds)


def read_proof(path: Path, run: Mapping[str, Any], newest: float | None) -> ProofRecord | None:
    """The proof of `run`, whose newest record is of `newest` (Unix seconds).

    None when there is none, or none that speaks of the run as it is now.
    """
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(value, dict) or not _is_of(run, value, newest):
        return None
    parts = value.get("parts")
    run_number, store = value.get("run_number"), value.get("store")
    return ProofRecord(
        tuple(_part(part) for part in parts if isinstance(part, dict)) if isinstance(parts, list) else (),
        value.get("proven") is True,
        run_number if isinstance(run_number, int) and not isinstance(run_number, bool) else None,
        store if isinstance(store, str) else None,
    )


def _is_of(run: Mapping[str, Any], proof: dict[str, Any], newest: float | None) -> bool:
    """Whether the proof was made of this run as it ended, after the newest thing on record."""
    outcome = run.get("outcome")
    ended = outcome if isinstance(outcome, Mapping) else {}
    if proof.get("run_id") != run.get("run_id") or proof.get("finished") != ended.get("finished"):
        return False
    if proof.get("proven") is True and ended.get("status") != "succeeded":
        return False
    made = number(proof.get("time"))
    return made is not None and (newest is None or made >= newest)


def _part(part: dict[str, Any]) -> PartRecord:
    step = part.get("next_step")
    return PartRecord(
        str(part.get("name", "")),
        part.get("holds") is True,
        str(part.get("evidence", "")),
        step if isinstance(step, str) else None,
    )
