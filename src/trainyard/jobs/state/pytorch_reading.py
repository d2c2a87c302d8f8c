"""Read the status of a PyTorchJob and of a HyperPodPyTorchJob.

The condition `Restarting` is not reliable: it is overwritten within a tenth of a second, or stays for ever.
HyperPod's operator is not published; its condition types are those that its command line and AWS's samples
read.
"""

from collections.abc import Mapping
from typing import Any

from trainyard.jobs.state.observed import Observed
from trainyard.jobs.state.pod_facts import time_of
from trainyard.jobs.state.reading import Phase, Reading, count, field_of, said, since, true_conditions
from trainyard.run.failure_classes import FailureClass

Json = Mapping[str, Any]
_ENDS = (("Failed", Phase.FAILED), ("Succeeded", Phase.SUCCEEDED), ("Completed", Phase.SUCCEEDED))
"""In this order, because a job with both conditions has not succeeded."""
_GOES_ON = (
    ("Restarting", Phase.RESTARTING),
    ("Running", Phase.RUNNING),
    ("PodsRunning", Phase.RUNNING),
    ("Created", Phase.WAITING),
)
_TOO_LONG = "active longer than specified deadline"


def read_pytorchjob(observed: Observed) -> Reading:
    """The reading of a PyTorchJob or a HyperPodPyTorchJob."""
    job = observed.job or {}
    true = true_conditions(job)
    wanted = _wanted(job.get("spec") or {})
    for name, phase in _ENDS:
        if name in true:
            ended = time_of(field_of(job, "status", "completionTime")) or since(true[name])
            reached = FailureClass.TIME_LIMIT if _TOO_LONG in said(true[name]) else None
            return Reading(phase, said(true[name]), wanted, ended_at=ended, failure_class=reached)
    if "Suspended" in true or field_of(job, "spec", "runPolicy", "suspend") is True:
        return Reading(Phase.SUSPENDED, said(true.get("Suspended", {})) or "it is suspended", wanted)
    for name, phase in _GOES_ON:
        if name in true:
            return Reading(phase, said(true[name]), wanted)
    return Reading(Phase.NEW, "its operator has not acted on it yet", wanted)


def _wanted(spec: Json) -> int | None:
    replicas = spec.get("pytorchReplicaSpecs") or {}
    if replicas:
        least = field_of(spec, "elasticPolicy", "minReplicas")
        workers = count(least) if least is not None else None
        return sum(
            workers if name == "Worker" and workers is not None else count(entry.get("replicas"), 1)
            for name, entry in replicas.items()
        )
    groups = spec.get("replicaSpecs") or ()
    return sum(count(entry.get("replicas"), 1) for entry in groups) or None
