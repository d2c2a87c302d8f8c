"""RayJob of KubeRay, `ray.io/v1`: a Ray cluster for one command, removed after the command has ended.

A RayJob has two statuses: that of its deployment and that of the command in Ray. Only both together show
success, because `Complete` is also set for a command that was stopped.
"""

import json

from trainyard.cluster.needed_apis import NeededApi
from trainyard.jobs.job_kind import JobKind, Manifests, Observed, OwnedObjects
from trainyard.jobs.job_object import job_object, make_files_config_map
from trainyard.jobs.job_spec import JobSpec
from trainyard.jobs.kinds import ray_cluster
from trainyard.jobs.state.pod_troubles import PATIENCE
from trainyard.jobs.state.reading import NOT_ACTED, Json, Phase, Reading, count, field_of, one_line, time_of
from trainyard.watch.failure_classes import FailureClass

_ENDS = ("SUCCEEDED", "FAILED", "STOPPED")
_CLOCKS_DIFFER = 60.0
"""Ray reports the time of its node, the cluster that of its API server."""
_KEPT_SECONDS = 120
"""The pods stay this long after the end, so that their logs can be read; they hold their GPUs meanwhile."""


def render(plan: JobSpec) -> Manifests:
    variables = ray_cluster.actor_variables(plan)
    spec = {
        "entrypoint": ray_cluster.make_entrypoint(plan),
        **({"runtimeEnvYAML": json.dumps({"env_vars": variables})} if variables else {}),
        "rayClusterSpec": ray_cluster.ray_cluster_spec(plan),
        "submissionMode": "K8sJobMode",
        "submitterPodTemplate": ray_cluster.submitter(plan),
        # The entrypoint restarts `trainyard pod` itself.
        "backoffLimit": 0 if plan.program.keeps_run else plan.restarts,
        "shutdownAfterJobFinishes": True,
        "ttlSecondsAfterFinished": _KEPT_SECONDS,
    }
    return Manifests(job_object(plan, ray_cluster.API, "RayJob", spec), make_files_config_map(plan))


def read_status(observed: Observed) -> Reading:
    """Return the reading of a RayJob."""
    job = observed.job or {}
    status = job.get("status") or {}
    deployment, command = str(status.get("jobDeploymentStatus") or ""), str(status.get("jobStatus") or "")
    wanted = ray_cluster.count_ray_pods(field_of(job, "spec", "rayClusterSpec") or {})
    anew = max(0, count(status.get("failed")) - (1 if deployment == "Failed" else 0))
    message = one_line(status.get("message"))
    if deployment in ("Failed", "ValidationFailed", "Complete"):
        phase, found = _end_of(deployment, command, str(status.get("reason") or ""))
        reason = message or f"the operator says {deployment}, Ray says {command or 'nothing'}"
        ended = time_of(status.get("endTime"))
        lines = tuple(str(status.get("message") or "").splitlines()) if command == "FAILED" else ()
        return Reading(phase, reason, wanted, anew, ended, found, lines)
    if deployment in ("Suspending", "Suspended") or field_of(job, "spec", "suspend") is True:
        return Reading(Phase.SUSPENDED, message or "it is suspended", wanted, anew)
    if deployment == "Retrying":
        return Reading(Phase.RESTARTING, "the operator starts it again on a new RayCluster", wanted, anew)
    if command in _ENDS:
        reason = f"Ray says {command}; the operator has not ended the job yet"
        return Reading(Phase.RUNNING, reason, wanted, anew)
    if command == "RUNNING":
        if (lost := _loss_of_head(observed, status, wanted)) is not None:
            return lost
        return Reading(Phase.RUNNING, "Ray runs the command", wanted, anew)
    if not deployment:
        return Reading(Phase.NEW, NOT_ACTED, wanted, anew)
    return Reading(
        Phase.WAITING, f"the operator says {deployment}, Ray says {command or 'nothing yet'}", wanted, anew
    )


def _loss_of_head(observed: Observed, status: Json, wanted: int | None) -> Reading | None:
    """Return the reading of a job whose command ran on an earlier head; None if it runs on the present one.

    Ray loses its state with the head, and KubeRay keeps the command's last status. A submitter that still
    runs, or that its Job starts again, submits the command to the new head.
    """
    head = next((pod for pod in observed.pods if pod.rank == 0 and not pod.helps), None)
    started = time_of(field_of(status, "rayJobInfo", "startTime"))
    if head is None or started is None or started >= head.changed - _CLOCKS_DIFFER:
        return None
    reason = f"{head.name} is a new head, and the command was lost with the earlier one"
    if observed.now - head.changed < PATIENCE:
        return Reading(Phase.RESTARTING, reason, wanted)
    reason = f"{reason} {PATIENCE / 60:.0f} minutes ago: KubeRay did not start it again"
    return Reading(Phase.FAILED, reason, wanted, failure_class=FailureClass.NODE_LOST)


def _end_of(deployment: str, command: str, reason: str) -> tuple[Phase, FailureClass | None]:
    if deployment == "ValidationFailed":
        return Phase.FAILED, FailureClass.CONFIGURATION
    if deployment == "Complete" and command == "SUCCEEDED":
        return Phase.SUCCEEDED, None
    if command == "STOPPED":
        return Phase.FAILED, FailureClass.CANCELLED
    if deployment == "Complete" and command != "FAILED":
        return Phase.UNCLEAR, None
    return Phase.FAILED, FailureClass.TIME_LIMIT if "Deadline" in reason else None


def why_not_suspended(job: Json) -> str:
    """Return why KubeRay cannot suspend it: it must have a cluster of its own and remove it at its end."""
    spec = job.get("spec") or {}
    if spec.get("clusterSelector"):
        return "it runs on a RayCluster of its own or of others, which KubeRay does not suspend"
    if not spec.get("shutdownAfterJobFinishes"):
        return "KubeRay suspends a RayJob only with shutdownAfterJobFinishes"
    return ""


def cluster_in(job: Json) -> str:
    """Return the name of its RayCluster; empty between two attempts."""
    return str((job.get("status") or {}).get("rayClusterName") or "")


KIND = JobKind(
    name="rayjob",
    api_kind="RayJob",
    apis=(NeededApi("ray.io", "v1", "rayjobs", ray_cluster.INSTALLS),),
    controllers=(ray_cluster.CONTROLLER,),
    trial_spec=lambda template, _: {
        "entrypoint": "true",
        "rayClusterSpec": ray_cluster.make_trial_cluster(template),
        "shutdownAfterJobFinishes": True,
    },
    has_webhook=False,
    longest_name=ray_cluster.LONGEST_NAME,
    find_problems=ray_cluster.find_entrypoint_problems,
    render=render,
    read_status=read_status,
    pod_label=ray_cluster.POD_LABEL,
    pod_owner=cluster_in,
    rank_of=ray_cluster.rank_of,
    is_helper=ray_cluster.is_helper,
    owned=(OwnedObjects("/apis/ray.io/v1", "rayclusters", "RayCluster", name_in=cluster_in, in_queue=True),),
    why_not_suspended=why_not_suspended,
    of_one_run=(("spec", "jobId"),),
    on_ray=True,
)
