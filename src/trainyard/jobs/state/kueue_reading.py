"""Read the Workload of a job in Kueue: why the job waits, and whether Kueue has given it up.

The job itself only says that it is suspended. Old conditions of a Workload stay with status False and a
message that begins with `Previously:`, so only conditions that are True count.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainyard.jobs.state.job_state import Waiting
from trainyard.jobs.state.observed import Observed
from trainyard.jobs.state.reading import conditions, field_of, message_of, true_conditions
from trainyard.watch.failure_classes import FailureClass

Json = Mapping[str, Any]
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
_PLACE = {
    "Preempted": FailureClass.PREEMPTED,
    "PodsReadyTimeout": FailureClass.UNSCHEDULABLE,
    "NodeFailures": FailureClass.NODE_LOST,
}


@dataclass(frozen=True)
class QueueReading:
    """Kueue's statement about a job."""

    waiting: Waiting | None
    """None once it is admitted."""
    given_up: bool = False
    """The Workload was deactivated: nothing happens until somebody activates it again."""


def read_queue(observed: Observed) -> QueueReading | None:
    """Kueue's statement about the job; None if it has no Workload."""
    for workload in observed.owned_of("Workload"):
        true, known = true_conditions(workload), conditions(workload)
        if "Finished" in true:
            continue
        if field_of(workload, "spec", "active") is False:
            why = message_of(true.get("Evicted", {})) or "its Workload was deactivated"
            return QueueReading(
                Waiting(FailureClass.UNSCHEDULABLE, f"Kueue has given it up: {why}"), given_up=True
            )
        if "Admitted" in true and "Evicted" not in true:
            return QueueReading(None)
        return QueueReading(_why(true, known))
    return None


def _why(true: Mapping[str, Json], known: Mapping[str, Json]) -> Waiting:
    if "Evicted" in true:
        reason = str(true["Evicted"].get("reason"))
        return Waiting(
            _PLACE.get(reason, FailureClass.QUOTA),
            f"Kueue evicted it ({reason}): {message_of(true['Evicted'])}",
        )
    if "QuotaReserved" in true:
        return Waiting(FailureClass.QUOTA, "Kueue has reserved quota and waits for its admission checks")
    why = message_of(known.get("QuotaReserved") or {}) or "no reason is given yet"
    return Waiting(FailureClass.QUOTA, f"Kueue has not admitted it: {why}")
