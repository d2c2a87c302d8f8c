"""The proof as it was saved beside the run, for showing. Judging is `watch.proof`'s.

A record that is torn is no proof. One of another run or of another ending of it, of other bytes of its
records, or older than what the run did last, is of another state; and none that claims to be a proof counts
for a run that has not succeeded.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard.errors import DamagedFileError
from trainyard.report.history import number
from trainyard.run.outside import read_json_object

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
    is_of_another_state: bool = False
    """The run is not what it was when it was judged: nothing of the record counts then."""

    @property
    def proven(self) -> bool:
        """All four parts hold, and the record says so too."""
        holding = tuple(part.name for part in self.parts if part.holds)
        return self.claimed and holding == _NAMES and len(self.parts) == len(_NAMES)

    @property
    def failing(self) -> tuple[PartRecord, ...]:
        return tuple(part for part in self.parts if not part.holds)


def read_proof(
    path: Path,
    run: Mapping[str, Any],
    newest: float | None,
    records: Callable[[], Mapping[str, str]],
) -> ProofRecord | None:
    """The proof of `run`, whose newest record is of `newest` (Unix seconds).

    `records` gives the SHA-256 of the run's records as they lie there. None when there is no proof.
    """
    try:
        value = read_json_object(path)
    except (FileNotFoundError, DamagedFileError):
        return None
    if not _is_of(run, value, newest) or value.get("records") != records():
        return ProofRecord((), claimed=False, run_number=None, store=None, is_of_another_state=True)
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
