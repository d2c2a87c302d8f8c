"""RayJob of KubeRay, `ray.io/v1`: a Ray cluster for one command, removed after the command has ended."""

from collections.abc import Iterator

from trainyard.jobs.job_plan import JobPlan
from trainyard.jobs.kinds.job_object import job_object, make_files_config_map
from trainyard.jobs.kinds.kind_protocol import Manifests
from trainyard.jobs.kinds.on_ray import entrypoint_of, entrypoint_problems
from trainyard.jobs.kinds.ray_cluster import API, ray_cluster_spec, submitter

NAME = FOLLOWED = "rayjob"
LONGEST_NAME = 47
_KEPT_SECONDS = 120
"""The pods stay this long after the end, so that their logs can be read; they hold their GPUs meanwhile."""


def problems(plan: JobPlan) -> Iterator[str]:
    yield from entrypoint_problems(plan)
    if plan.ray_cluster:
        yield f"--ray-cluster {plan.ray_cluster}: a RayJob makes a cluster of its own; use --kind raycluster"


def rendered(plan: JobPlan) -> Manifests:
    spec = {
        "entrypoint": entrypoint_of(plan),
        "rayClusterSpec": ray_cluster_spec(plan),
        "submissionMode": "K8sJobMode",
        "submitterPodTemplate": submitter(plan),
        "backoffLimit": 0 if plan.program.keeps_run else plan.restarts,  # else the entrypoint restarts it
        "shutdownAfterJobFinishes": True,
        "ttlSecondsAfterFinished": _KEPT_SECONDS,
    }
    return Manifests(job_object(plan, API, "RayJob", spec), make_files_config_map(plan))
