"""Cancel a job but keep its object: build the patch that stops its pods and records the cancellation.

The pods get SIGTERM and their grace period, so a trainer saves. For a job in a queue its Workload is
deactivated as well, because Kueue would start the job again.
"""

from collections.abc import Mapping
from typing import Any

from trainyard.errors import ConfigError
from trainyard.jobs.job_labels import CANCELLED
from trainyard.jobs.state.kind_api import KindOfJob, name_of

Json = Mapping[str, Any]
DEACTIVATION = {"spec": {"active": False}}
"""The patch for a Workload."""


def record_of_cancellation(moment: str) -> dict[str, Any]:
    """The patch that records the cancellation."""
    return {"metadata": {"annotations": {CANCELLED: moment}}}


def suspension(kind: KindOfJob, job: Json, *, moment: str) -> dict[str, Any]:
    """The patch that stops the pods of a job. Raises ConfigError for a job that can only be deleted."""
    spec = job.get("spec") or {}
    why = ""
    if not kind.suspend:
        why = f"a {kind.api_kind} cannot be suspended"
    if kind.name == "rayjob" and spec.get("clusterSelector"):
        why = "it runs on a RayCluster of its own or of others, which KubeRay does not suspend"
    elif kind.name == "rayjob" and not spec.get("shutdownAfterJobFinishes"):
        why = "KubeRay suspends a RayJob only with shutdownAfterJobFinishes"
    if why:
        raise ConfigError(
            f"{name_of(job)} cannot be cancelled: {why}. End it with delete, which saves its logs"
        )
    patch: dict[str, Any] = record_of_cancellation(moment)
    inner: dict[str, Any] = patch
    for name in kind.suspend[:-1]:
        inner = inner.setdefault(name, {})
    inner[kind.suspend[-1]] = True
    return patch
