"""What the status of a job says in its own words, brought into one shape; each kind has a reader beside this.

Conditions are found by their type and count only where their status is True: their order says nothing, and
the first one of a PyTorchJob is always Created.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from trainyard.jobs.state.pod_facts import time_of
from trainyard.run.failure_classes import FailureClass

Json = Mapping[str, Any]


class Phase(Enum):
    """Where a job stands by what its own status says; pods are not looked at."""

    NEW = auto()
    """Nobody has acted on it yet."""
    SUSPENDED = auto()
    WAITING = auto()
    RUNNING = auto()
    RESTARTING = auto()
    SUCCEEDED = auto()
    FAILED = auto()
    UNCLEAR = auto()
    """It has ended, and its status does not say how."""


@dataclass(frozen=True)
class Reading:
    """What the status of a job says."""

    phase: Phase
    reason: str
    wanted: int | None = None
    """Pods that it is made of."""
    restarts: int = 0
    """That the status itself counts."""
    ended_at: float | None = None
    failure_class: FailureClass | None = None
    """Where the status itself says why it failed."""
    lines: tuple[str, ...] = ()
    """What the program said, where the status repeats it."""


def true_conditions(raw: Json | None) -> dict[str, Json]:
    """The conditions that hold, by type."""
    found = ((raw or {}).get("status") or {}).get("conditions") or ()
    return {str(c.get("type")): c for c in found if isinstance(c, dict) and c.get("status") == "True"}


def conditions(raw: Json | None) -> dict[str, Json]:
    """All conditions by type, those that do not hold included."""
    found = ((raw or {}).get("status") or {}).get("conditions") or ()
    return {str(c.get("type")): c for c in found if isinstance(c, dict)}


def said(condition: Json) -> str:
    """The message of a condition in one line, else its reason."""
    return " ".join(str(condition.get("message") or condition.get("reason") or "").split())


def since(condition: Json) -> float | None:
    return time_of(condition.get("lastTransitionTime"))


def field_of(raw: Json, *names: str) -> Any:
    """The value at this path; None where a part of it is missing."""
    found: Any = raw
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found


def count(value: object, default: int = 0) -> int:
    """A whole number as the API gives it."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default
