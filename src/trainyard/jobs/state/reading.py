"""The common form of a job's status, whatever its kind; each kind has a reader module beside this one.

Conditions are found by their type and count only if their status is True. Their order means nothing: the
first condition of a PyTorchJob is always Created.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from trainyard.jobs.state.pod_facts import time_of
from trainyard.run.failure_classes import FailureClass

Json = Mapping[str, Any]


class Phase(Enum):
    """The phase of a job according to its own status; pods are not considered."""

    NEW = auto()
    """No controller has acted on it yet."""
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
    """The content of a job's status."""

    phase: Phase
    reason: str
    wanted: int | None = None
    """The number of pods that it consists of."""
    restarts: int = 0
    """The restarts that the status itself counts."""
    ended_at: float | None = None
    failure_class: FailureClass | None = None
    """The class of the failure, if the status names its cause."""
    lines: tuple[str, ...] = ()
    """The program's last lines, if the status repeats them."""


def true_conditions(raw: Json | None) -> dict[str, Json]:
    """The conditions that are True, by type."""
    found = ((raw or {}).get("status") or {}).get("conditions") or ()
    return {str(c.get("type")): c for c in found if isinstance(c, dict) and c.get("status") == "True"}


def conditions(raw: Json | None) -> dict[str, Json]:
    """All conditions by type, including those that are not True."""
    found = ((raw or {}).get("status") or {}).get("conditions") or ()
    return {str(c.get("type")): c for c in found if isinstance(c, dict)}


def said(condition: Json) -> str:
    """The message of a condition in one line, else its reason."""
    return " ".join(str(condition.get("message") or condition.get("reason") or "").split())


def since(condition: Json) -> float | None:
    return time_of(condition.get("lastTransitionTime"))


def field_of(raw: Json, *names: str) -> Any:
    """The value at this path; None if a part of the path is missing."""
    found: Any = raw
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found


def count(value: object, default: int = 0) -> int:
    """A whole number from the API; `default` for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default
