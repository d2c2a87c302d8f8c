"""Read the status of a RayJob, and of a RayCluster on whose head a command runs.

A RayJob has two statuses: that of its deployment and that of the command in Ray. Only both together show
success, because `Complete` is also set for a command that was stopped. A RayCluster never ends; its command
does.
"""

from collections.abc import Mapping
from typing import Any

from trainyard.jobs.state.observed import Observed
from trainyard.jobs.state.pod_facts import time_of
from trainyard.jobs.state.reading import Phase, Reading, conditions, count, field_of, said, true_conditions
from trainyard.run.failure_classes import FailureClass

Json = Mapping[str, Any]
RAY_COMMAND = "RayCommand"
"""A command in Ray's own list of jobs, shown among the objects of a job; it is not a Kubernetes object."""
_ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
_INVALID = ("InvalidRayClusterSpec", "InvalidRayClusterMetadata", "InvalidRayClusterStatus")


def read_rayjob(observed: Observed) -> Reading:
    """The reading of a RayJob."""
    job = observed.job or {}
    status = job.get("status") or {}
    deployment, command = str(status.get("jobDeploymentStatus") or ""), str(status.get("jobStatus") or "")
    wanted = _wanted(field_of(job, "spec", "rayClusterSpec") or {})
    anew = max(0, count(status.get("failed")) - (1 if deployment == "Failed" else 0))
    message = " ".join(str(status.get("message") or "").split())
    if deployment in ("Failed", "ValidationFailed", "Complete"):
        phase, found = _end_of_rayjob(deployment, command, str(status.get("reason") or ""))
        reason = message or f"the operator says {deployment}, Ray says {command or 'nothing'}"
        ended = time_of(status.get("endTime"))
        return Reading(phase, reason, wanted, anew, ended, found, _lines(status.get("message"), command))
    if deployment in ("Suspending", "Suspended") or field_of(job, "spec", "suspend") is True:
        return Reading(Phase.SUSPENDED, message or "it is suspended", wanted, anew)
    if deployment == "Retrying":
        return Reading(Phase.RESTARTING, "the operator starts it again on a new RayCluster", wanted, anew)
    if command in _ENDED:
        said_so = f"Ray says {command}; the operator has not ended the job yet"
        return Reading(Phase.RUNNING, said_so, wanted, anew)
    if command == "RUNNING":
        return Reading(Phase.RUNNING, "Ray runs the command", wanted, anew)
    if not deployment:
        return Reading(Phase.NEW, "its operator has not acted on it yet", wanted, anew)
    return Reading(
        Phase.WAITING, f"the operator says {deployment}, Ray says {command or 'nothing yet'}", wanted, anew
    )


def read_raycluster(observed: Observed) -> Reading:
    """The reading of a RayCluster and of the command on its head."""
    cluster = observed.job or {}
    true, status = true_conditions(cluster), cluster.get("status") or {}
    wanted = _wanted(cluster.get("spec") or {})
    for command in observed.owned_of(RAY_COMMAND):
        if command.get("status") in _ENDED:
            return _end_of_command(command, wanted)
    refused = next((e for e in observed.events if e.get("reason") in _INVALID), None)
    if refused is not None and not status:
        return Reading(Phase.FAILED, said(refused), wanted, failure_class=FailureClass.CONFIGURATION)
    if "RayClusterSuspended" in true or field_of(cluster, "spec", "suspend") is True:
        return Reading(Phase.SUSPENDED, "it is suspended", wanted)
    commands = [str(c.get("status")) for c in observed.owned_of(RAY_COMMAND)]
    if "RUNNING" in commands:
        return Reading(Phase.RUNNING, "Ray runs the command", wanted)
    if "ReplicaFailure" in true:
        return Reading(Phase.WAITING, said(true["ReplicaFailure"]), wanted)
    if status.get("state") == "ready" and _head_is_ready(cluster):
        reason = "the command waits" if commands else "the RayCluster is ready"
        return Reading(Phase.RUNNING, reason, wanted)
    if not status:
        return Reading(Phase.NEW, "its operator has not acted on it yet", wanted)
    return Reading(Phase.WAITING, "the RayCluster is not ready", wanted)


def _end_of_rayjob(deployment: str, command: str, reason: str) -> tuple[Phase, FailureClass | None]:
    if deployment == "ValidationFailed":
        return Phase.FAILED, FailureClass.CONFIGURATION
    if deployment == "Complete" and command == "SUCCEEDED":
        return Phase.SUCCEEDED, None
    if command == "STOPPED":
        return Phase.FAILED, FailureClass.CANCELLED
    if deployment == "Complete" and command != "FAILED":
        return Phase.UNCLEAR, None
    return Phase.FAILED, FailureClass.TIME_LIMIT if "Deadline" in reason else None


def _end_of_command(command: Json, wanted: int | None) -> Reading:
    status = str(command.get("status"))
    message = str(command.get("message") or "")
    reason = " ".join(message.split()) or f"Ray says {status}"
    if status == "SUCCEEDED":
        return Reading(Phase.SUCCEEDED, reason, wanted)
    found = FailureClass.CANCELLED if status == "STOPPED" else None
    return Reading(Phase.FAILED, reason, wanted, failure_class=found, lines=_lines(message, status))


def _lines(message: object, command: str) -> tuple[str, ...]:
    return tuple(str(message or "").splitlines()) if command == "FAILED" else ()


def _head_is_ready(cluster: Json) -> bool:
    """`state` stays `ready` while the head is created again; older operators have no condition for that."""
    head = conditions(cluster).get("HeadPodReady")
    return head is None or head.get("status") == "True"


def _wanted(spec: Json) -> int | None:
    if "headGroupSpec" not in spec:
        return None
    scales = spec.get("enableInTreeAutoscaling") is True
    groups = [g for g in spec.get("workerGroupSpecs") or () if isinstance(g, dict) and not g.get("suspend")]
    return 1 + sum(
        count(g.get("minReplicas") if scales else g.get("replicas"), 0) * count(g.get("numOfHosts"), 1)
        for g in groups
    )
