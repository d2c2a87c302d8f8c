"""Job of Kubernetes, `batch/v1`, with an index for each pod. Only somebody else's manifest makes one.

A pod's index is its rank. Pods find each other by the Job's name and index (`train-0.service`), so a Job of
pods with a subdomain cannot be sent again under another name: the names in its command and in its Service
would be those of the earlier Job.
"""

from trainyard.cluster.needed_apis import NeededApi
from trainyard.jobs.job_kind import JobKind, Observed
from trainyard.jobs.state.reading import (
    NOT_ACTED,
    Json,
    Phase,
    Reading,
    count,
    field_of,
    read_end,
    read_suspension,
    true_conditions,
)

_BY_CONTROLLER = ("controller-uid", "job-name")
"""Labels that the API server writes into the template, with and without the prefix of the API group."""


def read_status(observed: Observed) -> Reading:
    """Return the reading of a Job."""
    job = observed.job or {}
    spec, status, true = job.get("spec") or {}, job.get("status") or {}, true_conditions(job)
    wanted = count(spec.get("completions"), count(spec.get("parallelism"), 1))
    failed = count(status.get("failed"))
    if (end := read_end(job, wanted, max(0, failed - ("Failed" in true)))) is not None:
        return end
    if "Suspended" in true or spec.get("suspend") is True:
        return read_suspension(true, wanted, failed)
    if count(status.get("active")):
        return Reading(Phase.RUNNING, "its pods are active", wanted, failed)
    return Reading(Phase.NEW if not status else Phase.WAITING, NOT_ACTED, wanted, failed)


def why_not_sent(job: Json) -> str:
    """Return why the pods of a Job have no ranks; empty if they have."""
    spec = job.get("spec") or {}
    several = max(count(spec.get("parallelism"), 1), count(spec.get("completions"), 1)) > 1
    return "its pods need ranks: set completionMode: Indexed" if several and not _is_indexed(job) else ""


def why_not_renamed(job: Json) -> str:
    """Return why a copy of the Job under another name would not work; empty if it would."""
    subdomain = field_of(job, "spec", "template", "spec", "subdomain")
    if not (subdomain and _is_indexed(job)):
        return ""
    return (
        "its pods find each other by the name of the Job, which a copy does not have. Delete it, and deploy "
        "the manifest again: it resumes from its checkpoints"
    )


def _is_indexed(job: Json) -> bool:
    return bool(field_of(job, "spec", "completionMode") == "Indexed")


KIND = JobKind(
    name="job",
    api_kind="Job",
    apis=(NeededApi("batch", "v1", "jobs", "Kubernetes"),),
    controllers=(),
    trial_spec=lambda template, _: {"template": template},
    has_webhook=False,
    longest_name=63 - len("-00000"),
    read_status=read_status,
    pod_label="batch.kubernetes.io/job-name",
    why_not_sent=why_not_sent,
    why_not_renamed=why_not_renamed,
    of_one_run=(
        ("spec", "selector"),
        *(
            ("spec", "template", "metadata", "labels", prefix + name)
            for name in _BY_CONTROLLER
            for prefix in ("", "batch.kubernetes.io/")
        ),
    ),
)
