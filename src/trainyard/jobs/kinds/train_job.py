"""TrainJob of Kubeflow Trainer 2, `trainer.kubeflow.org/v1alpha1`, with a TrainingRuntime of its own.

What a pod needs beyond its image (volumes, user, grace period) can be given to a TrainJob only by overrides,
whose field differs between Trainer 2.0, 2.1 and 2.2 and has no grace period before 2.2. The runtime has had
the same fields since 2.0, so each job has its own, which is deleted with it.

When a pod fails, JobSet starts all pods again, at most `restarts` times. A failure that a restart would only
repeat ends the job at once: configuration, bug, stored but not proven (2, 3, 6).

A running TrainJob has no conditions at all. `jobsStatus` shows that it runs, and counts Jobs, not pods. A
condition Suspended with status False belongs to a job that was resumed.
"""

from dataclasses import replace
from typing import Any

from trainyard.cluster.needed_apis import Controller, NeededApi
from trainyard.jobs.final_exit_codes import FINAL_CODES
from trainyard.jobs.job_kind import JobKind, Manifests, Observed, OwnedObjects
from trainyard.jobs.job_object import job_object, make_files_config_map, make_labels, part_object
from trainyard.jobs.job_spec import JobSpec
from trainyard.jobs.pod_template import pod_template, resources_of
from trainyard.jobs.state.reading import (
    NOT_ACTED,
    Json,
    Phase,
    Reading,
    count,
    event_time,
    field_of,
    message_of,
    name_of,
    read_end,
    read_labels,
    read_suspension,
    time_of,
    true_conditions,
    uid_of,
)

API = "trainer.kubeflow.org/v1alpha1"
CONTAINER = TRAINER = "node"
"""The container, and the replicated Job that trains; other Jobs prepare data and models."""
_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
_JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
_PART_LABEL = "jobset.sigs.k8s.io/replicatedjob-name"
_ENDS = {
    "AllJobsCompleted": Phase.SUCCEEDED,
    **dict.fromkeys(("FailedJobs", "FailJobSetFailurePolicyAction", "ReachedMaxRestarts"), Phase.FAILED),
}
"""Reason of the last event of a JobSet -> the end of its TrainJob."""


def render(plan: JobSpec) -> Manifests:
    trainer: dict[str, Any] = {
        "image": plan.image,
        "command": list(plan.program.command),
        "numNodes": plan.nodes,
        "numProcPerNode": plan.processes_per_node,
        "resourcesPerNode": resources_of(plan.resources),
    }
    reference = {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": plan.name}
    job = job_object(plan, API, "TrainJob", {"runtimeRef": reference, "trainer": trainer})
    return Manifests(job, (*make_files_config_map(plan), _runtime(plan)))


def _runtime(plan: JobSpec) -> dict[str, Any]:
    template = pod_template(plan, CONTAINER, command=False)
    template["spec"]["restartPolicy"] = "Never"
    final = {"containerName": CONTAINER, "operator": "In", "values": [int(code) for code in FINAL_CODES]}
    rules = [{"action": "FailJob", "onExitCodes": final}]
    # The exit codes of another command are not known.
    failures = {"podFailurePolicy": {"rules": rules}} if plan.program.keeps_run else {}
    notes = {"annotations": dict(plan.annotations)} if plan.annotations else {}
    node = {
        "name": CONTAINER,
        "template": {
            "metadata": {
                **notes,
                "labels": {**plan.labels, **make_labels(plan.name, plan.kind), _STEP: "trainer"},
            },
            "spec": {"backoffLimit": 0, **failures, "template": template},
        },
    }
    at_once = {"name": "final", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
    policy = {"maxRestarts": plan.restarts, "rules": [at_once]}
    jobs = {"replicatedJobs": [node], "failurePolicy": policy}
    job_set = {
        **({"metadata": {**notes, "labels": dict(plan.labels)}} if plan.labels or notes else {}),
        "spec": jobs,
    }
    body = part_object(
        plan,
        API,
        "TrainingRuntime",
        name=plan.name,
        spec={"mlPolicy": {"numNodes": plan.nodes, "torch": {}}, "template": job_set},
    )
    body["metadata"]["labels"]["trainer.kubeflow.org/framework"] = "torch"
    return body


def read_status(observed: Observed) -> Reading:
    """Return the reading of a TrainJob."""
    job, sets, jobs = observed.job or {}, observed.owned_of("JobSet"), observed.owned_of("Job")
    true, wanted = true_conditions(job), _count_pods(job, jobs)
    restarts = _count_restarts(sets, jobs, failed="Failed" in true)
    if (end := read_end(job, wanted, restarts)) is not None:
        return end
    if (earlier := _read_earlier_end(observed, sets)) is not None:
        return replace(earlier, wanted=wanted, restarts=restarts)
    if "Suspended" in true or field_of(job, "spec", "suspend") is True:
        return read_suspension(true, wanted, restarts)
    if any("RestartingJobSet" in true_conditions(found) for found in sets):
        return Reading(Phase.RESTARTING, "its JobSet creates all Jobs again", wanted, restarts)
    active = [entry for entry in field_of(job, "status", "jobsStatus") or () if count(entry.get("active"))]
    if active:
        names = ", ".join(str(entry.get("name")) for entry in active)
        return Reading(Phase.RUNNING, f"its Jobs are active: {names}", wanted, restarts)
    if sets:
        return Reading(Phase.WAITING, "its JobSet exists, but its Jobs are not active yet", wanted, restarts)
    return Reading(Phase.NEW, NOT_ACTED, wanted, restarts)


def _read_earlier_end(observed: Observed, sets: tuple[Json, ...]) -> Reading | None:
    """Return how an earlier JobSet of this job ended; None if there was none.

    When the JobSet of a finished TrainJob is deleted, Trainer forgets the end and trains again
    (kubeflow/trainer#3737). The events of the old JobSet stay for an hour.
    """
    present = {"", *map(uid_of, sets)}
    created = time_of(field_of(observed.job or {}, "metadata", "creationTimestamp")) or 0.0
    for event in observed.events:
        about, seen = event.get("involvedObject") or {}, event_time(event) or 0.0
        is_earlier = about.get("kind") == "JobSet" and about.get("uid", "") not in present
        if is_earlier and seen >= created and (phase := _ENDS.get(str(event.get("reason")))):
            return Reading(
                phase, f"{message_of(event)}, and its JobSet was deleted afterwards", ended_at=seen
            )
    return None


def _count_pods(job: Json, jobs: tuple[Json, ...]) -> int | None:
    nodes = count(field_of(job, "spec", "trainer", "numNodes"))
    trainers = [j for j in jobs if read_labels(j).get(_PART_LABEL) == TRAINER]
    return nodes or sum(count(field_of(j, "spec", "parallelism"), 1) for j in trainers) or None


def _count_restarts(sets: tuple[Json, ...], jobs: tuple[Json, ...], *, failed: bool) -> int:
    """Return how many pods were created again; a failure that ends its Job is not followed by a new pod."""
    ends = (count(field_of(j, "status", "failed")) - ("Failed" in true_conditions(j) or failed) for j in jobs)
    return sum(max(0, anew) for anew in ends) + sum(
        count(field_of(found, "status", "restarts")) for found in sets
    )


def is_helper(labels: Json) -> bool:
    """Return whether the pod prepares data or models."""
    return str(labels.get(_PART_LABEL, TRAINER)) != TRAINER


KIND = JobKind(
    name="trainjob",
    api_kind="TrainJob",
    apis=(
        NeededApi("trainer.kubeflow.org", "v1alpha1", "trainjobs", "Kubeflow Trainer 2"),
        NeededApi("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet, which Kubeflow Trainer 2 includes"),
    ),
    controllers=(
        Controller(
            "Trainer controller", ("kubeflow-trainer-controller-manager", "trainer-controller-manager")
        ),
        Controller("JobSet controller", ("jobset-controller-manager", "jobset-controller")),
    ),
    trial_spec=lambda _, runtime: {"runtimeRef": {"name": runtime or "torch-distributed"}},
    parts=((API, "trainingruntimes"),),
    needs_runtime=True,
    longest_name=63 - len("-node-0-00000-xxxxx"),
    render=render,
    read_status=read_status,
    pod_label=_JOBSET_LABEL,
    container=CONTAINER,
    is_helper=is_helper,
    owned=(
        OwnedObjects("/apis/jobset.x-k8s.io/v1alpha2", "jobsets", "JobSet", name_in=name_of),
        OwnedObjects(
            "/apis/batch/v1", "jobs", "Job", selector_in=lambda job: f"{_JOBSET_LABEL}={name_of(job)}"
        ),
    ),
)
