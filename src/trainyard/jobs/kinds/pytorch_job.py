"""PyTorchJob of the Kubeflow training operator, `kubeflow.org/v1`.

The first node is the Master, the others are Workers. Failed containers are started again in place: when one
process dies its peers fail too, and all of them resume from the newest checkpoint. The operator counts these
restarts over all pods, so `backoffLimit` is the number of restarts of the job times these pods. A pod that
was deleted or evicted is created again, which the operator does not count.

The Master stores and proves, and the end of a run that is not proven is final. So `trainyard pod` restarts
the training in the same container, except after a final exit code. With the policy `ExitCode` the operator
creates a Master again whose exit code is 128 or more: it was evicted, killed or asked to end. It does so
without a limit; `trainyard pod` counts such starts. Without a volume the disk of the pod holds the run, and
the policy is `Never`.
HyperPod's auto-resume requires OnFailure: there the Master is restarted after every failure.

The operator's condition `Restarting` is not reliable: it is overwritten within a tenth of a second, or never
removed.
"""

from dataclasses import replace
from typing import Any

from trainyard.cluster.needed_apis import Controller, NeededApi
from trainyard.jobs.job_kind import JobKind, Manifests, Observed
from trainyard.jobs.job_object import job_object, make_files_config_map
from trainyard.jobs.job_spec import JobSpec
from trainyard.jobs.pod_template import pod_template
from trainyard.jobs.state.pod_facts import completion_index, whole_number
from trainyard.jobs.state.reading import (
    NOT_ACTED,
    Json,
    Phase,
    Reading,
    count,
    field_of,
    message_of,
    read_end,
    read_labels,
    read_suspension,
    true_conditions,
)

CONTAINER = "pytorch"
"""The container name that the operator's webhook requires."""
_RESUME = "sagemaker.amazonaws.com/enable-job-auto-resume"
_RESUMES = "sagemaker.amazonaws.com/job-max-retry-count"
_CONTINUES = (
    ("Restarting", Phase.RESTARTING),
    ("Running", Phase.RUNNING),
    ("PodsRunning", Phase.RUNNING),
    ("Created", Phase.WAITING),
)


def render(plan: JobSpec) -> Manifests:
    often = "OnFailure" if plan.restarts else "Never"
    judged = judges_its_restarts(plan)
    options = ("--restarts", str(plan.restarts), *(("--evictable",) if plan.claim else ()))
    command = (*plan.program.command, *(options if judged else ()))
    master = replace(plan, program=replace(plan.program, command=command))
    first = ("ExitCode" if plan.claim else "Never") if judged else often
    roles = {"Master": _replicas(master, 1, first)}
    if plan.nodes > 1:
        roles["Worker"] = _replicas(plan, plan.nodes - 1, often)
    counted = max(1, plan.nodes - 1) if judged else plan.nodes
    policy: dict[str, Any] = {"cleanPodPolicy": "Running", "backoffLimit": plan.restarts * counted}
    if plan.nodes > 1:
        policy["schedulingPolicy"] = {"minAvailable": plan.nodes}
    spec = {"nprocPerNode": str(plan.processes_per_node), "pytorchReplicaSpecs": roles, "runPolicy": policy}
    job = job_object(plan, "kubeflow.org/v1", "PyTorchJob", spec)
    job["metadata"]["annotations"] |= auto_resume(plan)
    return Manifests(job, make_files_config_map(plan))


def judges_its_restarts(plan: JobSpec) -> bool:
    """Return whether `trainyard pod` restarts the training of the Master, by its exit code."""
    return bool(plan.restarts and plan.program.keeps_run) and not auto_resume(plan)


def _replicas(plan: JobSpec, count: int, policy: str) -> dict[str, Any]:
    return {
        "replicas": count,
        "restartPolicy": policy,
        "template": pod_template(plan, CONTAINER, in_pair=plan.nodes > 1),
    }


def auto_resume(plan: JobSpec) -> dict[str, str]:
    """HyperPod's annotations: it replaces a faulty node and starts the job again on the new one.

    It does so only in the namespaces `kubeflow` and `hyperpod…`, for jobs whose pods restart on failure.
    """
    eligible = plan.namespace == "kubeflow" or plan.namespace.startswith("hyperpod")
    if not (plan.on_hyperpod and eligible and plan.restarts and plan.auto_retry):
        return {}
    return {_RESUME: "true", _RESUMES: str(plan.auto_retry)}


def read_status(observed: Observed) -> Reading:
    """Return the reading of a PyTorchJob."""
    spec = (observed.job or {}).get("spec") or {}
    roles = spec.get("pytorchReplicaSpecs") or {}
    pods = {name: count(entry.get("replicas"), 1) for name, entry in roles.items()}
    least = field_of(spec, "elasticPolicy", "minReplicas")
    reading = read_conditions(observed, sum(pods.values()) or None)
    enough = None if least is None else sum({**pods, "Worker": count(least)}.values())
    return replace(reading, enough=enough)


def read_conditions(observed: Observed, wanted: int | None) -> Reading:
    """Return the reading of a job of `wanted` pods from its conditions and its `runPolicy`."""
    job = observed.job or {}
    true = true_conditions(job)
    if (end := read_end(job, wanted, done=("Succeeded", "Completed"))) is not None:
        return end
    if "Suspended" in true or field_of(job, "spec", "runPolicy", "suspend") is True:
        return read_suspension(true, wanted)
    for name, phase in _CONTINUES:
        if name in true:
            return Reading(phase, message_of(true[name]), wanted)
    return Reading(Phase.NEW, NOT_ACTED, wanted)


def rank_of(pod: Json) -> int | None:
    """Return the rank: that of the Master is 0."""
    labels = read_labels(pod)
    index = whole_number(labels.get("training.kubeflow.org/replica-index"))
    if index is None:
        return completion_index(pod)
    role = labels.get("training.kubeflow.org/replica-type")
    return index + (0 if role == "master" or not _has_master(pod) else 1)


def _has_master(pod: Json) -> bool:
    """Return whether worker 0 has rank 1. Workers of a job without a master have no master address."""
    for container in field_of(pod, "spec", "containers") or ():
        for variable in container.get("env") or ():
            if variable.get("name") == "MASTER_ADDR":
                return "-master-" in str(variable.get("value"))
    return True


KIND = JobKind(
    name="pytorchjob",
    api_kind="PyTorchJob",
    apis=(NeededApi("kubeflow.org", "v1", "pytorchjobs", "the Kubeflow training operator"),),
    controllers=(
        Controller(
            "training operator",
            ("training-operator",),
            labels=("kubeflow-training-operator",),
            others=("hp-training-operator", "hyperpod-training-operator"),
        ),
    ),
    trial_spec=lambda template, _: {"pytorchReplicaSpecs": {"Master": {"replicas": 1, "template": template}}},
    adds_container=True,
    longest_name=63 - len("-worker-00000"),
    render=render,
    read_status=read_status,
    pod_label="training.kubeflow.org/job-name",
    container=CONTAINER,
    rank_of=rank_of,
    suspend=("spec", "runPolicy", "suspend"),
    first_pod_decides=True,
)
