"""The common form of a job's status, whatever its kind, and how the parts of an object of the API are read.

Conditions are found by their type and count only if their status is True. Their order means nothing: the
first condition of a PyTorchJob is always Created.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Any

from trainyard.watch.failure_classes import FailureClass

Json = Mapping[str, Any]
NOT_ACTED = "its operator has not acted on it yet"
_LEAST_TIME = 1e9
"""In Unix seconds; Kubernetes writes the year 1 or 1970 for an unknown time."""


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


_TOO_LONG = "active longer than specified deadline"


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
    enough: int | None = None
    """The number of pods with which an elastic job trains; None if it needs all."""


def name_of(raw: Json) -> str:
    return str((raw.get("metadata") or {}).get("name") or "")


def uid_of(raw: Json) -> str:
    return str((raw.get("metadata") or {}).get("uid") or "")


def annotations_of(raw: Json) -> Json:
    found: Json = (raw.get("metadata") or {}).get("annotations") or {}
    return found


def read_labels(raw: Json) -> Json:
    found: Json = (raw.get("metadata") or {}).get("labels") or {}
    return found


def true_conditions(raw: Json | None) -> dict[str, Json]:
    """Return the conditions that are True, by type."""
    return {name: found for name, found in conditions(raw).items() if found.get("status") == "True"}


def conditions(raw: Json | None) -> dict[str, Json]:
    """All conditions by type, including those that are not True."""
    found = ((raw or {}).get("status") or {}).get("conditions") or ()
    return {str(c.get("type")): c for c in found if isinstance(c, dict)}


def message_of(condition: Json) -> str:
    """Return the message of a condition in one line, else its reason."""
    return one_line(condition.get("message") or condition.get("reason"))


def one_line(text: object) -> str:
    return " ".join(str(text or "").split())


def event_time(event: Json) -> float | None:
    """Return when an event was last seen, in Unix seconds."""
    series, meta = event.get("series") or {}, event.get("metadata") or {}
    times = series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime")
    return next(filter(None, map(time_of, (*times, meta.get("creationTimestamp")))), None)


def read_end(
    job: Json, wanted: int | None, restarts: int = 0, *, done: Sequence[str] = ("Complete",)
) -> Reading | None:
    """Return the reading of a job that has ended, by its conditions that are True; None if it has not.

    Failed is first: a job that also has one of `done` has not succeeded.
    """
    true = true_conditions(job)
    for name in ("Failed", *done):
        if (found := true.get(name)) is not None:
            phase = Phase.SUCCEEDED if name in done else Phase.FAILED
            message, ended = message_of(found), time_of(field_of(job, "status", "completionTime"))
            too_long = "DeadlineExceeded" in str(found.get("reason")) or _TOO_LONG in message
            reached = FailureClass.TIME_LIMIT if too_long else None
            ended = ended or time_of(found.get("lastTransitionTime"))
            return Reading(phase, message, wanted, restarts, ended, reached)
    return None


def read_suspension(true: Mapping[str, Json], wanted: int | None, restarts: int = 0) -> Reading:
    return Reading(
        Phase.SUSPENDED, message_of(true.get("Suspended", {})) or "it is suspended", wanted, restarts
    )


def time_of(text: object) -> float | None:
    """Return the Unix seconds of a time from the API; None for no time, and for the years 1 and 1970."""
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return seconds if seconds > _LEAST_TIME else None


def field_of(raw: Json, *names: str) -> Any:
    """Return the value at this path; None if a part of the path is missing."""
    found: Any = raw
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found


def claims_of(pod: Json) -> dict[str, str]:
    """Return the claims that a specification of a pod names, by the name of the volume."""
    volumes = pod.get("volumes") or ()
    claims = {str(each.get("name")): field_of(each, "persistentVolumeClaim", "claimName") for each in volumes}
    return {name: str(claim) for name, claim in claims.items() if claim}


def count(value: object, default: int = 0) -> int:
    """Return a whole number from the API; `default` for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default
