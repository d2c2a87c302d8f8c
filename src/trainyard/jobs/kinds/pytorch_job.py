"""PyTorchJob of the Kubeflow training operator, `kubeflow.org/v1`.

The first node is the Master, the others are Workers. Failed containers are started again in place: when one
process dies its peers fail too, and all of them resume from the newest checkpoint. The operator counts these
restarts over all pods, so `backoffLimit` is the number of restarts of the job times these pods. A pod that
was deleted or evicted is made anew, which the operator does not count.

The Master stores and proves, and the end of a run that is not proven is final. The operator looks at exit
codes only with the restart policy `ExitCode`: it then deletes the pod and makes it anew when the code is 128
or more, without a limit, so `scripts/run_pod.py` counts its starts on the volume. Without a volume the disk
of the pod holds the run: the policy is `Never`, and `scripts/run_pod.py` restarts in the same container.
HyperPod's auto-resume requires OnFailure: there the Master is restarted after every failure.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from trainyard.jobs.job_plan import JobPlan
from trainyard.jobs.kinds.job_object import job_object, make_files_config_map, problems_without_ray
from trainyard.jobs.kinds.kind_protocol import Manifests
from trainyard.jobs.pod_template import pod_template

NAME = FOLLOWED = "pytorchjob"
LONGEST_NAME = 63 - len("-worker-00000")
CONTAINER = "pytorch"
"""The container name that the operator's webhook requires."""
_RESUME = "sagemaker.amazonaws.com/enable-job-auto-resume"
_RESUMES = "sagemaker.amazonaws.com/job-max-retry-count"


def problems(plan: JobPlan) -> Iterator[str]:
    yield from problems_without_ray(plan)


def rendered(plan: JobPlan) -> Manifests:
    often = "OnFailure" if plan.restarts else "Never"
    judged = judges_its_restarts(plan)
    first = ("ExitCode" if plan.claim else "Never") if judged else often
    command = (*plan.program.command, *(_restart_options(plan) if judged else ()))
    master = replace(plan, program=replace(plan.program, command=command))
    roles = {"Master": _replicas(master, 1, first)}
    if plan.several_nodes:
        # With ExitCode the pod that counts is the first node, which only the variables of the operator name.
        roles["Worker"] = _replicas(master if plan.claim else plan, plan.nodes - 1, often)
    counted = max(1, plan.nodes - 1) if judged else plan.nodes
    policy: dict[str, Any] = {"cleanPodPolicy": "Running", "backoffLimit": plan.restarts * counted}
    if plan.several_nodes:
        policy["schedulingPolicy"] = {"minAvailable": plan.nodes}
    spec = {"nprocPerNode": str(plan.processes_per_node), "pytorchReplicaSpecs": roles, "runPolicy": policy}
    job = job_object(plan, "kubeflow.org/v1", "PyTorchJob", spec)
    job["metadata"]["annotations"] |= auto_resume(plan)
    return Manifests(job, make_files_config_map(plan))


def judges_its_restarts(plan: JobPlan) -> bool:
    """Return whether the exit code of the Master decides if it is started again."""
    return bool(plan.restarts and plan.program.keeps_run) and not auto_resume(plan)


def _restart_options(plan: JobPlan) -> tuple[str, ...]:
    """Return the options of `scripts/run_pod.py`: who restarts it, and how often."""
    return ("--restarts", str(plan.restarts), *(("--restart-by", "operator") if plan.claim else ()))


def _replicas(plan: JobPlan, count: int, policy: str) -> dict[str, Any]:
    return {"replicas": count, "restartPolicy": policy, "template": pod_template(plan, CONTAINER)}


def auto_resume(plan: JobPlan) -> dict[str, str]:
    """HyperPod's annotations: it replaces a faulty node and starts the job again on the new one.

    It does so in these namespaces only, and for jobs whose pods are restarted on failure.
    """
    eligible = plan.namespace == "kubeflow" or plan.namespace.startswith("hyperpod")
    if not (plan.on_hyperpod and eligible and plan.restarts and plan.auto_retry):
        return {}
    return {_RESUME: "true", _RESUMES: str(plan.auto_retry)}
