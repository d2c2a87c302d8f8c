"""HyperPodPyTorchJob of the HyperPod training operator, `sagemaker.amazonaws.com/v1`.

Its schema is not public; the fields are those of the templates in aws/sagemaker-hyperpod-cli and of its
documentation. The operator talks to an agent in each pod, which `hyperpodrun` starts in place of torchrun:
the trainer does so where it finds the operator's variables, a user's own command names it itself. The
operator restarts processes first, then the whole job.
"""

from collections.abc import Iterator
from typing import Any

from trainyard.jobs.job_plan import JobPlan
from trainyard.jobs.kinds.job_object import job_object, make_files_config_map, problems_without_ray
from trainyard.jobs.kinds.kind_protocol import Manifests
from trainyard.jobs.pod_template import pod_template

NAME = FOLLOWED = "hyperpod"
LONGEST_NAME = 63 - len("-pods-00000")
CONTAINER = "pytorch"
AGENT_PORT = 8080
_COUNTED_SECONDS = 6 * 3600


def problems(plan: JobPlan) -> Iterator[str]:
    yield from problems_without_ray(plan)
    if plan.instance_type and not plan.on_hyperpod:
        yield (
            f"--kind hyperpod: {plan.instance_type} is not an instance type of HyperPod: those begin with ml."
        )


def rendered(plan: JobPlan) -> Manifests:
    template = pod_template(plan, CONTAINER)
    template["spec"]["containers"][0]["ports"] = [{"containerPort": AGENT_PORT}]
    spec: dict[str, Any] = {
        "nprocPerNode": str(plan.processes_per_node),
        "replicaSpecs": [{"name": "pods", "replicas": plan.nodes, "template": template}],
        "runPolicy": {"cleanPodPolicy": "All", **_restarts(plan)},
    }
    return Manifests(
        job_object(plan, "sagemaker.amazonaws.com/v1", "HyperPodPyTorchJob", spec),
        make_files_config_map(plan),
    )


def _restarts(plan: JobPlan) -> dict[str, Any]:
    """The operator restarts processes first, then the whole job."""
    if not plan.restarts:
        return {"jobMaxRetryCount": 0}
    policy = {
        "numRestartBeforeFullJobRestart": plan.restarts,
        "evalPeriodSeconds": _COUNTED_SECONDS,
        "maxFullJobRestarts": plan.restarts,
    }
    return {"jobMaxRetryCount": plan.restarts, "restartPolicy": policy}
