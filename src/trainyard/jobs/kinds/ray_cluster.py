"""RayCluster of KubeRay, `ray.io/v1`, and a RayJob that runs the command on it.

The first node is the head, which has GPUs like the others. A cluster outlives the command; one of the same
specification is used again, which is compared by the digest in its annotations.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from trainyard.jobs.job_labels import CLUSTER_DIGEST, KIND_LABEL, make_labels
from trainyard.jobs.job_plan import FILES_DIRECTORY, SCRATCH, JobPlan, Program
from trainyard.jobs.kinds.job_object import job_object, part_object
from trainyard.jobs.kinds.kind_protocol import Manifests
from trainyard.jobs.kinds.on_ray import entrypoint_of, entrypoint_problems
from trainyard.jobs.pod_template import container_security, pod_template

NAME = "raycluster"
FOLLOWED = "rayjob"
LONGEST_NAME = 47
"""KubeRay's limit for RayJobs; 53 for RayClusters."""
API = "ray.io/v1"
GROUP = "workers"
_SUBMITTER = {"cpu": "500m", "memory": "1Gi"}


def problems(plan: JobPlan) -> Iterator[str]:
    yield from entrypoint_problems(plan)


def rendered(plan: JobPlan) -> Manifests:
    cluster = _cluster(plan)
    job = job_object(plan, API, "RayJob", _job_spec(plan))
    labels = job["metadata"]["labels"]
    labels.pop("kueue.x-k8s.io/queue-name", None)  # the cluster holds the quota
    labels[KIND_LABEL] = FOLLOWED
    return Manifests(job, shared=(cluster,)) if plan.ray_cluster else Manifests(job, (cluster,))


def _cluster(plan: JobPlan) -> dict[str, Any]:
    """The cluster. It holds nothing that belongs to this job alone, because another job may use it."""
    neutral = replace(
        plan, name=cluster_name(plan), program=Program("ray", (), directory=plan.program.directory)
    )
    spec = ray_cluster_spec(neutral)
    body = part_object(neutral, API, "RayCluster", name=neutral.name, spec=spec)
    if plan.queue:
        body["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = plan.queue
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()
    body["metadata"]["annotations"] = {CLUSTER_DIGEST: digest}
    return body


def _job_spec(plan: JobPlan) -> dict[str, Any]:
    """A RayJob that carries its files and variables, because the cluster's pods do not have them."""
    placed = f"{SCRATCH}/{plan.name}-files"
    command = tuple(part.replace(FILES_DIRECTORY, placed) for part in plan.program.command)
    moved = replace(plan, program=replace(plan.program, command=command))
    variables = {"TRAINYARD_RUN_ID": plan.name, "TRAINYARD_NETWORK": plan.network}
    if plan.program.files:
        files = {f"{placed}/{name}": text for name, text in plan.program.files.items()}
        variables["TRAINYARD_FILES"] = json.dumps(files)
    return {
        "entrypoint": entrypoint_of(moved),
        "clusterSelector": {"ray.io/cluster": cluster_name(plan)},
        "runtimeEnvYAML": json.dumps({"env_vars": variables}),
        "submissionMode": "K8sJobMode",
        "submitterPodTemplate": submitter(plan),
    }


def cluster_name(plan: JobPlan) -> str:
    return plan.ray_cluster or plan.name


def ray_cluster_spec(plan: JobPlan) -> dict[str, Any]:
    """The cluster: a head, and a group of workers if there are more nodes."""
    head = {"rayStartParams": {}, "template": pod_template(plan, "ray-head", command=False)}
    spec: dict[str, Any] = {"headGroupSpec": head}
    if plan.ray_version:
        spec["rayVersion"] = plan.ray_version
    if plan.several_nodes:
        count = plan.nodes - 1
        spec["workerGroupSpecs"] = [
            {
                "groupName": GROUP,
                "replicas": count,
                "minReplicas": count,
                "maxReplicas": count,
                "rayStartParams": {},
                "template": pod_template(plan, "ray-worker", command=False),
            }
        ]
    return spec


def submitter(plan: JobPlan) -> dict[str, Any]:
    """The pod that submits the command to Ray and prints its log."""
    container = {
        "name": "ray-job-submitter",
        "image": plan.image,
        "resources": {"requests": dict(_SUBMITTER), "limits": dict(_SUBMITTER)},
        "securityContext": container_security(),
    }
    whole = pod_template(plan, "ray-job-submitter", command=False)
    spec = {
        "containers": [container],
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": {k: v for k, v in whole["spec"]["securityContext"].items() if k != "fsGroup"},
        "tolerations": whole["spec"]["tolerations"],
    }
    return {"metadata": {"labels": make_labels(plan.name, plan.kind)}, "spec": spec}
