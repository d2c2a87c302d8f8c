"""Read the status of a TrainJob, with the JobSet and the Jobs that it consists of.

A running TrainJob has no conditions at all. `jobsStatus` shows that it runs, and counts Jobs, not pods. A
condition Suspended with status False belongs to a job that was resumed.
"""

from collections.abc import Mapping
from typing import Any

from trainyard.jobs.state.kind_api import read_labels
from trainyard.jobs.state.observed import Observed
from trainyard.jobs.state.pod_facts import TRAINER
from trainyard.jobs.state.reading import Phase, Reading, count, field_of, said, since, true_conditions
from trainyard.run.failure_classes import FailureClass

Json = Mapping[str, Any]
_TOO_LONG = "DeadlineExceeded"


def read_trainjob(observed: Observed) -> Reading:
    """The reading of a TrainJob."""
    job, sets, jobs = observed.job or {}, observed.owned_of("JobSet"), observed.owned_of("Job")
    true, wanted = true_conditions(job), _wanted(job, jobs)
    restarts = _restarts(sets, jobs, failed="Failed" in true)
    for name, phase in (("Failed", Phase.FAILED), ("Complete", Phase.SUCCEEDED)):
        if name in true:
            too_long = _TOO_LONG in str(true[name].get("reason"))
            reached = FailureClass.TIME_LIMIT if too_long else None
            return Reading(phase, said(true[name]), wanted, restarts, since(true[name]), reached)
    if "Suspended" in true or field_of(job, "spec", "suspend") is True:
        return Reading(
            Phase.SUSPENDED, said(true.get("Suspended", {})) or "it is suspended", wanted, restarts
        )
    if any("RestartingJobSet" in true_conditions(found) for found in sets):
        return Reading(Phase.RESTARTING, "its JobSet creates all Jobs again", wanted, restarts)
    active = [entry for entry in field_of(job, "status", "jobsStatus") or () if count(entry.get("active"))]
    if active:
        names = ", ".join(str(entry.get("name")) for entry in active)
        return Reading(Phase.RUNNING, f"its Jobs are active: {names}", wanted, restarts)
    if sets:
        return Reading(Phase.WAITING, "its JobSet exists, but its Jobs are not active yet", wanted, restarts)
    return Reading(Phase.NEW, "its operator has not acted on it yet", wanted, restarts)


def _wanted(job: Json, jobs: tuple[Json, ...]) -> int | None:
    nodes = count(field_of(job, "spec", "trainer", "numNodes"))
    trainers = [j for j in jobs if read_labels(j).get("jobset.sigs.k8s.io/replicatedjob-name") == TRAINER]
    return nodes or sum(count(field_of(j, "spec", "parallelism"), 1) for j in trainers) or None


def _restarts(sets: tuple[Json, ...], jobs: tuple[Json, ...], *, failed: bool) -> int:
    """Pods that the Jobs created again; a failure that ended a Job is not followed by a new pod."""
    anew = sum(
        max(
            0, count(field_of(j, "status", "failed")) - (1 if "Failed" in true_conditions(j) or failed else 0)
        )
        for j in jobs
    )
    return anew + sum(count(field_of(found, "status", "restarts")) for found in sets)
